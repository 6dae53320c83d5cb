"""A model's own loss of the clients' examples as a score: `loss`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch

from fedgen.data.lazy_examples import join_inputs
from fedgen.scores.aggregate import FederatedScore, resolve_weights
from fedgen.scores.definition import ClientSide, FittedScore, GeneratedSet, Needs, ScoreDefinition
from fedgen.scores.linear import mean_score


@dataclass(frozen=True)
class LossScore(ScoreDefinition):
    """The model's own loss of all examples at once, so that draws are common to equal splits.

    Of models with `example_losses`; it has no embedding.
    """

    name: ClassVar[str] = "loss"
    needs: ClassVar[Needs] = "model"

    @property
    def has_powers(self) -> bool:
        return False  # a loss may be below 0

    def fit(self, clients: ClientSide) -> FittedScore:
        return _Fitted(self.name, clients)


class _Fitted:
    def __init__(self, name: str, clients: ClientSide) -> None:
        self._name = name
        self._images, self._labels = clients.parts, clients.labels
        self._weights = resolve_weights(clients.weights, [len(part) for part in self._images])

    def score(self, generated: GeneratedSet, errors: bool) -> Mapping[str, FederatedScore]:
        if generated.answers is None:
            raise ValueError("score loss needs the model's own losses, example_losses(images, labels, seed)")
        labels = None if self._labels is None else torch.cat(list(self._labels))
        sizes = [len(part) for part in self._images]
        losses = generated.answers.losses(join_inputs(self._images), labels).split(sizes)
        return {self._name: mean_score("loss", losses, self._weights, errors)}
