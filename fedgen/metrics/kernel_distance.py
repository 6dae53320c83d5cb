"""The squared maximum mean discrepancy (KID on Inception features) as a torchmetrics metric."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fedgen.metrics.feature_metric import GENERATED, REAL
from fedgen.metrics.stored_features import StoredFeatureMetric
from fedgen.metrics.two_sides import TwoSides, require_sides
from fedgen.scores.kernel.kernels import Kernel
from fedgen.scores.kernel.mmd import Estimator, mmd2


class KernelDistance(TwoSides, StoredFeatureMetric):
    """MMD^2 between real and generated images, a scalar in float64.

    The value of `fedgen.scores.mmd2`, to the bit, however the images came in batches: of all images, where
    torchmetrics' `KernelInceptionDistance` draws random subsets.

    Args:
        embedding: None: `update` takes features [N, D]; else as `fedgen.load_embedding` takes it.
        dim: D; by default the embedding's, or that of the first images.
        kernel: `PolynomialKernel()`, that of KID, if None.
        estimator: "u" (unbiased, may be negative) or "v".
        normalize: images are floats in [0, 1] and not uint8 or floats in [-1, 1].
        reset_real_features: whether `reset` forgets the real images too.
        kwargs: those of `torchmetrics.Metric`.

    Raises:
        ValueError: for another estimator; from `compute`, if a side has fewer than two images (one for "v").

    Examples:
        >>> import torch
        >>> from fedgen.metrics import KernelDistance
        >>> from fedgen.scores import PolynomialKernel
        >>> metric = KernelDistance(dim=1, kernel=PolynomialKernel(1, 1.0, 0.0), estimator="v")
        >>> metric.update(torch.tensor([[0.0], [2.0]]), real=True)
        >>> metric.update(torch.tensor([[4.0]]), real=False)
        >>> float(metric.compute())  # (4 - 1)^2
        9.0
    """

    def __init__(
        self,
        embedding: str | Mapping[str, Any] | nn.Module | None = None,
        dim: int | None = None,
        kernel: Kernel | None = None,
        estimator: Estimator = "u",
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
        self.kernel = kernel
        self.estimator = estimator
        self._needed = images_needed(estimator)

    def compute(self) -> Tensor:
        """The distance, a scalar in float64."""
        real, generated = self._stored(f"{REAL}_features"), self._stored(f"{GENERATED}_features")
        require_sides(len(real), len(generated), self._needed)
        distance = mmd2(real, generated, self.kernel, self.estimator)
        return torch.tensor(distance, dtype=torch.float64, device=self.device)


def images_needed(estimator: str) -> int:
    """The fewest images of a side: two for "u", one for "v".

    Raises:
        ValueError: for another estimator.
    """
    fewest = {"u": 2, "v": 1}
    if estimator not in fewest:
        raise ValueError(f"estimator must be 'u' or 'v', got {estimator!r}")
    return fewest[estimator]
