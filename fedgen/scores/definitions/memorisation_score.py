"""Memorisation as a score: `memorisation`, 0.5 for a generator without memory and 1 for one that copies."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from fedgen.scores.aggregate import FederatedScore
from fedgen.scores.definition import ClientSide, FittedScore, GeneratedSet, Needs, ScoreDefinition
from fedgen.scores.manifold.memorisation import memorisation


@dataclass(frozen=True)
class MemorisationScore(ScoreDefinition):
    """The share of images by which generated ones are closer to the clients' training images than to held-out ones.

    Measured in the first split, where a split "report" has held-out images of the same clients.
    """

    name: ClassVar[str] = "memorisation"
    needs: ClassVar[Needs] = "held out"

    @property
    def has_powers(self) -> bool:
        return False  # the middle is best

    def fit(self, clients: ClientSide) -> FittedScore:
        if clients.held_out is None:
            raise ValueError("score memorisation needs held-out images of every client; none are given")
        return _Fitted(self.name, clients)


class _Fitted:
    def __init__(self, name: str, clients: ClientSide) -> None:
        self._name = name
        self._train, self._held_out, self._weights = clients.features, clients.held_out or (), clients.weights

    def score(self, generated: GeneratedSet, errors: bool) -> Mapping[str, FederatedScore]:
        return {self._name: memorisation(self._train, self._held_out, generated.rows, self._weights)}
