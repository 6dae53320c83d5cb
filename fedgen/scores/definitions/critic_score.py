"""The 1-Wasserstein distance by trained critics as a score: `w1`."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from fedgen.scores.definition import ClientSide, FittedReference, FittedScore, ScoreDefinition
from fedgen.scores.wasserstein.critic import CriticOptions
from fedgen.scores.wasserstein.wasserstein import WassersteinReference


@dataclass(frozen=True)
class CriticScore(CriticOptions, ScoreDefinition):
    """Lower bound of the 1-Wasserstein distance by a critic a client and one for the pool; options are the critics'.

    They are trained at every evaluation, which takes minutes.
    """

    name: ClassVar[str] = "w1"
    shares_out: ClassVar[bool] = True

    @property
    def has_powers(self) -> bool:
        return False  # a lower bound from held-out images may be below 0

    def fit(self, clients: ClientSide) -> FittedScore:
        return FittedReference(self.name, WassersteinReference.from_features(clients.features, self, clients.weights))

    def too_few(self, count: float, whose: str) -> str:
        try:  # its rule of how many are held out, on features that cost nothing
            WassersteinReference.from_features([torch.zeros(int(count), 1)], self)
        except ValueError as error:
            return str(error).replace("client 0", whose)
        return ""
