"""The Fréchet distance (FID on Inception features) as a torchmetrics metric."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fedgen.metrics.feature_metric import GENERATED, REAL
from fedgen.metrics.moment_states import MomentMetric
from fedgen.metrics.two_sides import TwoSides, require_sides
from fedgen.scores.frechet.frechet import frechet_distance


class FrechetDistance(TwoSides, MomentMetric):
    """Fréchet distance between real and generated images, a scalar in float64.

    The value of `fedgen.scores.frechet_distance`, however the images came in batches: within 1e-10 of that from all
    features at once where covariances are well-conditioned, wherever their means lie. It equals
    torchmetrics' `FrechetInceptionDistance` on the same features (theirs resizes with antialiasing unless told
    otherwise).

    Args:
        embedding: None: `update` takes features [N, D]; else as `fedgen.load_embedding` takes it.
        dim: D; by default the embedding's, or that of the first images.
        ddof: divisor n - ddof of the covariances; 1 as peers print it.
        normalize: images are floats in [0, 1] and not uint8 or floats in [-1, 1].
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

    plot_lower_bound = 0.0

    def __init__(
        self,
        embedding: str | Mapping[str, Any] | nn.Module | None = None,
        dim: int | None = None,
        ddof: float = 1,
        normalize: bool = False,
        reset_real_features: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            1,
            ("two sides",),
            embedding=embedding,
            dim=dim,
            normalize=normalize,
            reset_real_features=reset_real_features,
            **kwargs,
        )
        self.ddof = ddof

    def compute(self) -> Tensor:
        """The distance, a scalar in float64."""
        require_sides(int(self.real_count), int(self.generated_count), images_needed(self.ddof))
        self._say_few("fid")
        distance, _ = frechet_distance(self._summary(REAL), self._summary(GENERATED), self.ddof)
        return torch.tensor(distance, dtype=torch.float64, device=self.device)


def images_needed(ddof: float) -> int:
    """The fewest images n with n - ddof > 0."""
    return max(1, math.floor(ddof) + 1)
