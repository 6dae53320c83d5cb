"""The scores as torchmetrics metrics: plain ones, and those of many clients."""

from typing import TYPE_CHECKING

from fedgen.lazy import load_on_use

if TYPE_CHECKING:
    from fedgen.metrics.federated_frechet_distance import FederatedFrechetDistance
    from fedgen.metrics.federated_kernel_distance import FederatedKernelDistance
    from fedgen.metrics.frechet_distance import FrechetDistance
    from fedgen.metrics.kernel_distance import KernelDistance

__all__ = ["FederatedFrechetDistance", "FederatedKernelDistance", "FrechetDistance", "KernelDistance"]

load_on_use(__name__)
