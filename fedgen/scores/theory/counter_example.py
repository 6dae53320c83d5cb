"""No function of the clients' FIDs gives FD-all: two generators that every client scores alike and the pool does not.

Proposition 1 of arXiv 2310.11714. The construction printed there (a mean moved by the root of the trace of the
between-client covariance) does not make the clients' distances equal; this one does.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedgen.scores.aggregate import Weights, resolve_weights
from fedgen.scores.frechet.frechet import frechet_distance
from fedgen.scores.theory.population import population_gaussian
from fedgen.statistics.gaussian import Gaussian, pool


@dataclass(frozen=True, eq=False)
class CounterExample:
    """Clients and two generators with FD(P_i, matching) = FD(P_i, shifted) for all i.

    Args:
        clients: N(mu_i, C), one covariance for all.
        weights: float64 [K], summing to 1.
        matching: N(mu, C_pool), the pool itself: FD-all is 0.
        shifted: N(mu + t b, C), b of length 1 and at right angles to all mu_i - mu: FD-all is 2 t^2.
        squared_shift: t^2 = FD(N(mu, C), N(mu, C_pool)).
    """

    clients: list[Gaussian]
    weights: Tensor
    matching: Gaussian
    shifted: Gaussian
    squared_shift: float


def counter_example(means: Tensor, covariance: Tensor, weights: Weights = "uniform") -> CounterExample:
    """Two Gaussians with the same FD to every client and different FD-all.

    FD(P_i, matching) = |mu_i - mu|^2 + FD of C and C_pool, FD(P_i, shifted) = |mu_i - mu|^2 + t^2: equal by the choice
    of t. Against the pool the first is 0, the second t^2 for its mean and t^2 for its covariance.

    Args:
        means: the clients' means mu_i [K, D], not all equal.
        covariance: the covariance C [D, D] that they share.
        weights: "uniform" or K numbers ("examples" is the same as "uniform").

    Raises:
        ValueError: if the means are equal, or leave no direction at right angles to their differences.
    """
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
        raise ValueError(
            f"the {len(means)} means span {rank} of {means.shape[1]} directions; a counter-example needs means that "
            "differ, and more features than directions in which they do"
        )
    centred = population_gaussian(pooled.mean, covariance)
    squared = frechet_distance(centred, pooled, ddof=0)[0]
    shifted = population_gaussian(pooled.mean + squared**0.5 * directions[-1], covariance)
    return CounterExample(clients, shares, pooled, shifted, squared)
