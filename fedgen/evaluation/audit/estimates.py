"""Estimates with their confidence intervals, and how those of sums and differences follow from them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

LEVEL = 0.95  # of all intervals
QUANTILE = NormalDist().inv_cdf((1 + LEVEL) / 2)
HALVINGS = 60  # of an interval in which a bound is sought


@dataclass(frozen=True)
class IntervalEstimate:
    """A number and its interval at 95 %.

    Args:
        value: the estimate.
        low: the interval's lower end.
        high: its upper end.
    """

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"

    def within(self, least: float, most: float) -> "IntervalEstimate":
        """The same with an interval that does not leave the quantity's range."""
        return IntervalEstimate(self.value, max(self.low, least), min(self.high, most))


def proportion(hits: int, trials: int) -> IntervalEstimate:
    """The share of hits, with Wilson's score interval (1927).

    Args:
        hits: from 0 to `trials`.
        trials: at least 1.
    """
    share, square = hits / trials, QUANTILE**2
    centre = (share + square / (2 * trials)) / (1 + square / trials)
    reach = QUANTILE * math.sqrt(share * (1 - share) / trials + square / (4 * trials**2)) / (1 + square / trials)
    return IntervalEstimate(share, centre - reach, centre + reach).within(0, 1)


def combined(parts: Sequence[IntervalEstimate], factors: Sequence[float]) -> IntervalEstimate:
    """The sum of factor times estimate, of independent estimates.

    Each part's distance to the interval's end on the side in question stands for its error, and these add in squares
    (Newcombe 1998, doi 10.1002/(SICI)1097-0258(19980430)17:8<873::AID-SIM779>3.0.CO;2-I; Zou and Donner 2008): an
    interval stays one-sided where a part lies at the end of its range.

    Args:
        parts: with their intervals.
        factors: one a part.
    """
    value = sum(factor * part.value for part, factor in zip(parts, factors))
    down = [factor * (part.value - (part.low if factor > 0 else part.high)) for part, factor in zip(parts, factors)]
    up = [factor * ((part.high if factor > 0 else part.low) - part.value) for part, factor in zip(parts, factors)]
    return IntervalEstimate(value, value - math.hypot(*down), value + math.hypot(*up))


def rank_interval(area: float, positives: int, negatives: int) -> IntervalEstimate:
    """An area under a ROC curve, with the interval of Newcombe 2006 (doi 10.1002/sim.2324, method 5).

    It holds the areas that differ from the estimate by at most as many of their own standard errors as the level says;
    with equal numbers that of 1/2 is exactly the Mann-Whitney test's. It has a width where the estimate is 0 or 1, as
    DeLong's has not.

    Args:
        area: the estimate, in [0, 1].
        positives: how many.
        negatives: how many.
    """

    def lower(estimate: float) -> float:
        """The least area that does not differ from the estimate; below it the difference falls steadily."""
        low, high = 0.0, estimate
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            error = QUANTILE * math.sqrt(_rank_variance(middle, positives, negatives))
            low, high = (middle, high) if estimate - middle > error else (low, middle)
        return low

    return IntervalEstimate(area, lower(area), 1 - lower(1 - area))


def _rank_variance(area: float, positives: int, negatives: int) -> float:
    """Return the variance of an estimated area, of exponential scores (Hanley and McNeil 1982) in numbers that are
    made alike.
    """
    spread = (1 - area) / (2 - area) + area / (1 + area)
    return area * (1 - area) * (1 + ((positives + negatives) / 2 - 1) * spread) / (positives * negatives)
