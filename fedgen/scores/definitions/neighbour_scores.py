"""Scores of nearest neighbours: `precision`, `recall`, `density` and `coverage`, which one pass gives."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from fedgen.scores.aggregate import FederatedScore
from fedgen.scores.definition import ClientSide, FittedScore, GeneratedSet, ScoreDefinition, require_whole
from fedgen.scores.manifold.manifold import ManifoldReference


@dataclass(frozen=True)
class NeighbourScore(ScoreDefinition):
    """One of the four; `all` counts every image once, whatever the clients' weights.

    Args:
        k: the neighbour that a ball around an image reaches to.
        strict: whether a point on a ball's border is outside.
    """

    family: ClassVar[str] = "manifold"
    knows_weights: ClassVar[bool] = False

    k: int = 5
    strict: bool = False

    def __post_init__(self) -> None:
        require_whole(1, k=self.k)
        if not isinstance(self.strict, bool):
            raise ValueError(f"strict must be true or false, got {self.strict!r}")

    @property
    def higher_is_better(self) -> bool:
        return True

    def too_few(self, count: float, whose: str) -> str:
        if count > self.k:
            return ""
        remedy = f"k={int(count) - 1} at most, or more images" if count > 1 else "more images"
        return (
            f"{whose} has {count:g} image(s), and {self.name} needs {self.k + 1}, to reach the {self.k}-th neighbour of"
            f" each: {remedy}"
        )

    def fit(self, clients: ClientSide) -> FittedScore:
        return _Fitted(ManifoldReference.from_features(clients.features, weights=clients.weights, **self.options))


class _Fitted:
    def __init__(self, reference: ManifoldReference) -> None:
        self._reference = reference

    def score(self, generated: GeneratedSet, errors: bool) -> Mapping[str, FederatedScore]:
        return self._reference.score(generated.rows, errors)


@dataclass(frozen=True)
class PrecisionScore(NeighbourScore):
    """Share of generated images within a ball of real ones (Kynkaanniemi et al. 2019, arXiv 1904.06991)."""

    name: ClassVar[str] = "precision"


@dataclass(frozen=True)
class RecallScore(NeighbourScore):
    """Share of real images within a ball of generated ones (Kynkaanniemi et al. 2019)."""

    name: ClassVar[str] = "recall"


@dataclass(frozen=True)
class DensityScore(NeighbourScore):
    """Number of real images' balls that a generated image lies in, over k (Naeem et al. 2020, arXiv 2002.09797)."""

    name: ClassVar[str] = "density"


@dataclass(frozen=True)
class CoverageScore(NeighbourScore):
    """Share of real images whose ball holds a generated one (Naeem et al. 2020)."""

    name: ClassVar[str] = "coverage"
