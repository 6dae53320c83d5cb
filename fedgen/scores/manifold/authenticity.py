"""Authenticity: the share of generated images that are no closer to a training image than others of its kind are.

Alaa, van Breugel, Saveliev and van der Schaar (2022, "How faithful is your synthetic data?", arXiv 2102.08921): with r
the training image nearest to a generated image g, g is authentic if it is farther from r than r's own nearest other
training image is. 0 for copies. A generator without memory has no fixed value (fresh draws of a normal distribution of
1, 8 and 64 dimensions, 1,000 beside 1,000: 0.34, 0.6 and 0.8), and images off the data have more: read it beside the
floor, that of held-out images.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedgen.scores.aggregate import FederatedScore, OfFeatures, Weights, combine, resolve_weights
from fedgen.scores.definition import ClientSide, ScoreDefinition
from fedgen.scores.influences import SharedVariances, client_blocks, joined
from fedgen.scores.manifold.neighbours import NearestReal, Points, nearest, nearest_real, refuse_weight_zero
from fedgen.statistics.gaussian import check_clients, check_generated


class AuthenticityReference(OfFeatures):
    """The clients' training images, each with the distance to its nearest other one: in its client, and in the pool.

    Args:
        features: [n_i, D] of the images that each client trained on, at least two, of any floating dtype.
        weights: of the clients in avg: "examples" (n_i / n), "uniform" or K positive numbers. Distances to neighbours
            know no weights, so that in `all` every image counts once.

    Raises:
        ValueError: for unusable features or weights, a weight of 0, or a client of one image.

    Examples:
        >>> import torch
        >>> from fedgen.scores import AuthenticityReference
        >>> training = torch.tensor([[0.0], [1.0], [4.0]])  # nearest others at 1, 1 and 3
        >>> reference = AuthenticityReference.from_features([training])
        >>> reference.score(torch.tensor([[0.1], [2.4], [6.0], [8.0]]), errors=False).values["all"]  # 2.4 and 8
        0.5
    """

    def __init__(self, features: Iterable[Tensor], weights: Weights = "examples") -> None:
        parts = [part.detach() for part in features]
        check_clients(parts)
        for client, part in enumerate(parts):
            if len(part) < 2:
                raise ValueError(
                    f"client {client} has 1 image, but authenticity asks for the nearest other one of its training"
                    " images; add images or leave the client out"
                )
        self.counts = [len(part) for part in parts]
        self.weights = resolve_weights(weights, self.counts)
        refuse_weight_zero(self.weights)
        self._points = Points(joined(parts))
        clients = torch.repeat_interleave(torch.arange(len(parts)), torch.tensor(self.counts))
        own, pool = nearest(self._points, 1, clients)
        self._own = own.squares[:, 0].split(self.counts)
        self._pool = pool.squares[:, 0]

    def score(self, generated: Tensor, errors: bool = True) -> FederatedScore:
        """Authenticity of generated features [m, D], in [0, 1]: clients, avg, all and worst, the smallest.

        For a client its own training images alone are looked at, for `all` those of all clients: a copy of client 1's
        image is found by client 1 and by `all`. An image as far from r as r's nearest other one is not authentic.

        Args:
            generated: floating features; one set for all clients.
            errors: whether to add standard errors, over generated images alone: the root of the variance (divisor
                m - 1) of what each image counts, 0 or 1 (in avg the mean of its K), over m. The training images are
                the ones asked about and stay as they are.

        Raises:
            ValueError: for unusable features or another D.
        """
        features = self._points.features
        check_generated(generated, features.shape[1])
        made = Points(generated.detach().to(features.device), self._points.origin)
        parts, shared, values = features.split(self.counts), SharedVariances(self.weights), []
        of_all: NearestReal | None = None
        for clients, _ in client_blocks(self.counts, len(made)):
            rows = []
            for part, radii in zip(parts[clients], self._own[clients]):
                near = nearest_real(made, part)
                rows.append(near.squares > radii[near.places])
                of_all = near if of_all is None else of_all.beside(near)
            authentic = torch.stack(rows).double().cpu()
            values.append(authentic.mean(1))
            if errors:
                shared.add(clients, authentic)
        assert of_all is not None
        per_client, pooled = torch.cat(values), (of_all.squares > self._pool[of_all.places]).double().cpu()
        parts = {"generated": shared.errors(int(per_client.argmin()), pooled)} if errors else None
        own = {"generated": shared.of_clients.sqrt()} if errors else None
        return combine("authenticity", per_client, float(pooled.mean()), self.weights, None, parts, own, True)


@dataclass(frozen=True)
class AuthenticityScore(ScoreDefinition):
    """Share of generated images farther from their nearest training image than its nearest other one (Alaa et al. 2022,
    arXiv 2102.08921).

    It asks about training images: read it in the first split, beside its floor there, the value of held-out images.
    `all` counts every image once, whatever the clients' weights.
    """

    name: ClassVar[str] = "authenticity"
    knows_weights: ClassVar[bool] = False
    higher_is_better: ClassVar[bool] = True

    def too_few(self, count: float, whose: str) -> str:
        if count > 1:
            return ""
        return f"{whose} has {count:g} image(s), and {self.name} needs 2, to find the nearest other one: more images"

    def prepare(self, clients: ClientSide) -> AuthenticityReference:
        return AuthenticityReference.from_features(clients.features, clients.weights)
