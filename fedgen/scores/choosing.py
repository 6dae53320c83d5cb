"""Choosing among many checkpoints: the set that holds the best, the value of the winner, and pairs ordered differently.

Of many checkpoints the best is the luckiest: its own interval leaves out that it was chosen, and of all pairs some
differ by more than 1.96 combined errors by chance alone. Here values are normal with a known covariance, as scores of
many images are, less is better, and quantiles are those of seeded draws.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

LEVEL = 0.95
DRAWS = 2000
BETA = 0.005  # of the hybrid interval's error, spent on where the mean can be at all
STEPS = 60  # of a bisection
CELLS = 2**22  # numbers held at once

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Winner:
    """The best of several values, and what can be said of its mean although it was chosen.

    Args:
        place: of the best.
        median: its mean, too small as often as too large.
        low: end of the interval.
        high: likewise.
    """

    place: int
    median: float
    low: float
    high: float


def best_set(values: Sequence[float], errors: ArrayLike, level: float = LEVEL, seed: int = 0) -> NDArray[np.bool_]:
    """The values [M] that may be of the best, as a mask: the set holds it with this probability.

    Hsu's comparisons with the best (1984, Annals of Statistics 12), inverted: value j is in if
    max_k (v_j - v_k) / s_jk, with the errors s of differences, is at most the quantile of the same of normal draws.

    Args:
        values: less is better; those that are not finite are out.
        errors: standard errors [M] of independent values, or their covariance [M, M].
        level: the probability.
        seed: of the draws.

    Examples:
        >>> from fedgen.scores.choosing import best_set
        >>> best_set([1.0, 1.1, 3.0], errors=[0.2, 0.2, 0.2]).tolist()
        [True, True, False]
    """
    centre, covariance = _checked(values, errors)
    known = np.flatnonzero(np.isfinite(centre))
    found = np.zeros(len(centre), bool)
    draws = _draws(covariance[np.ix_(known, known)], seed)
    for place, own in enumerate(known.tolist()):
        spread = _spreads(covariance, own, known)
        others = np.flatnonzero(spread > 0)
        best = centre[own] <= centre[known][spread == 0].min(initial=np.inf)
        if not len(others):
            found[own] = best
            continue
        far = ((centre[own] - centre[known][others]) / spread[others]).max()
        steps = ((draws[:, [place]] - draws[:, others]) / spread[others]).max(1)
        found[own] = best and far <= np.quantile(steps, level)
    return found


def winner(values: Sequence[float], errors: ArrayLike, level: float = LEVEL, seed: int = 0) -> Winner:
    """The best value with an interval that holds although it was chosen: the hybrid one of Andrews, Kitagawa and
    McCloskey (2024, "Inference on Winners", Quarterly Journal of Economics).

    Args:
        values: [M], less is better.
        errors: as for `best_set`; likewise level and seed.
        level: of the interval.
        seed: of the draws.

    Raises:
        ValueError: for values none of which is finite.

    Examples:
        >>> from fedgen.scores.choosing import winner
        >>> found = winner([1.0, 1.1, 3.0], errors=[0.2, 0.2, 0.2])
        >>> found.place, found.median > 1.0  # the best of two close ones is the luckier
        (0, True)
    """
    centre, covariance = _checked(values, errors)
    known = np.flatnonzero(np.isfinite(centre))
    if not len(known):
        raise ValueError("none of the values is finite, so that none is the best")
    place = int(known[centre[known].argmin()])
    own, deviation = -centre[place], float(covariance[place, place] ** 0.5)
    if deviation == 0:
        return Winner(place, -own, -own, -own)
    others = known[known != place]
    shares = covariance[others, place] / deviation**2
    rest = -centre[others] - shares * own
    below, above = shares < 1, shares > 1
    low = float((rest[below] / (1 - shares[below])).max(initial=-np.inf))
    high = float((rest[above] / (1 - shares[above])).min(initial=np.inf))
    draws = _draws(covariance[np.ix_(known, known)], seed, 5 * DRAWS)
    scales = covariance[known, known] ** 0.5
    reach = float(np.quantile((np.abs(draws[:, scales > 0]) / scales[scales > 0]).max(1), 1 - BETA)) * deviation
    part = (1 - level - BETA) / (2 * (1 - BETA))
    ends = [_mean_at(own, deviation, (low, high), reach, quantile) for quantile in (1 - part, 0.5, part)]
    return Winner(place, -ends[1], -ends[2], -ends[0])


def inverted_pairs(
    first: Sequence[float],
    second: Sequence[float],
    errors: tuple[ArrayLike, ArrayLike],
    level: float = LEVEL,
    seed: int = 0,
) -> list[tuple[int, int]]:
    """The pairs (better by the first, better by the second column) that both columns order, and differently.

    All differences of both columns are one family: the probability that any of the orders is wrong is at most
    1 - level (Romano and Wolf 2005, step-down with the maximum of |difference| / error).

    Args:
        first: [M], less is better.
        second: likewise, of the same checkpoints.
        errors: of each column, as for `best_set`; draws of the columns are independent, which is safe.
        level: the probability that all orders are right.
        seed: of the draws.

    Examples:
        >>> from fedgen.scores.choosing import inverted_pairs
        >>> inverted_pairs([1.0, 2.0, 2.1], [5.0, 3.0, 3.1], errors=([0.1] * 3, [0.1] * 3))
        [(0, 1), (0, 2)]
    """
    columns = [_checked(values, spread) for values, spread in zip((first, second), errors, strict=True)]
    one, other = np.triu_indices(len(first), 1)
    sizes, spreads = [], []
    for centre, covariance in columns:
        with np.errstate(invalid="ignore"):
            gaps = np.nan_to_num(centre[one] - centre[other], nan=0.0)
        spread = np.sqrt(np.maximum(_variances(covariance, one, other), 0))
        sizes.append(
            np.where(spread > 0, np.abs(gaps) / np.where(spread > 0, spread, 1), np.where(gaps != 0, np.inf, 0))
        )
        spreads.append(spread)
    decided = np.isinf(np.stack(sizes))
    draws = [_draws(covariance, seed + place) for place, (_, covariance) in enumerate(columns)]
    while True:
        left = ~decided & (np.stack(sizes) > 0)
        most = _largest(draws, (one, other), spreads, left)
        newly = left & (np.stack(sizes) > np.quantile(most, level))
        if not newly.any():
            break
        decided |= newly
    ways = [np.sign(centre[one] - centre[other]) for centre, _ in columns]
    both = np.flatnonzero(decided.all(0) & (ways[0] * ways[1] < 0))
    return [(int(one[p]), int(other[p])) if ways[0][p] < 0 else (int(other[p]), int(one[p])) for p in both]


def _checked(values: Sequence[float], errors: ArrayLike) -> tuple[Floats, Floats]:
    centre, given = np.asarray(values, float), np.asarray(errors, float)
    covariance = np.diag(given**2) if given.ndim == 1 else given
    if covariance.shape != (len(centre), len(centre)) or not np.isfinite(covariance).all():
        raise ValueError(f"{len(centre)} values need as many finite errors, or a covariance of them, got {given.shape}")
    return centre, covariance


def _draws(covariance: Floats, seed: int, number: int = DRAWS) -> Floats:
    """Draws [number, M] of N(0, covariance)."""
    noise = np.random.default_rng(seed).standard_normal((number, len(covariance)))
    if not np.any(covariance - np.diag(covariance.diagonal())):
        return np.asarray(noise * covariance.diagonal() ** 0.5)
    values, vectors = np.linalg.eigh(covariance)
    return np.asarray(noise @ (vectors * np.sqrt(np.maximum(values, 0))).T)


def _variances(covariance: Floats, one: NDArray[np.int64], other: NDArray[np.int64]) -> Floats:
    own = covariance.diagonal()
    return np.asarray(own[one] + own[other] - 2 * covariance[one, other])


def _spreads(covariance: Floats, own: int, known: NDArray[np.int64]) -> Floats:
    """The errors of differences to one value; 0 to itself."""
    return np.sqrt(np.maximum(_variances(covariance, np.full_like(known, own), known), 0) * (known != own))


def _largest(
    draws: Sequence[Floats],
    pairs: tuple[NDArray[np.int64], NDArray[np.int64]],
    spreads: Sequence[Floats],
    left: NDArray[np.bool_],
) -> Floats:
    """The largest |difference| / error of the pairs that are left [2, P], of each draw."""
    most = np.zeros(len(draws[0]))
    for column, spread, some in zip(draws, spreads, left):
        for part in _parts(np.flatnonzero(some), len(column)):
            steps = np.abs(column[:, pairs[0][part]] - column[:, pairs[1][part]]) / spread[part]
            most = np.maximum(most, steps.max(1, initial=0.0))
    return most


def _parts(places: NDArray[np.int64], rows: int) -> Iterator[NDArray[np.int64]]:
    step = max(1, CELLS // rows)
    yield from (places[start : start + step] for start in range(0, len(places), step))


def _mean_at(own: float, deviation: float, ends: tuple[float, float], reach: float, quantile: float) -> float:
    """The mean of which a normal value, within the ends and `reach` of it, is at most `own` with this probability."""
    from scipy.special import log_ndtr  # needed by a choice alone, and slow to import

    def probability(mean: float) -> float:
        bounds = max(ends[0], mean - reach), min(ends[1], mean + reach)
        low, at, high = (
            (bound - mean) / deviation for bound in (bounds[0], min(max(own, bounds[0]), bounds[1]), bounds[1])
        )
        if low > 0:  # the upper tail, mirrored, where digits are left
            low, at, high = -high, -at, -low
            return 1 - _share(log_ndtr(low), log_ndtr(at), log_ndtr(high))
        return _share(log_ndtr(low), log_ndtr(at), log_ndtr(high))

    low, high = own - reach, own + reach
    for _ in range(STEPS):
        mean = (low + high) / 2
        low, high = (mean, high) if probability(mean) > quantile else (low, mean)
    return (low + high) / 2


def _share(low: float, at: float, high: float) -> float:
    """(Phi(at) - Phi(low)) / (Phi(high) - Phi(low)), of logarithms of Phi."""
    above = -np.expm1(low - at) * np.exp(at - high) if at > low else 0.0
    whole = -np.expm1(low - high)
    return float(above / whole) if whole > 0 else 0.5
