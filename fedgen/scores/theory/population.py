"""Gaussians that are known rather than estimated, in the form that scores take."""

import torch
from torch import Tensor

from fedgen.statistics.gaussian import Gaussian


def population_gaussian(mean: Tensor, covariance: Tensor, count: float = 1.0) -> Gaussian:
    """N(mean, covariance) as a summary in float64, for scores with ddof = 0.

    The pool of such clients, N(mu, C) with mu = sum_i w_i mu_i and C = sum_i w_i (C_i + mu_i mu_i^T) - mu mu^T, is
    `fedgen.statistics.pool(clients, weights)`; FD-all is the distance to it (arXiv 2310.11714).

    Args:
        mean: [D].
        covariance: [D, D].
        count: what the client weighs under weights by examples. With 1, scores that ask for ddof = 1 are refused.

    Raises:
        ValueError: for other shapes, or a matrix that is not finite, not symmetric or not positive semi-definite.
    """
    mean, covariance = mean.detach().double(), covariance.detach().double()
    if mean.ndim != 1 or covariance.shape != (len(mean), len(mean)):
        raise ValueError(f"mean {tuple(mean.shape)} and covariance {tuple(covariance.shape)} must be [D] and [D, D]")
    if not (torch.isfinite(mean).all() and torch.isfinite(covariance).all()):
        raise ValueError("mean and covariance must be finite")
    slack = 1e-12 * float(covariance.abs().max())
    if float((covariance - covariance.T).abs().max()) > slack:
        raise ValueError("covariance is not symmetric")
    least = float(torch.linalg.eigvalsh(covariance)[0])
    if least < -slack * len(mean):
        raise ValueError(f"covariance has the negative eigenvalue {least:g}; no distribution has it")
    return Gaussian(count, mean, scatter=(covariance + covariance.T) / 2 * count)
