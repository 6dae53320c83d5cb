"""Peers of a FID loss: the trace of FastFID's Algorithm 1, and the peers' matrix roots.

All take the generator's side as root [m, D], centred rows with root^T root its covariance.
"""

from collections.abc import Callable

import scipy.linalg
import torch
from torch import Tensor
from torchmetrics.image.fid import _compute_fid

from fedgen.statistics import Gaussian

Score = Callable[[Tensor], Tensor]  # features [m, D] to a scalar


def small_trace(gram: Tensor) -> Tensor:
    """tr sqrt(C1 C2) from root C2 root^T [m, m], a scalar that autograd differentiates.

    Algorithm 1 of "Backpropagating through Fréchet Inception Distance" (arXiv 2009.14075): that matrix has the
    eigenvalues of C1 C2. Centred rows have rank m - 1, so the smallest one is left out.
    """
    return torch.linalg.svdvals(gram)[: len(gram) - 1].sqrt().sum()


def large_trace(product: Tensor) -> float:
    """tr sqrt(C1 C2) from C1 C2 [D, D], by `scipy.linalg.sqrtm` in the product's dtype."""
    return float(scipy.linalg.sqrtm(product.numpy()).trace().real)


def small_fid(real: Gaussian, dtype: torch.dtype = torch.float64) -> Score:
    """FID to a reference by Algorithm 1, with its covariance [D, D] computed once; the gradient is autograd's."""
    mean, covariance = real.mean.to(dtype), real.covariance().to(dtype)
    trace = covariance.trace()

    def score(features: Tensor) -> Tensor:
        made, root = _moments(features.to(dtype))
        rest = (made - mean).square().sum() + root.square().sum() + trace
        return rest - 2 * small_trace(root @ covariance @ root.T)

    return score


def torchmetrics_fid(real: Gaussian) -> Score:
    """FID to a reference as in torchmetrics: by the eigenvalues of C1 C2 [D, D], in float64, without gradient."""
    covariance = real.covariance()

    def score(features: Tensor) -> Tensor:
        made, root = _moments(features.double())
        return _compute_fid(made, root.T @ root, real.mean, covariance)

    return score


def scipy_fid(real: Gaussian) -> Score:
    """FID to a reference by `scipy.linalg.sqrtm`, in float64, without gradient."""
    covariance = real.covariance()
    trace = covariance.trace()

    def score(features: Tensor) -> Tensor:
        made, root = _moments(features.double())
        rest = (made - real.mean).square().sum() + root.square().sum() + trace
        return rest - 2 * large_trace(root.T @ root @ covariance)

    return score


def _moments(features: Tensor) -> tuple[Tensor, Tensor]:
    """Mean [D] and root [m, D], divisor m - 1."""
    mean = features.mean(0)
    return mean, (features - mean) / (len(features) - 1) ** 0.5
