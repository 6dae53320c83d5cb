"""The strength of a membership inference attack, from its signal for members and for others.

The largest difference of true and false positive rates over thresholds is above 0 for a signal that knows nothing: of
20 and 20 images it is 0.17 on average. So a threshold is chosen on one half of the images and measured on the other,
and the other way round; for a signal that knows nothing the estimate is then 0 on average.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from scipy.stats import binom, rankdata
from torch import Tensor

from fedgen.evaluation.audit.estimates import LEVEL, IntervalEstimate, combined, proportion, rank_interval
from fedgen.seeds import subset

RATE = 0.01  # of others that are taken for members, where the share of members that are found is told
_LARGEST = 1e300  # in the place of infinity, such as the log-density of what a model holds for impossible


@dataclass(frozen=True)
class AttackStrength:
    """The success of an attack on equally many members and others.

    Args:
        name: a client's, or an aggregate.
        pairs: members, and as many others.
        auc: chance that the signal is larger for a member than for another image; 0.5 for one that knows nothing.
        auc_error: standard error of `auc` (DeLong et al. 1988).
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


def measure_attack(name: str, members: Tensor, others: Tensor, seed: int) -> AttackStrength:
    """The strength of a signal.

    Args:
        name: of the result.
        members: the signal [n] of images that were trained on; larger where it takes an image for one of these.
        others: [n], of images from the same distribution.
        seed: of the halves in which thresholds are chosen.

    Raises:
        ValueError: for NaN.
    """
    inside, outside = (_as_numbers(part, name) for part in (members, others))
    area, error = auc_with_error(inside, outside)
    return AttackStrength(
        name,
        len(inside),
        rank_interval(area, len(inside), len(outside)),
        error,
        advantage(inside, outside, seed, name),
        found_at(inside, outside),
    )


def average_attack(name: str, parts: list[AttackStrength], weights: list[float]) -> AttackStrength:
    """The weighted mean of attacks on clients, as independent estimates.

    Args:
        name: of the result.
        parts: of the clients.
        weights: of the clients, summing to 1.
    """
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


def auc_with_error(members: np.ndarray, others: np.ndarray) -> tuple[float, float]:
    """The area under the ROC curve and its standard error by DeLong et al. 1988; ties count one half.

    Args:
        members: signals [m].
        others: signals [n].
    """
    count, against = len(members), len(others)
    ranks = rankdata(np.concatenate([members, others]))
    beaten = (ranks[:count] - rankdata(members)) / against  # by each member, a share of the others
    beating = 1 - (ranks[count:] - rankdata(others)) / count
    variance = sum(float(part.var(ddof=1)) / len(part) if len(part) > 1 else 0.0 for part in (beaten, beating))
    return float(beaten.mean()), variance**0.5


def advantage(members: np.ndarray, others: np.ndarray, seed: int, name: str) -> IntervalEstimate:
    """True less false positive rate at a threshold of each half of the images, measured on the other half.

    Args:
        members: signals [n].
        others: signals [n].
        seed: of the halves.
        name: whose images, part of the halves' seed.
    """
    first = [_half(len(part), seed, f"{name}, {which}") for part, which in ((members, "members"), (others, "others"))]
    hits = false = 0
    for chosen in (first, [~half for half in first]):
        threshold = best_threshold(members[chosen[0]], others[chosen[1]])
        hits += int((members[~chosen[0]] >= threshold).sum())
        false += int((others[~chosen[1]] >= threshold).sum())
    return combined([proportion(hits, len(members)), proportion(false, len(others))], [1, -1])


def best_threshold(members: np.ndarray, others: np.ndarray) -> float:
    """The threshold of the largest difference of true and false positive rates; the middle one of several.

    Thresholds lie halfway between neighbouring signals.

    Args:
        members: signals [m].
        others: signals [n].
    """
    values = np.unique(np.concatenate([members, others]))
    if len(values) == 1:
        return float(values[0])
    above = [1 - np.searchsorted(np.sort(part), values[1:]) / len(part) for part in (members, others)]
    gains = above[0] - above[1]
    best = np.flatnonzero(gains >= gains.max() - 1e-12)
    place = int(best[len(best) // 2])
    return float((values[place] + values[place + 1]) / 2)


def found_at(members: np.ndarray, others: np.ndarray, rate: float = RATE) -> IntervalEstimate | None:
    """The share of members with a larger signal than all but a share `rate` of other images.

    The threshold is the k-th largest signal of the others, k the whole part of rate (n + 1): a further one of them is
    above it with a chance of at most `rate`. The interval adds to Wilson's, for the members, where the threshold of all
    such images may lie: between the order statistics that a binomial number of others gives.

    Args:
        members: signals [m].
        others: signals [n].
        rate: of others taken for members.

    Returns:
        The estimate; None where so few others tell nothing of how high the threshold may be.
    """
    count = len(others)
    fewest, most = (int(binom.ppf(level, count, rate)) for level in ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    if fewest < 1:
        return None
    falling = np.sort(others)[::-1]
    shares = [float((members > falling[place - 1]).mean()) for place in (fewest, most + 1)]
    own = proportion(int((members > falling[int(rate * (count + 1)) - 1]).sum()), len(members))
    down = math.hypot(own.value - own.low, own.value - min(shares[0], own.value))
    up = math.hypot(own.high - own.value, max(shares[1], own.value) - own.value)
    return IntervalEstimate(own.value, own.value - down, own.value + up).within(0, 1)


def _half(count: int, seed: int, name: str) -> np.ndarray:
    """Draw half of the positions 0 to count - 1: bool [count]."""
    chosen = np.zeros(count, dtype=bool)
    chosen[subset(count, count // 2, seed, "half", name).numpy()] = True
    return chosen


def _as_numbers(signals: Tensor, name: str) -> np.ndarray:
    if torch.isnan(signals).any():
        place = int(torch.isnan(signals).nonzero()[0])
        raise ValueError(f"the attack's signal of image {place} of {name} is NaN; check the model's weights")
    return signals.double().clamp(-_LARGEST, _LARGEST).cpu().numpy()
