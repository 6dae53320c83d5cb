"""Sums of features a Fréchet distance is computed from: they add over batches, metrics and ranks."""

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fedgen.metrics.feature_metric import GENERATED, REAL, FeatureMetric
from fedgen.scores.few_images import few_images
from fedgen.scores.roots import BLOCK, Triangle
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
        self._rows = rows
        for side, number in self._sides:
            self.add_state(f"{side}_count", torch.zeros(number, dtype=torch.int64), dist_reduce_fx="sum")
        self._add_sized(self.dim or 0)

    @property
    def _sides(self) -> tuple[tuple[str, int], ...]:
        """The sides and their numbers of rows."""
        return (REAL, self._rows), (GENERATED, 1)

    def _sized(self, dim: int) -> dict[str, Tensor]:
        states = {}
        strips = Triangle.of(torch.zeros(dim, dim, dtype=torch.float64)).strips if dim else torch.zeros(0).double()
        for side, number in self._sides:
            states[f"{side}_sum"] = torch.zeros(number, dim, dtype=torch.float64)
            states[f"{side}_outer"] = strips.repeat(number, 1)
        return states

    def _dim_of(self, states: Mapping[str, Any]) -> int | None:
        return states[f"{REAL}_sum"].shape[-1] or None

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
            triangle = self._triangle(outer[row])
            for i, strip in triangle.rows():
                strip.addmm_(part[:, i : i + triangle.height].T, part[:, i:])

    def _triangle(self, outer: Tensor) -> Triangle:
        """One row's outer products."""
        assert self.dim is not None  # there were images
        return Triangle(outer, self.dim, BLOCK)

    def _say_few(self, name: str) -> None:
        """Warns once of fewer images than features, of which a Fréchet distance is too large."""
        counts, generated = self.real_count.tolist(), int(self.generated_count)
        assert self.dim is not None  # there were images
        said = few_images(name, self.dim, generated, counts)
        if said and not self._said_few:
            self._said_few = True
            warnings.warn(said, stacklevel=4)

    def _summary(self, side: str, row: int = 0) -> Gaussian:
        """The summary of one client or of the generated images, on the CPU; low-rank for n <= D."""
        count, total, outer = (getattr(self, f"{side}_{part}")[row].cpu() for part in ("count", "sum", "outer"))
        triangle = self._triangle(outer)
        rows, columns = torch.triu_indices(triangle.dim, triangle.dim)
        packed = triangle.dense()[rows, columns]
        return thin(gaussian_from_message(Message("sums", {"count": count.double(), "sum": total, "outer": packed})))
