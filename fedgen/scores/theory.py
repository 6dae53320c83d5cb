"""Theorems of arXiv 2310.11714 on FD-avg and a Gaussian toy, in closed form.

FD-avg(G) = FD(barycentre, G) + constant holds when all covariances commute, the generator's too. Otherwise FD-avg is
smaller, as the Wasserstein space is positively curved, and generators need not rank as their distances to the
barycentre do.

No function of the clients' FIDs gives FD-all (Proposition 1). The construction printed there does not make the clients'
distances equal; that of `counter_example` does.

The toy: clients N((-1, 0), I) and N((+1, 0), I), equally weighted, and a generator N((mean_x, 0), diag(var_x, 1)).
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedgen.scores.aggregate import Weights, resolve_weights
from fedgen.scores.frechet.frechet import FrechetReference, frechet_distance
from fedgen.scores.frechet.roots import factor
from fedgen.statistics.gaussian import Gaussian, is_covariance, pool

NODES = 80  # of the Gauss-Hermite rule; 40 give the same 12 digits


def barycentre(
    clients: Iterable[Gaussian], weights: Weights = "examples", tolerance: float = 1e-10, max_iterations: int = 1000
) -> Gaussian:
    """The Gaussian that minimises sum_i w_i FD(P_i, .), with population covariances (ddof = 0)."""
    summaries = list(clients)
    if not summaries:
        raise ValueError("a barycentre needs at least one client")
    if len(dims := {summary.dim for summary in summaries}) > 1:
        raise ValueError(f"clients have {sorted(dims)} features; use one embedding for all")
    shares = resolve_weights(weights, [summary.count for summary in summaries])
    summaries, shares = [summary for summary, w in zip(summaries, shares) if w > 0], shares[shares > 0]
    roots = [factor(summary, ddof=0).rows[0] for summary in summaries]  # R_i [r_i, D], A_i = R_i^T
    dim = summaries[0].dim
    if max(len(root) for root in roots) < dim:
        ranks = [len(root) for root in roots]
        wanted = f"a client whose covariance has full rank {dim}, ranks are {ranks}"
        raise ValueError(f"the barycentre needs {wanted}; project the features (fedgen.statistics.Projection)")
    current = torch.linalg.cholesky(sum(float(w) * (root.T @ root) for w, root in zip(shares, roots)))  # S = R R^T
    covariance, change = current @ current.T, float("inf")
    for _ in range(max_iterations):
        moved = []
        for weight, root in zip(shares, roots):
            left, _, right = torch.linalg.svd(root @ current, full_matrices=False)
            moved.append(float(weight) * (root.T @ (left @ right)))
        current = torch.stack(moved).sum(0)
        previous, covariance = covariance, current @ current.T
        change = float((covariance - previous).norm() / covariance.norm())
        if change <= tolerance:
            mean = torch.stack([w * summary.mean for w, summary in zip(shares, summaries)]).sum(0)
            count = sum(summary.count for summary in summaries)
            return Gaussian(count, mean, scatter=(covariance + covariance.T) / 2 * count)
    raise RuntimeError(f"the barycentre still moves by {change:.1e}: raise tolerance or max_iterations")


def barycentre_decomposition(
    clients: Sequence[Gaussian], generated: Gaussian, weights: Weights = "examples", centre: Gaussian | None = None
) -> dict[str, float]:
    """FD-avg of a generator split at the barycentre, with the residual that the published theorem leaves out."""
    centre = centre or barycentre(clients, weights)
    reference = FrechetReference.from_summaries(clients, weights, ddof=0)
    avg, spread = (float(reference.weights @ reference.per_client(side)) for side in (generated, centre))
    to_barycentre = frechet_distance(centre, generated, ddof=0)[0]
    residual = avg - to_barycentre - spread
    return {"avg": avg, "to_barycentre": to_barycentre, "spread": spread, "residual": residual}


def population_gaussian(mean: Tensor, covariance: Tensor, count: float = 1.0) -> Gaussian:
    """N(mean, covariance) as a summary in float64, for scores with ddof = 0."""
    mean, covariance = mean.detach().double(), covariance.detach().double()
    if mean.ndim != 1 or covariance.shape != (len(mean), len(mean)):
        raise ValueError(f"mean {tuple(mean.shape)} and covariance {tuple(covariance.shape)} must be [D] and [D, D]")
    if not (torch.isfinite(mean).all() and torch.isfinite(covariance).all()):
        raise ValueError("mean and covariance must be finite")
    if not is_covariance(covariance, slack=1e-12):
        least = float(torch.linalg.eigvalsh(covariance)[0])
        raise ValueError(f"covariance is not symmetric, or has the negative eigenvalue {least:g}")
    return Gaussian(count, mean, scatter=(covariance + covariance.T) / 2 * count)


@dataclass(frozen=True, eq=False)
class CounterExample:
    """Clients and two generators with FD(P_i, matching) = FD(P_i, shifted) for all i."""

    clients: list[Gaussian]
    weights: Tensor
    matching: Gaussian
    shifted: Gaussian
    squared_shift: float


def counter_example(means: Tensor, covariance: Tensor, weights: Weights = "uniform") -> CounterExample:
    """Two Gaussians with the same FD to every client and different FD-all."""
    means = means.detach().double()
    if means.ndim != 2:
        raise ValueError(f"means must be [K, D], got {tuple(means.shape)}")
    shares = resolve_weights(weights, [1.0] * len(means))
    clients = [population_gaussian(mean, covariance) for mean in means]
    pooled = pool(clients, shares)
    deviations = means - pooled.mean
    _, lengths, directions = torch.linalg.svd(deviations, full_matrices=True)
    rank = int((lengths > lengths[0] * max(means.shape) * torch.finfo(lengths.dtype).eps).sum())
    if rank == 0 or rank == means.shape[1]:
        raise ValueError(f"the means must differ, but not in all directions: they span {rank} of {means.shape[1]}")
    centred = population_gaussian(pooled.mean, covariance)
    squared = frechet_distance(centred, pooled, ddof=0)[0]
    shifted = population_gaussian(pooled.mean + squared**0.5 * directions[-1], covariance)
    return CounterExample(clients, shares, pooled, shifted, squared)


def toy_frechet(var_x: Tensor | float) -> dict[str, Tensor]:
    """FD-avg 1 + (sqrt(v) - 1)^2, FD-all (sqrt(v) - sqrt(2))^2 and FD-ref 4 - 2 sqrt(2), float64 of v's shape."""
    root = _variance(var_x, least=0.0).sqrt()
    ref = torch.full_like(root, 4 - 2 * math.sqrt(2))
    return {"avg": 1 + (root - 1) ** 2, "all": (root - math.sqrt(2)) ** 2, "ref": ref}


