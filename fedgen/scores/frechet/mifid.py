"""MiFID: the Fréchet distance divided by how far generated images are from their nearest training images.

Bai, Lin, Raffel and Kan (2021, "On Training Sample Memorization", arXiv 2106.03062): with M the mean over generated
images of the smallest cosine distance 1 - |cos| to a training image, MiFID = FID / M where M is below a threshold, 0.1,
and FID otherwise.

Constants are torchmetrics' (`MemorizationInformedFrechetInceptionDistance`): 1e-14 is added to M, and an FID of at most
1e-8 gives 0. Two conventions differ: torchmetrics takes the mean over the real images, of the distance to the nearest
generated one, and gives the paper's, here, if the two sets change places; and it leaves out images whose features add
up to 0, here those whose features are all 0, which have no direction.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedgen.scores.aggregate import FederatedScore, OfFeatures, Weights
from fedgen.scores.definition import ClientSide, ScoreDefinition, require_finite
from fedgen.scores.frechet.corrected import few_images
from fedgen.scores.frechet.frechet import Distances, FrechetReference, check_ddof
from fedgen.scores.frechet.frechet_errors import GENERATED_IMAGES, spaced
from fedgen.scores.kernel.kernels import BLOCK
from fedgen.statistics.gaussian import check_clients, check_features

THRESHOLD = 0.1  # of the mean cosine distance
EPSILON = 1e-14  # added to it, so that exact copies have a score
NO_DISTANCE = 1e-8  # an FID that is all rounding


class MiFIDReference(OfFeatures):
    """The clients' training images and the cached side of their FID.

    Args:
        features: [n_i, D] of the images that each client trained on, of any floating dtype.
        weights: as for `FrechetReference.from_features`; images of clients of weight 0 are not looked at in `all`.
        threshold: mean cosine distance from which on nothing is called memorised.
        ddof: divisor n - ddof of every covariance.

    Raises:
        ValueError: for unusable features or weights, or a client with one image under ddof = 1.

    Examples:
        >>> import torch
        >>> from fedgen.scores import MiFIDReference
        >>> training = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> near = torch.tensor([[3.0, 0.1], [0.1, 3.0]])  # the directions of training images, in another length
        >>> score = MiFIDReference.from_features([training]).score(near, errors=False)
        >>> round(score.values["all"] * (1 - 3 / 9.01**0.5), 1)  # the FID
        5.8
    """

    def __init__(
        self, features: Iterable[Tensor], weights: Weights = "examples", threshold: float = THRESHOLD, ddof: float = 1
    ) -> None:
        self._parts = [part.detach() for part in features]
        check_clients(self._parts)
        self._fid = FrechetReference.from_features(self._parts, weights, ddof)
        self.threshold, self.counts, self.weights = threshold, self._fid.counts, self._fid.weights

    def score(self, generated: Tensor, errors: bool = True) -> FederatedScore:
        """MiFID of generated features [m, D]: clients, avg, all and worst, the largest.

        Each client's is its FID over the distance to its own training images, and avg the mean of these; `all` is the
        pool's FID over the distance to the nearest image of any client. With exactly the training images the FID is 0
        and so is MiFID: it tells memory apart where the FID is well above 0.

        Args:
            generated: floating features; one set for all clients.
            errors: whether to add standard errors: those of the FID, with what generated images move the distance M
                besides, to first order. M is that to these training images, so real images move the FID alone, and
                nothing crosses the threshold.

        Raises:
            ValueError: for another D, or unusable features.
        """
        check_features(generated, "generated features")
        found = self._fid.measure(generated, errors)
        made = generated.detach().to(self._parts[0].device)
        known = (made != 0).any(1)  # generated images that have a direction
        if known.any():
            some = spaced(known, GENERATED_IMAGES).cpu()
            found = _penalised(found, *self._nearest(made, known), some, self.threshold)
        return self._fid.combined("mifid", found)

    def _nearest(self, generated: Tensor, known: Tensor) -> tuple[Tensor, Tensor]:
        """Means [K + 1] of cosine distances to clients' and the pool's nearest images, and some images' [K + 1, p]."""
        means, kept, of_all = [], [], torch.ones(len(generated), dtype=torch.float64, device=generated.device)
        for part, weight in zip(self._parts, self.weights):
            row = _cosine_distances(generated, part.to(generated.device))
            means.append(row[known].mean())
            kept.append(spaced(row, GENERATED_IMAGES))
            of_all = torch.minimum(of_all, row) if weight > 0 else of_all
        if len(means) > 1:
            means.append(of_all[known].mean())
            kept.append(spaced(of_all, GENERATED_IMAGES))
        return torch.stack(means).cpu(), torch.stack(kept).cpu()


def _cosine_distances(x: Tensor, y: Tensor) -> Tensor:
    """The smallest 1 - |cos| of each of x [m, D] to rows of y [n, D], float64 [m]; 1 where there is no direction."""
    best = torch.zeros(len(x), dtype=torch.float64, device=x.device)
    for found, part in zip(best.split(BLOCK), x.split(BLOCK)):
        left = _directions(part)
        for other in y.split(BLOCK):
            torch.maximum(found, (left @ _directions(other).T).abs().amax(1), out=found)
    return (1 - best).clamp(min=0)


def _directions(features: Tensor) -> Tensor:
    rows = features.double()
    rows = rows / rows.abs().amax(1, keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)  # so no square overflows
    lengths = rows.norm(dim=1, keepdim=True)
    return rows / torch.where(lengths > 0, lengths, 1.0)


def _penalised(found: Distances, means: Tensor, nearest: Tensor, known: Tensor, threshold: float) -> Distances:
    """Distances divided by `means` where these are below the threshold; their influences from images' own `nearest`."""
    memorised = means < threshold
    factors = torch.where(memorised, 1 / (means + EPSILON), 1.0)
    factors = torch.where(found.values > NO_DISTANCE, factors, 0.0)
    if found.influences:
        slopes = torch.where(memorised, -found.values * factors.square(), 0.0)
        moved = slopes.unsqueeze(1) * torch.where(known, nearest - means.unsqueeze(1), 0.0)
        found.influences.rescale(factors, moved)
    return replace(
        found,
        values=found.values * factors,
        terms={name: term * factors for name, term in found.terms.items()},
        of_pool=None if found.of_pool is None else found.of_pool * factors[-1],
    )


@dataclass(frozen=True)
class MemorisationInformedScore(ScoreDefinition):
    """Fréchet distance over the mean cosine distance to the nearest training image, where that is small (Bai et al.
    2021, arXiv 2106.03062); the Fréchet distance itself otherwise.

    It asks about training images: read it in the first split.

    Args:
        threshold: mean cosine distance from which on nothing is called memorised, in (0, 1].
        ddof: 1 for covariances with divisor n - 1, 0 for n.
    """

    name: ClassVar[str] = "mifid"
    shares_out: ClassVar[bool] = True

    threshold: float = THRESHOLD
    ddof: Literal[0, 1] = 1

    def __post_init__(self) -> None:
        require_finite(threshold=self.threshold)
        if not 0 < self.threshold <= 1:
            raise ValueError(f"threshold is a cosine distance in (0, 1], got {self.threshold!r}")
        check_ddof(self.ddof)

    def prepare(self, clients: ClientSide) -> MiFIDReference:
        return MiFIDReference.from_features(clients.features, clients.weights, self.threshold, self.ddof)

    def remark(self, name: str, dim: int, generated: float | None, clients: Sequence[float | None]) -> str:
        return few_images(name, dim, generated, clients)
