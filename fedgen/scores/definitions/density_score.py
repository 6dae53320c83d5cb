"""The log-likelihood of the clients' points as a score: `ll`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from fedgen.scores.aggregate import FederatedScore
from fedgen.scores.definition import ClientSide, FittedScore, GeneratedSet, Needs, ScoreDefinition
from fedgen.scores.of_model.likelihood import LikelihoodReference


@dataclass(frozen=True)
class DensityOfPointsScore(ScoreDefinition):
    """Mean log-density of the clients' points under a model with `log_prob`."""

    name: ClassVar[str] = "ll"
    needs: ClassVar[Needs] = "points"

    @property
    def higher_is_better(self) -> bool:
        return True

    @property
    def has_powers(self) -> bool:
        return False  # a density may be above or below 1

    def fit(self, clients: ClientSide) -> FittedScore:
        return _Fitted(self.name, clients)


class _Fitted:
    def __init__(self, name: str, clients: ClientSide) -> None:
        self._name = name
        self._reference = LikelihoodReference.from_points(clients.features, clients.weights)

    def score(self, generated: GeneratedSet, errors: bool) -> Mapping[str, FederatedScore]:
        if generated.density is None:
            raise ValueError("score ll needs a generator's density, log_prob(points [N, D]) -> [N]; none is given")
        return {self._name: self._reference.score(generated.density, errors)}
