"""Privacy by noise: the Gaussian mechanism's (epsilon, delta), for one release or several.

Noise is given as a multiplier, its standard deviation over the L2 sensitivity. Ways to account for it, all valid:

- "analytic": exact (Balle and Wang 2018, arXiv 1805.06530, theorem 8). Releases compose exactly too: with multipliers
  z_i they are together as private as one of multiplier (sum_i z_i^-2)^-1/2.
- "pld", "rdp": the accountants of Google's dp-accounting, by privacy loss distributions (within 1e-6 of exact) and by
  Renyi divergences (a bound, 8 percent more noise at epsilon = 1, delta = 1e-5). They need the extra `privacy`.
- "classic": sqrt(2 ln(1.25 / delta)) / epsilon (Dwork and Roth 2014, appendix A), the textbook's: 30 percent more noise
  at epsilon = 1 and too little at large epsilon, where it is refused.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch

from fedgen.extras import need

Accountant = Literal["analytic", "pld", "rdp", "classic"]


def noise_multiplier(epsilon: float, delta: float, releases: int = 1, accountant: Accountant = "analytic") -> float:
    """The noise, over the sensitivity, of each of several releases that are (epsilon, delta)-private together.

    Args:
        epsilon: positive.
        delta: in (0, 1); well below one over the number of images.
        releases: of the same images, each with this noise; "classic" splits epsilon and delta among them.
        accountant: one of the above.

    Raises:
        ValueError: for values out of range, or epsilon too large for "classic".
        ModuleNotFoundError: if the accountant's package is missing, naming the extra that brings it.
    """
    _check(delta, accountant)
    if not 0 < epsilon < math.inf:
        raise ValueError(f"epsilon must be positive and finite, got {epsilon}")
    if releases < 1:
        raise ValueError(f"releases must be at least 1, got {releases}")
    if accountant == "classic":
        return _classic(epsilon / releases, delta / releases)
    if accountant == "analytic":
        return _solve(lambda z: _log_delta(z, epsilon) - math.log(delta)) * releases**0.5
    library = require_accountants()

    def noise(z: float) -> Any:
        return library.SelfComposedDpEvent(library.GaussianDpEvent(z), releases)

    return float(library.calibrate_dp_mechanism(lambda: _fresh(accountant), noise, epsilon, delta))


def spent_epsilon(multipliers: Sequence[float], delta: float, accountant: Accountant = "analytic") -> float:
    """The epsilon that releases of the same images by Gaussian noise have spent together, at this delta.

    Args:
        multipliers: of each release, its noise over its sensitivity.
        delta: in (0, 1).
        accountant: "analytic", "pld" or "rdp".

    Raises:
        ValueError: for no release, a multiplier that is not positive, a delta out of range, or "classic".
        ModuleNotFoundError: as `noise_multiplier`.
    """
    _check(delta, accountant)
    if not multipliers or not all(0 < z < math.inf for z in multipliers):
        raise ValueError(f"each release needs a positive and finite noise multiplier, got {list(multipliers)}")
    if accountant == "classic":
        raise ValueError("accountant='classic' gives noise for an epsilon only; use 'analytic', which is exact")
    if accountant == "analytic":
        together = sum(z**-2 for z in multipliers) ** -0.5
        if _log_delta(together, 0.0) <= math.log(delta):
            return 0.0
        return _solve(lambda epsilon: _log_delta(together, epsilon) - math.log(delta))
    library, spent = require_accountants(), _fresh(accountant)
    spent.compose(library.ComposedDpEvent([library.GaussianDpEvent(z) for z in multipliers]))
    return float(spent.get_epsilon(delta))


def counted_epsilon(multiplier: float, releases: int, delta: float) -> float:
    """The epsilon that releases of the same images by equal Gaussian noise spend together, by dp-accounting alone."""
    return float(require_accountants().get_epsilon_gaussian(multiplier / releases**0.5, delta))


def federated_epsilon(multiplier: float, releases: int, delta: float) -> float:
    """The epsilon of federated averaging with noise, by which one client may be replaced by any other."""
    _check(delta, "rdp")
    if releases == 0 or multiplier == 0:
        return math.inf if releases else 0.0
    library, spent = require_accountants(), _fresh("rdp")
    spent.compose(library.GaussianDpEvent(multiplier / 2), releases)  # replacing moves by twice the longest update
    return float(spent.get_epsilon(delta))


def _log_delta(multiplier: float, epsilon: float) -> float:
    """log delta of one release: log(Phi(a - b) - e^epsilon Phi(-a - b)), a = 1 / (2 z) and b = epsilon z."""
    a, b = 0.5 / multiplier, epsilon * multiplier
    first, second = torch.special.log_ndtr(torch.tensor([a - b, -a - b], dtype=torch.float64)).tolist()
    second += epsilon
    return first + math.log1p(-math.exp(second - first)) if second < first else -math.inf


def _solve(falling: Callable[[float], float]) -> float:
    """The positive root of a falling function by bisection, rounded up: never less noise than is needed."""
    low, high = 1.0, 1.0
    while falling(low) < 0:
        low /= 2
    while falling(high) > 0:
        high *= 2
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if falling(middle) > 0 else (low, middle)
    return high


def _classic(epsilon: float, delta: float) -> float:
    multiplier = math.sqrt(2 * math.log(1.25 / delta)) / epsilon
    if multiplier < noise_multiplier(epsilon, delta):
        raise ValueError(f"accountant='classic' gives too little noise at epsilon={epsilon:g}: use 'analytic'")
    return multiplier


def _check(delta: float, accountant: str) -> None:
    if accountant not in ("analytic", "pld", "rdp", "classic"):
        raise ValueError(f"accountant must be 'analytic', 'pld', 'rdp' or 'classic', got {accountant!r}")
    if not 0 < delta < 1:
        raise ValueError(f"delta must be between 0 and 1, got {delta}")


def require_accountants() -> Any:
    """dp-accounting; ModuleNotFoundError with the remedy where it is missing."""
    owner = "accountant='pld', 'rdp' or that of a deployment's promises (accountant='analytic' needs no extra)"
    return need("dp_accounting", "privacy", owner)


def _fresh(accountant: Accountant) -> Any:
    from dp_accounting import pld, rdp

    return pld.PLDAccountant() if accountant == "pld" else rdp.RdpAccountant()
