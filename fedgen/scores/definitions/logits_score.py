"""The Inception Score as a score of models: `is`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch

from fedgen.scores.aggregate import FederatedScore, combine, resolve_weights
from fedgen.scores.definition import ClientSide, FittedScore, GeneratedSet, Needs, ScoreDefinition
from fedgen.scores.of_model.inception_score import inception_score


@dataclass(frozen=True)
class LogitsScore(ScoreDefinition):
    """The Inception Score, which knows generated images only: one value for every client, as avg, all and worst.

    Of an embedding whose features are logits.
    """

    name: ClassVar[str] = "is"
    needs: ClassVar[Needs] = "logits"
    has_distribution: ClassVar[bool] = False

    @property
    def higher_is_better(self) -> bool:
        return True

    def fit(self, clients: ClientSide) -> FittedScore:
        return _Fitted(self.name, clients)


class _Fitted:
    def __init__(self, name: str, clients: ClientSide) -> None:
        self._name = name
        self._shares = resolve_weights(clients.weights, clients.counts)

    def score(self, generated: GeneratedSet, errors: bool) -> Mapping[str, FederatedScore]:
        value, error = inception_score(generated.rows)
        per_client = torch.full_like(self._shares, value)
        parts = {"generated": dict.fromkeys(("avg", "all", "worst"), error)} if errors else None
        own = {"generated": torch.full_like(self._shares, error)} if errors else None
        return {self._name: combine("is", per_client, value, self._shares, None, parts, own, higher_is_better=True)}
