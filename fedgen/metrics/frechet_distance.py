"""The Fréchet distance (FID on Inception features) as a torchmetrics metric."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fedgen.metrics.feature_metric import (
    EVERYTHING,
    GENERATED,
    REAL,
    Aggregate,
    FeatureMetric,
    ManyClients,
    TwoSides,
    require_sides,
)
from fedgen.own_code import warn
from fedgen.scores.aggregate import FederatedScore, Weights
from fedgen.scores.frechet.corrected import Bias, check_bias, few_images
from fedgen.scores.frechet.frechet import FrechetReference, frechet_distance
from fedgen.scores.frechet.roots import BLOCK, Triangle
from fedgen.statistics import Gaussian, thin
from fedgen.statistics.gaussian import CHUNK, check_size, mirror


class MomentMetric(FeatureMetric):
    """Count, mean and scatter of each client's features and the generated ones, in float64; they merge over ranks."""

    plot_lower_bound = 0.0
    real_moments: Tensor
    generated_moments: Tensor

    def __init__(self, *settings: Any, rows: int, made_with: tuple[Any, ...], **kwargs: Any) -> None:
        super().__init__(*settings, made_with=("moments", rows, *made_with), **kwargs)
        self._said_few = False
        self._rows = rows
        self._add_sized(self.dim or 0)

    @property
    def real_count(self) -> Tensor:
        return self.real_moments[:, 0].long()

    @property
    def generated_count(self) -> Tensor:
        return self.generated_moments[:, 0].long()

    def _sized(self, dim: int) -> dict[str, Tensor]:
        width = MomentStates.width(dim)
        sides = (REAL, self._rows), (GENERATED, 1)
        return {f"{side}_moments": torch.zeros(number, width, dtype=torch.float64) for side, number in sides}

    def _join(self, parts: Sequence[Tensor] | Tensor) -> Tensor:
        """The moments [rows, 1 + D + S] of the images of several metrics, at least one, merged row by row."""
        merged = parts[0].clone()
        for part in parts[1:]:
            for own, other in zip(merged, part):
                MomentStates(own).merge(MomentStates(other))
        return merged

    def _dim_of(self, states: Mapping[str, Any]) -> int | None:
        return MomentStates.dim_of(states[f"{REAL}_moments"]) or None

    def _add(self, features: Tensor, side: str, rows: int | Tensor) -> None:
        check_size(features, f"{side} features")
        moments = self._writable(f"{side}_moments")
        if isinstance(rows, int):
            MomentStates(moments[rows]).add(features)
        else:
            for row in rows.unique().tolist():
                MomentStates(moments[row]).add(features[rows.to(features.device) == row])

    def _warn_of_few(self) -> None:
        assert self.dim is not None  # there were images
        said = few_images("fid", self.dim, int(self.generated_count), self.real_count.tolist())
        if said and not self._said_few:
            self._said_few = True
            warn(said)

    def _summary(self, side: str, row: int = 0) -> Gaussian:
        """The summary of one client or of the generated images, on the CPU; low-rank for n <= D."""
        return MomentStates(getattr(self, f"{side}_moments")[row].cpu()).summary()


class MomentStates:
    """Count, mean and scatter of some images' features in one tensor, which changes in place.

    They are centred at every step (Chan, Golub and LeVeque 1979): sums of outer products around the origin would lose
    twice the digits of |mean| / deviation.
    """

    def __init__(self, values: Tensor) -> None:
        dim = self.dim_of(values)
        self.count, self.mean = values[0], values[1 : 1 + dim]
        self.triangle = Triangle(values[1 + dim :], dim, BLOCK)

    @staticmethod
    def width(dim: int) -> int:
        return 1 + dim + sum(min(BLOCK, dim - i) * (dim - i) for i in range(0, dim, BLOCK))

    @staticmethod
    def dim_of(values: Tensor) -> int:
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
        row = self._move(other.count, other.mean)
        self.triangle.strips.add_(other.triangle.strips)
        self._add_outer(row.unsqueeze(0))

    def summary(self) -> Gaussian:
        return thin(Gaussian(float(self.count), self.mean, scatter=mirror(self.triangle.dense())))

    def _move(self, count: Tensor | int, mean: Tensor) -> Tensor:
        """Takes in the count and mean of more images; gives the row [D] whose outer product their distance adds."""
        before, shift = self.count.clone(), mean - self.mean
        share = count / (before + count).clamp(min=1)
        self.count.add_(count)
        self.mean.add_(shift * share)
        return shift * (before * share).sqrt()

    def _add_outer(self, rows: Tensor) -> None:
        for i, strip in self.triangle.parts:
            strip.addmm_(rows[:, i : i + BLOCK].T, rows[:, i:])


