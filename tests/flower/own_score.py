"""A score of somebody's own, in one file: the Frechet distance of block means, as sFID is one of spatial features."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from fedgen.scores.definition import GeneratedSet
from fedgen.scores.frechet.frechet import FrechetScore
from fedgen.statistics import Gaussian


@dataclass(frozen=True)
class CoarseFrechet(FrechetScore):
    """Frechet distance of means over blocks of square grey images, which the embedding `pixels` gives as rows.

    Args:
        block: side of a block in pixels.
    """

    name: ClassVar[str] = "coarse"

    block: int = 2

    def fit(self, clients):
        inner = super().fit(replace(clients, parts=[self._coarse(part) for part in clients.parts]))
        return Fitted(inner, self._coarse)

    def _coarse(self, features):
        """Features [n, D], or their summary, under the linear map to block means."""
        dim = features.dim if isinstance(features, Gaussian) else features.shape[1]
        side = round(dim**0.5)
        eye = torch.eye(dim, dtype=torch.float64).view(dim, 1, side, side)
        blocks = torch.nn.functional.avg_pool2d(eye, self.block).flatten(1)
        if not isinstance(features, Gaussian):
            return features.double() @ blocks
        mean = features.mean @ blocks
        if features.deviations is not None:
            return replace(features, mean=mean, deviations=features.deviations @ blocks)
        return replace(features, mean=mean, scatter=blocks.T @ features.scatter @ blocks)


class Fitted:
    def __init__(self, inner, coarse):
        self.inner, self.coarse = inner, coarse

    def score(self, generated, errors):
        return self.inner.score(GeneratedSet(self.coarse(generated.features)), errors)
