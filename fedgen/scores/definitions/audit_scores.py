"""Audits of copies of training images as scores: `authenticity`, `mifid` and `fld`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from fedgen.scores.aggregate import FederatedScore
from fedgen.scores.definition import (
    ClientSide,
    FittedReference,
    FittedScore,
    GeneratedSet,
    Needs,
    ScoreDefinition,
    require_finite,
    require_whole,
)
from fedgen.scores.frechet.few_images import few_images
from fedgen.scores.frechet.mifid import THRESHOLD, MiFIDReference
from fedgen.scores.manifold.authenticity import AuthenticityReference
from fedgen.scores.manifold.feature_likelihood import FeatureLikelihoodReference


@dataclass(frozen=True)
class AuthenticityScore(ScoreDefinition):
    """Share of generated images farther from their nearest training image than its nearest other one (Alaa et al. 2022,
    arXiv 2102.08921).

    It asks about training images: read it in the first split, beside its floor there, the value of held-out images.
    `all` counts every image once, whatever the clients' weights.
    """

    name: ClassVar[str] = "authenticity"
    knows_weights: ClassVar[bool] = False

    @property
    def higher_is_better(self) -> bool:
        return True

    def too_few(self, count: float, whose: str) -> str:
        if count > 1:
            return ""
        return f"{whose} has {count:g} image(s), and {self.name} needs 2, to find the nearest other one: more images"

    def fit(self, clients: ClientSide) -> FittedScore:
        return FittedReference(self.name, AuthenticityReference.from_features(clients.features, clients.weights))


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
        if self.ddof not in (0, 1):
            raise ValueError(f"ddof must be 0 or 1, got {self.ddof!r}")

    def fit(self, clients: ClientSide) -> FittedScore:
        reference = MiFIDReference.from_features(clients.features, clients.weights, self.threshold, self.ddof)
        return FittedReference(self.name, reference)

    def remark(self, name: str, dim: int, generated: float | None, clients: Sequence[float | None]) -> str:
        return few_images(name, dim, generated, clients)


@dataclass(frozen=True)
class FeatureLikelihoodScore(ScoreDefinition):
    """Loss of held-out images under a density of generated ones that is fitted to training images, less that under one
    of half of them (Jiralerspong et al. 2023, arXiv 2302.04440): about 0 for real images, and less of few.

    Measured in the first split, where a split "report" has held-out images of the same clients; read it beside its
    floor there. `all` counts every image once, whatever the clients' weights.

    Args:
        seed: of the halves of training images that it compares with, over which it is a mean.
    """

    name: ClassVar[str] = "fld"
    needs: ClassVar[Needs] = "held out"
    knows_weights: ClassVar[bool] = False

    seed: int = 0

    def __post_init__(self) -> None:
        require_whole(0, seed=self.seed)

    @property
    def has_floor(self) -> bool:
        return True  # of held-out images, each left out where it is itself asked about

    @property
    def has_powers(self) -> bool:
        return False  # it is below 0 where generated images are better than half of the training images

    def too_few(self, count: float, whose: str) -> str:
        if count > 1:
            return ""
        return f"{whose} has {count:g} image(s), and {self.name} needs 2, of which it takes halves: more images"

    def fit(self, clients: ClientSide) -> FittedScore:
        if clients.held_out is None:
            raise ValueError("score fld needs held-out images of every client; none are given")
        reference = FeatureLikelihoodReference.from_features(
            clients.features, clients.held_out, clients.weights, self.seed
        )
        return _FittedLikelihood(self.name, reference)


class _FittedLikelihood(FittedReference):
    def score(self, generated: GeneratedSet, errors: bool) -> Mapping[str, FederatedScore]:
        return {self._name: self._reference.score(generated.rows, errors, generated.real)}
