"""The strength of a membership inference attack, from its signal for members and for others.

The largest difference of true and false positive rates over thresholds is above 0 for a signal that knows nothing: of
20 and 20 images it is 0.17 on average. So a threshold is chosen on one half of the images and measured on the other,
and the other way round; for a signal that knows nothing the estimate is then 0 on average.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import torch
from scipy.stats import binom, rankdata
from torch import Tensor

from fedgen.seeds import subset

LEVEL = 0.95  # of all intervals
QUANTILE = NormalDist().inv_cdf((1 + LEVEL) / 2)
HALVINGS = 60  # of an interval in which a bound is sought
RATE = 0.01  # of others that are taken for members, where the share of members that are found is stored
_LARGEST = 1e300  # in the place of infinity, such as the log-density of what a model holds for impossible


@dataclass(frozen=True)
class IntervalEstimate:
    """A number and its interval at 95 %, from `low` to `high`."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"

    def within(self, least: float, most: float) -> "IntervalEstimate":
        """The same with an interval that does not leave the quantity's range."""
        return IntervalEstimate(self.value, max(self.low, least), min(self.high, most))


def proportion(hits: int, trials: int) -> IntervalEstimate:
    """The share of hits, with Wilson's score interval (1927)."""
    share, square = hits / trials, QUANTILE**2
    centre = (share + square / (2 * trials)) / (1 + square / trials)
    reach = QUANTILE * math.sqrt(share * (1 - share) / trials + square / (4 * trials**2)) / (1 + square / trials)
    return IntervalEstimate(share, centre - reach, centre + reach).within(0, 1)


def combined(parts: Sequence[IntervalEstimate], factors: Sequence[float], correlation: float = 0.0) -> IntervalEstimate:
    """The sum of factor times estimate, of independent estimates; or of two, as Newcombe 1998 combines correlated ones
    (doi 10.1002/(SICI)1097-0258(19981130)17:22<2635::AID-SIM954>3.0.CO;2-C, method 8)."""
    value = sum(factor * part.value for part, factor in zip(parts, factors))
    down = [factor * (part.value - (part.low if factor > 0 else part.high)) for part, factor in zip(parts, factors)]
    up = [factor * ((part.high if factor > 0 else part.low) - part.value) for part, factor in zip(parts, factors)]
    shared = math.copysign(2 * correlation, correlation * math.prod(factors))
    low, high = (math.sqrt(max(0.0, sum(x * x for x in far) + shared * math.prod(far))) for far in (down, up))
    return IntervalEstimate(value, value - low, value + high)


def rank_interval(area: float, positives: int, negatives: int, shrink: float = 1.0) -> IntervalEstimate:
    """An area under a ROC curve, with the interval of Newcombe 2006 (doi 10.1002/sim.2324, method 5), whose errors are
    multiplied by `shrink`."""

    def variance(area: float) -> float:
        """The variance of an estimated area, of exponential scores (Hanley and McNeil 1982), of equal mean numbers."""
        spread = (1 - area) / (2 - area) + area / (1 + area)
        return area * (1 - area) * (1 + ((positives + negatives) / 2 - 1) * spread) / (positives * negatives)

    def lower(estimate: float) -> float:
        """The least area that does not differ from the estimate; below it the difference falls steadily."""
        low, high = 0.0, estimate
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            far = estimate - middle > shrink * QUANTILE * math.sqrt(variance(middle))
            low, high = (middle, high) if far else (low, middle)
        return low

    return IntervalEstimate(area, lower(area), 1 - lower(1 - area))


@dataclass(frozen=True)
class AttackStrength:
    """The success of an attack on equally many members and others.

    Args:
        name: a client's, or an aggregate.
        pairs: members, and as many others.
        auc: chance that the signal is larger for a member than for another image; 0.5 for one that knows nothing.
        auc_error: standard error of `auc` (DeLong et al. 1988; over pairs where members and others share noise).
        advantage: true less false positive rate at a threshold that was chosen on other images; 0 for such a signal.
        found: share of the members that are found where one other image in a hundred is taken for one; None of fewer
            than 368 images, whose interval would begin at 0 whatever the signal.
    """

    name: str
    pairs: int
    auc: IntervalEstimate
    auc_error: float
    advantage: IntervalEstimate
    found: IntervalEstimate | None


