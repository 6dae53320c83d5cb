"""The scores as torchmetrics metrics: plain ones, and those of many clients."""

from typing import TYPE_CHECKING

from fedgen.lazy import load_on_use

if TYPE_CHECKING:
    from fedgen.metrics.frechet_distance import FederatedFrechetDistance, FrechetDistance
    from fedgen.metrics.kernel_distance import FederatedKernelDistance, KernelDistance

__all__ = ["FederatedFrechetDistance", "FederatedKernelDistance", "FrechetDistance", "KernelDistance"]

load_on_use(__name__)
