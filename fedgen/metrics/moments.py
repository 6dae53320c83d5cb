"""Sums of features a Fréchet distance is computed from: they add over batches, metrics and ranks."""

import warnings
from typing import Any

import torch
from torch import Tensor

from fedgen.metrics.feature_metric import GENERATED, REAL, FeatureMetric
from fedgen.scores.few_images import few_images
from fedgen.scores.roots import Triangle
from fedgen.statistics import Gaussian, Message, gaussian_from_message, thin

CHUNK = 4096  # images converted to float64 at a time


class MomentMetric(FeatureMetric):
    """Count, sum and outer-product sum of each client's features and the generated ones, in float64.

    Of the symmetric outer products little more than half is kept: 18.9 MB a client at D = 2048, and as much again for
    the zeros that torchmetrics resets to.

    Args:
        rows: number of clients kept apart.
        made_with: as in `FeatureMetric`; the rows are added here.
        settings: the other arguments of `FeatureMetric`.
    """

    real_count: Tensor
    generated_count: Tensor

    def __init__(self, rows: int, made_with: tuple[Any, ...] = (), **settings: Any) -> None:
        super().__init__(made_with=("moments", rows, *made_with), **settings)
        self._said_few = False
        empty = Triangle.of(torch.zeros(self.dim, self.dim, dtype=torch.float64))
        self._height = empty.height
        for side, number in ((REAL, rows), (GENERATED, 1)):
            self.add_state(f"{side}_count", torch.zeros(number, dtype=torch.int64), dist_reduce_fx="sum")
            self.add_state(f"{side}_sum", torch.zeros(number, self.dim, dtype=torch.float64), dist_reduce_fx="sum")
            self.add_state(f"{side}_outer", empty.strips.repeat(number, 1), dist_reduce_fx="sum")

    def _add(self, features: Tensor, side: str, rows: int | Tensor) -> None:
        if isinstance(rows, int):
            self._add_row(features, side, rows)
            return
        for row in rows.unique().tolist():
            self._add_row(features[rows.to(features.device) == row], side, row)

    def _add_row(self, features: Tensor, side: str, row: int) -> None:
        count, total, outer = (self._writable(f"{side}_{part}") for part in ("count", "sum", "outer"))
        count[row] += len(features)
        for part in features.split(CHUNK):
            part = part.double()
            total[row] += part.sum(0)
            for i, strip in Triangle(outer[row], self.dim, self._height).rows():
                strip.addmm_(part[:, i : i + self._height].T, part[:, i:])

    def _say_few(self, name: str) -> None:
        """Warns once of fewer images than features, of which a Fréchet distance is too large."""
        counts, generated = self.real_count.tolist(), int(self.generated_count)
        said = few_images(name, self.dim, generated, counts)
        if said and not self._said_few:
            self._said_few = True
            warnings.warn(said, stacklevel=4)

    def _summary(self, side: str, row: int = 0) -> Gaussian:
        """The summary of one client or of the generated images, on the CPU; low-rank for n <= D."""
        count, total, outer = (getattr(self, f"{side}_{part}")[row].cpu() for part in ("count", "sum", "outer"))
        rows, columns = torch.triu_indices(self.dim, self.dim)
        packed = Triangle(outer, self.dim, self._height).dense()[rows, columns]
        return thin(gaussian_from_message(Message("sums", {"count": count.double(), "sum": total, "outer": packed})))