def toy_kernel(var_x: Tensor | float) -> dict[str, Tensor]:
    """KD-all 3/4 (v - 2)^2, KD-avg = KD-all + 31/8 and KD-ref 31/8, for the cubic kernel (x^T y / 2 + 1)^3."""
    variance = _variance(var_x, least=0.0)
    pooled, gap = 0.75 * (variance - 2) ** 2, torch.full_like(variance, 31 / 8)
    return {"avg": pooled + gap, "all": pooled, "ref": gap}


def toy_log_likelihood(var_x: Tensor | float, mean_x: Tensor | float = 0.0) -> dict[str, Tensor]:
    """LL-avg = LL-all = -log(2 pi) - log(v)/2 - (2 + mean_x^2) / (2 v) - 1/2 in nats, and LL-ref, float64."""
    variance = _variance(var_x, least=None)
    second = 2 + torch.as_tensor(mean_x, dtype=torch.float64) ** 2  # E (x - mean_x)^2
    value = -math.log(2 * math.pi) - variance.log() / 2 - second / (2 * variance) - 0.5
    return {"avg": value, "all": value, "ref": torch.full_like(value, _mixture_log_likelihood())}


def _mixture_log_likelihood() -> float:
    """E log p(x, y) under the pool p; by symmetry over the client at +1 alone, with E over x by quadrature."""
    nodes, masses = (torch.from_numpy(part) for part in np.polynomial.hermite_e.hermegauss(NODES))
    x = nodes + 1
    logs = torch.logaddexp(-((x - 1) ** 2) / 2, -((x + 1) ** 2) / 2) - math.log(2)
    along_x = float((masses / masses.sum()) @ logs) - math.log(2 * math.pi) / 2
    return along_x - math.log(2 * math.pi) / 2 - 0.5


def _variance(var_x: Tensor | float, least: float | None) -> Tensor:
    variance = torch.as_tensor(var_x, dtype=torch.float64)
    if not bool((variance > 0).all() if least is None else (variance >= least).all()):
        bound = "positive" if least is None else f"at least {least:g}"
        raise ValueError(f"var_x must be {bound}, got {float(variance.min()):g}")
    return variance