def measure_attack(name: str, members: Tensor, others: Tensor, seed: int, paired: bool = False) -> AttackStrength:
    """The strength of signals of members and of as many others; `paired` if the k-th of both share noise."""
    for signals in (members, others):
        if torch.isnan(signals).any():
            place = int(torch.isnan(signals).nonzero()[0])
            raise ValueError(f"the attack's signal of image {place} of {name} is NaN; check the model's weights")
    inside, outside = (part.double().clamp(-_LARGEST, _LARGEST).cpu().numpy() for part in (members, others))
    area, error = auc_with_error(inside, outside, paired)
    alone = auc_with_error(inside, outside)[1] if paired else error
    interval = rank_interval(area, len(inside), len(outside), error / alone if alone > 0 else 1.0)
    gain = advantage(inside, outside, seed, name, paired)
    return AttackStrength(name, len(inside), interval, error, gain, found_at(inside, outside))


def average_attack(name: str, parts: list[AttackStrength], weights: list[float]) -> AttackStrength:
    found = [part.found for part in parts if part.found is not None]
    error = sum((weight * part.auc_error) ** 2 for weight, part in zip(weights, parts)) ** 0.5
    return AttackStrength(
        name,
        sum(part.pairs for part in parts),
        combined([part.auc for part in parts], weights).within(0, 1),
        error,
        combined([part.advantage for part in parts], weights).within(-1, 1),
        combined(found, weights).within(0, 1) if len(found) == len(parts) else None,
    )


def auc_with_error(members: np.ndarray, others: np.ndarray, paired: bool = False) -> tuple[float, float]:
    """The area under the ROC curve and its standard error by DeLong et al. 1988; ties count one half."""
    count, against = len(members), len(others)
    ranks = rankdata(np.concatenate([members, others]))
    beaten = (ranks[:count] - rankdata(members)) / against  # by each member, a share of the others
    beating = 1 - (ranks[count:] - rankdata(others)) / count
    sides = (beaten + beating,) if paired else (beaten, beating)  # pairs that share noise are what varies on its own
    variance = sum(float(part.var(ddof=1)) / len(part) if len(part) > 1 else 0.0 for part in sides)
    return float(beaten.mean()), variance**0.5


def advantage(members: np.ndarray, others: np.ndarray, seed: int, name: str, paired: bool = False) -> IntervalEstimate:
    """True less false positive rate at a threshold of each half of the images, measured on the other half.

    Thresholds vary by chance. Pairs that share noise have errors so small that this matters: their interval is at least
    as wide as the difference of the two halves implies.
    """
    inside, outside = (np.zeros(len(part), dtype=bool) for part in (members, others))
    for half, which in ((inside, "members"), (outside, "others")):
        half[subset(len(half), len(half) // 2, seed, "half", f"{name}, {which}").numpy()] = True
    hits, false = np.zeros(len(members)), np.zeros(len(others))
    for chosen, against in ((inside, outside), (~inside, ~outside)):
        threshold = best_threshold(members[chosen], others[against])
        hits[~chosen], false[~against] = members[~chosen] >= threshold, others[~against] >= threshold
    varies = paired and 0 < hits.mean() < 1 and 0 < false.mean() < 1
    together = float(np.corrcoef(hits, false)[0, 1]) if varies else 0.0
    shares = proportion(int(hits.sum()), len(members)), proportion(int(false.sum()), len(others))
    found = combined(shares, [1, -1], together)
    gains = [hits[own].mean() - false[other].mean() for own, other in ((inside, outside), (~inside, ~outside))]
    apart = QUANTILE * abs(gains[0] - gains[1]) / 2 if paired else 0.0
    low, high = min(found.low, found.value - apart), max(found.high, found.value + apart)
    return IntervalEstimate(found.value, low, high).within(-1, 1)


def best_threshold(members: np.ndarray, others: np.ndarray) -> float:
    """The threshold of the largest difference of true and false positive rates; the middle one of several."""
    values = np.unique(np.concatenate([members, others]))
    if len(values) == 1:
        return float(values[0])
    above = [1 - np.searchsorted(np.sort(part), values[1:]) / len(part) for part in (members, others)]
    gains = above[0] - above[1]
    best = np.flatnonzero(gains >= gains.max() - 1e-12)
    place = int(best[len(best) // 2])
    return float((values[place] + values[place + 1]) / 2)


def found_at(members: np.ndarray, others: np.ndarray) -> IntervalEstimate | None:
    """The share of members with a larger signal than all but a share `RATE` of other images."""
    count = len(others)
    fewest, most = (int(binom.ppf(level, count, RATE)) for level in ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    if fewest < 1:
        return None
    falling = np.sort(others)[::-1]
    shares = [float((members > falling[place - 1]).mean()) for place in (fewest, most + 1)]
    own = proportion(int((members > falling[int(RATE * (count + 1)) - 1]).sum()), len(members))
    down = math.hypot(own.value - own.low, own.value - min(shares[0], own.value))
    up = math.hypot(own.high - own.value, max(shares[1], own.value) - own.value)
    return IntervalEstimate(own.value, own.value - down, own.value + up).within(0, 1)
