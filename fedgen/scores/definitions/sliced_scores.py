"""Sliced Wasserstein distances as scores: `sw1` and `sw2`."""

from dataclasses import dataclass
from typing import ClassVar

from fedgen.scores.definition import ClientSide, FittedReference, FittedScore, ScoreDefinition, require_whole
from fedgen.scores.wasserstein.sliced import SlicedReference


@dataclass(frozen=True)
class SlicedScore(ScoreDefinition):
    """Sliced p-Wasserstein distance.

    Args:
        projections: random directions.
        seed: of the directions.
    """

    p: ClassVar[int]

    projections: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        require_whole(2, projections=self.projections)
        require_whole(0, seed=self.seed)

    def fit(self, clients: ClientSide) -> FittedScore:
        reference = SlicedReference.from_features(clients.features, p=self.p, weights=clients.weights, **self.options)
        return FittedReference(self.name, reference)


@dataclass(frozen=True)
class SlicedScore1(SlicedScore):
    """The sliced 1-Wasserstein distance."""

    name: ClassVar[str] = "sw1"
    p: ClassVar[int] = 1


@dataclass(frozen=True)
class SlicedScore2(SlicedScore):
    """The sliced 2-Wasserstein distance."""

    name: ClassVar[str] = "sw2"
    p: ClassVar[int] = 2
