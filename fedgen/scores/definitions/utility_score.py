"""Utility as a score: `utility`, the accuracy of a classifier that learned from generated images."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from fedgen.embeddings import ClassifierOptions
from fedgen.scores.aggregate import FederatedScore
from fedgen.scores.definition import ClientSide, FittedScore, GeneratedSet, Needs, ScoreDefinition
from fedgen.scores.of_model.utility import UtilityReference


@dataclass(frozen=True)
class UtilityScore(ClassifierOptions, ScoreDefinition):
    """Accuracy on the clients' held-out images; options are the classifier's, and parts are images, not features.

    Of class-conditional models, whose generated images train the classifier; it has no embedding.
    """

    name: ClassVar[str] = "utility"
    needs: ClassVar[Needs] = "labels"

    @property
    def higher_is_better(self) -> bool:
        return True

    def fit(self, clients: ClientSide) -> FittedScore:
        if clients.labels is None:
            raise ValueError("score utility needs the labels of every client's images; none are given")
        return _Fitted(
            self.name, UtilityReference(clients.parts, clients.labels, clients.num_classes, clients.weights, self)
        )


class _Fitted:
    def __init__(self, name: str, reference: UtilityReference) -> None:
        self._name, self._reference = name, reference

    def score(self, generated: GeneratedSet, errors: bool) -> Mapping[str, FederatedScore]:
        if generated.labels is None:
            raise ValueError("score utility needs the labels that generated images were asked for; none are given")
        return {self._name: self._reference.score(generated.rows, generated.labels, errors)}
