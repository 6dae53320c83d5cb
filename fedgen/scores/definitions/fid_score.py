"""The Fréchet distance as a score: `fid`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from fedgen.scores.aggregate import FederatedScore
from fedgen.scores.definition import ClientSide, FittedScore, GeneratedSet, Needs, ScoreDefinition
from fedgen.scores.frechet.few_images import few_images
from fedgen.scores.frechet.frechet import FrechetReference


@dataclass(frozen=True)
class FrechetScore(ScoreDefinition):
    """Fréchet distance between Gaussians of features; a summary of either side will do.

    Args:
        ddof: 1 for covariances with divisor n - 1, 0 for n.
    """

    name: ClassVar[str] = "fid"
    needs: ClassVar[Needs] = "summaries"
    shares_out: ClassVar[bool] = True

    ddof: Literal[0, 1] = 1

    def __post_init__(self) -> None:
        if self.ddof not in (0, 1):
            raise ValueError(f"ddof must be 0 or 1, got {self.ddof!r}")

    def fit(self, clients: ClientSide) -> FittedScore:
        return _Fitted(self.name, FrechetReference.from_features(clients.parts, clients.weights, self.ddof))

    def remark(self, name: str, dim: int, generated: float | None, clients: Sequence[float | None]) -> str:
        return few_images(name, dim, generated, clients)


class _Fitted:
    def __init__(self, name: str, reference: FrechetReference) -> None:
        self._name, self._reference = name, reference

    def score(self, generated: GeneratedSet, errors: bool) -> Mapping[str, FederatedScore]:
        return {self._name: self._reference.score(generated.features, errors)}
