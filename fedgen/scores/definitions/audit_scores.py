"""Audits of copies of training images as scores: `authenticity`."""

from dataclasses import dataclass
from typing import ClassVar

from fedgen.scores.definition import ClientSide, FittedReference, FittedScore, ScoreDefinition
from fedgen.scores.manifold.authenticity import AuthenticityReference


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