class FrechetDistance(TwoSides, MomentMetric):
    """Fréchet distance between real and generated images, a scalar in float64.

    The value of `fedgen.scores.frechet_distance`, for any batches: within 1e-10 of the value from all features at once
    if covariances are well-conditioned, wherever the means lie. It equals
    torchmetrics' `FrechetInceptionDistance` on the same features (theirs resizes with antialiasing unless told
    otherwise).

    Args:
        embedding: None, if `update` takes features [N, D]; else an argument of `fedgen.load_embedding`.
        dim: D; by default the embedding's, or that of the first images.
        ddof: divisor n - ddof of the covariances; 1 as in other packages.
        bias: "plug-in" as in other packages, or "corrected" for few images, with r + 2 images in r directions: see
            `fedgen.scores.frechet_distance`. Images must be different ones.
        normalize: whether images are floats in [0, 1], not uint8 or floats in [-1, 1].
        reset_real_features: whether `reset` forgets the real images too.
        kwargs: those of `torchmetrics.Metric`.

    Raises:
        ValueError: from `compute`, if a side has fewer than two images (one for ddof = 0).

    Examples:
        >>> import torch
        >>> from fedgen.metrics import FrechetDistance
        >>> metric = FrechetDistance(dim=1)
        >>> metric.update(torch.tensor([[-1.0], [1.0]]), real=True)
        >>> metric.update(torch.tensor([[2.0], [4.0]]), real=False)
        >>> float(metric.compute())  # the means are 3 apart, the variances are equal
        9.0
    """

    def __init__(
        self,
        embedding: str | Mapping[str, Any] | nn.Module | None = None,
        dim: int | None = None,
        ddof: float = 1,
        normalize: bool = False,
        reset_real_features: bool = True,
        bias: Bias = "plug-in",
        **kwargs: Any,
    ) -> None:
        super().__init__(embedding, dim, normalize, reset_real_features, rows=1, made_with=("two sides",), **kwargs)
        check_bias(bias, ddof)
        self.ddof, self.bias = ddof, bias

    def compute(self) -> Tensor:
        """The distance, a scalar in float64."""
        require_sides(int(self.real_count), int(self.generated_count), images_needed(self.ddof))
        if self.bias == "plug-in":
            self._warn_of_few()
        distance, _ = frechet_distance(self._summary(REAL), self._summary(GENERATED), self.ddof, self.bias)
        return torch.tensor(distance, dtype=torch.float64, device=self.device)


def images_needed(ddof: float) -> int:
    """The fewest images n with n - ddof > 0."""
    return max(1, math.floor(ddof) + 1)


class FederatedFrechetDistance(ManyClients, MomentMetric):
    """FID of one generated set to K clients: their mean, the FID to their pool, the worst and each.

    The values of `fedgen.FrechetReference`, for any batches: within 1e-10 of those from all features at once if
    covariances are well-conditioned, wherever the means lie.

    Under Lightning, `self.log("fid_all", metric)` in `validation_step` computes before `on_validation_epoch_end`: add
    generated images no later than in the last step, say in `on_validation_epoch_start`. Or log at the epoch's end.

    Args:
        num_clients: K; clients are numbered from 0.
        embedding: as for `FrechetDistance`; so are dim, ddof, normalize, reset_real_features, bias and kwargs.
        aggregate: what `compute` gives: "avg", "all", "worst", "per_client" (a vector) or a power p >= 1 for a tensor;
            several of them for a dict with the keys "fid_avg", "fid_all", "fid_worst", "fid_per_client", "fid_power_2".
            Lightning's `log` takes a metric with one scalar, `log_dict` a dict of scalars. "all" alone, weighted by
            examples, keeps the pool's sums only: no client then needs images of its own.
        weights: "examples" (n_i / n), "uniform" or K numbers, shared by avg and all.

    Raises:
        ValueError: for another aggregate or unusable weights; from `compute`, if a client or the generated side has
            fewer than two images (one for ddof = 0).

    Examples:
        >>> import torch
        >>> from fedgen.metrics import FederatedFrechetDistance
        >>> metric = FederatedFrechetDistance(num_clients=2, dim=1, aggregate=["avg", "all"])
        >>> metric.update(torch.tensor([[-2.0], [0.0]]), client=0)
        >>> metric.update(torch.tensor([[0.0], [2.0]]), client=1)
        >>> metric.update(torch.tensor([[-1.0], [1.0]]), client=None)  # generated
        >>> {name: round(float(value), 4) for name, value in metric.compute().items()}
        {'fid_avg': 1.0, 'fid_all': 0.0479}
    """

    def __init__(
        self,
        num_clients: int,
        embedding: str | Mapping[str, Any] | nn.Module | None = None,
        dim: int | None = None,
        aggregate: Aggregate | Sequence[Aggregate] = EVERYTHING,
        weights: Weights = "examples",
        ddof: float = 1,
        normalize: bool = False,
        reset_real_features: bool = True,
        bias: Bias = "plug-in",
        **kwargs: Any,
    ) -> None:
        check_bias(bias, ddof)
        settings = embedding, dim, normalize, reset_real_features
        super().__init__(*settings, num_clients=num_clients, weights=weights, aggregates=aggregate, **kwargs)
        self.ddof, self.bias = ddof, bias

    def _score(self) -> tuple[FederatedScore, Tensor]:
        counts = self.real_count.tolist()
        self._require_images(counts, int(self.generated_count), images_needed(self.ddof))
        if self.bias == "plug-in":
            self._warn_of_few()
        clients = (self._summary(REAL, row) for row in range(len(counts)))
        reference = FrechetReference.from_summaries(clients, self.weights, self.ddof, self.bias)
        return reference.score(self._summary(GENERATED), errors=False), reference.weights
