"""Moments of features a Fréchet distance is computed from: they merge over batches, metrics and ranks.

They are centred at every step (Chan, Golub and LeVeque 1979): sums of outer products around the origin would lose twice
the digits of |mean| / deviation.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fedgen.metrics.feature_metric import GENERATED, REAL, FeatureMetric
from fedgen.own_code import warn
from fedgen.scores.frechet.few_images import few_images
from fedgen.scores.frechet.roots import BLOCK, Triangle
from fedgen.statistics import Gaussian, thin
from fedgen.statistics.gaussian import check_size, mirror

CHUNK = 4096  # images converted to float64 at a time


class MomentMetric(FeatureMetric):
    """Count, mean and scatter of each client's features and the generated ones, in float64.

    Of the symmetric scatter little more than half is kept: 18.9 MB a client at D = 2048, and as much again for the
    zeros that torchmetrics resets to.

    Args:
        rows: number of clients kept apart.
        made_with: as in `FeatureMetric`; the rows are added here.
        settings: the other arguments of `FeatureMetric`.
    """

    real_moments: Tensor
    generated_moments: Tensor

    def __init__(self, rows: int, made_with: tuple[Any, ...] = (), **settings: Any) -> None:
        super().__init__(made_with=("moments", rows, *made_with), **settings)
        self._said_few = False
        self._rows = rows
        self._add_sized(self.dim or 0)

    @property
    def real_count(self) -> Tensor:
        """Real images seen, int64 [rows]."""
        return self.real_moments[:, 0].long()

    @property
    def generated_count(self) -> Tensor:
        """Generated images seen, int64 [1]."""
        return self.generated_moments[:, 0].long()

    @property
    def _sides(self) -> tuple[tuple[str, int], ...]:
        """The sides and their numbers of rows."""
        return (REAL, self._rows), (GENERATED, 1)

    def _sized(self, dim: int) -> dict[str, Tensor]:
        width = MomentStates.width(dim)
        return {f"{side}_moments": torch.zeros(number, width, dtype=torch.float64) for side, number in self._sides}

    def _join(self, parts: Sequence[Tensor] | Tensor) -> Tensor:
        return merge_moments(parts)

    def _dim_of(self, states: Mapping[str, Any]) -> int | None:
        return MomentStates.dim_of(states[f"{REAL}_moments"]) or None

    def _add(self, features: Tensor, side: str, rows: int | Tensor) -> None:
        check_size(features, f"{side} features")
        moments = self._writable(f"{side}_moments")
        if isinstance(rows, int):
            MomentStates(moments[rows]).add(features)
            return
        for row in rows.unique().tolist():
            MomentStates(moments[row]).add(features[rows.to(features.device) == row])

    def _say_few(self, name: str) -> None:
        """Warns once of fewer images than features, of which a Fréchet distance is too large."""
        counts, generated = self.real_count.tolist(), int(self.generated_count)
        assert self.dim is not None  # there were images
        said = few_images(name, self.dim, generated, counts)
        if said and not self._said_few:
            self._said_few = True
            warn(said)

    def _summary(self, side: str, row: int = 0) -> Gaussian:
        """The summary of one client or of the generated images, on the CPU; low-rank for n <= D."""
        return MomentStates(getattr(self, f"{side}_moments")[row].cpu()).summary()


class MomentStates:
    """Count, mean and scatter of some images' features in one tensor, which changes in place.

    Args:
        values: float64 [1 + D + S]: the count, the mean [D] and the strips [S] of the scatter's upper triangle.
    """

    def __init__(self, values: Tensor) -> None:
        dim = self.dim_of(values)
        self.count, self.mean = values[0], values[1 : 1 + dim]
        self.triangle = Triangle(values[1 + dim :], dim, BLOCK)

    @staticmethod
    def width(dim: int) -> int:
        """1 + D + S."""
        return 1 + dim + sum(min(BLOCK, dim - i) * (dim - i) for i in range(0, dim, BLOCK))

    @staticmethod
    def dim_of(values: Tensor) -> int:
        """D of a tensor [..., 1 + D + S]."""
        width = values.shape[-1]
        guesses = range(max(0, math.isqrt(width) - 1), math.isqrt(2 * width) + 1)  # D^2 / 2 <= width <= D^2 + D + 1
        return next(dim for dim in guesses if MomentStates.width(dim) == width)

    def add(self, features: Tensor) -> None:
        """Adds features [n, D]."""
        for part in features.split(CHUNK):
            rows = torch.empty(len(part) + 1, self.triangle.dim, dtype=torch.float64, device=part.device)
            rows[:-1] = part
            mean = rows[:-1].mean(0)
            rows[:-1] -= mean
            rows[-1] = self._move(len(part), mean)
            self._add_outer(rows)

    def merge(self, other: "MomentStates") -> None:
        """Adds the images of others."""
        row = self._move(other.count, other.mean)
        self.triangle.strips.add_(other.triangle.strips)
        self._add_outer(row.unsqueeze(0))

    def summary(self) -> Gaussian:
        """Summary of these images; low-rank for n <= D."""
        return thin(Gaussian(float(self.count), self.mean, scatter=mirror(self.triangle.dense())))

    def _move(self, count: Tensor | int, mean: Tensor) -> Tensor:
        """Takes in the count and mean of more images; gives the row [D] whose outer product their distance adds."""
        before, shift = self.count.clone(), mean - self.mean
        share = count / (before + count).clamp(min=1)
        self.count.add_(count)
        self.mean.add_(shift * share)
        return shift * (before * share).sqrt()

    def _add_outer(self, rows: Tensor) -> None:
        """Adds rows^T rows to the scatter."""
        for i, strip in self.triangle.rows():
            strip.addmm_(rows[:, i : i + BLOCK].T, rows[:, i:])


def merge_moments(parts: Sequence[Tensor] | Tensor) -> Tensor:
    """The moments [rows, 1 + D + S] of the images of several metrics, at least one, merged row by row."""
    merged = parts[0].clone()
    for part in parts[1:]:
        for own, other in zip(merged, part):
            MomentStates(own).merge(MomentStates(other))
    return merged
