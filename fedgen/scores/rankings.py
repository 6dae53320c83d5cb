"""Ranks of the same generators by two aggregates, and what of them holds: the set of the best, the winner's value.

Of many checkpoints the best is the luckiest: its own interval leaves out that it was chosen, and of all pairs some
differ by more than 1.96 combined errors by chance alone. Here values are normal with a known covariance, as scores of
many images are, less is better, and quantiles are those of seeded draws.
"""

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Z = 1.96  # two-sided 95 percent of a normal
CELLS = 2**22  # numbers held at once

Floats = NDArray[np.float64]
Columns = tuple[Sequence[float], Sequence[float]]
Directions = tuple[bool, bool]


@dataclass(frozen=True)
class Inversion:
    """Two generators that two columns order differently.

    Args:
        first: place of the one that is better in the first column.
        second: place of the one that is better in the second column.
        beyond_error: whether both differences exceed 1.96 combined standard errors.

    Examples:
        >>> from fedgen.scores import inversions
        >>> inversions([1.0, 2.0], [2.0, 1.0])
        [Inversion(first=0, second=1, beyond_error=True)]
    """

    first: int
    second: int
    beyond_error: bool


def kendall_tau(a: Sequence[float], b: Sequence[float]) -> float:
    """Kendall's tau-b in [-1, 1]: 1 if the columns rise together, -1 if in opposite order; ties are allowed for.

    Between a column where smaller is better and one where larger is, tau of the ranking is minus this.

    Raises:
        ValueError: for columns of different length, fewer than two values, NaN, or a column of equal values.

    Examples:
        >>> from fedgen.scores import kendall_tau
        >>> round(kendall_tau([1, 2, 3], [1, 3, 2]), 4)  # two of three pairs agree, one does not: (2 - 1) / 3
        0.3333
    """
    _check(a, b)
    counts = np.zeros(3, np.int64)  # pairs that agree less those that do not, those untied in either column; all twice
    columns = np.asarray(a, float), np.asarray(b, float)
    for rows in _parts(np.arange(len(a)), len(a)):
        one, other = ((c[rows, None] > c).view(np.int8) - (c[rows, None] < c).view(np.int8) for c in columns)
        counts += (one * other).sum(dtype=np.int64), np.count_nonzero(one), np.count_nonzero(other)
    both, first_untied, second_untied = (counts // 2).tolist()
    if 0 in (first_untied, second_untied):
        raise ValueError("a column of equal values ranks nothing; leave it out")
    return float(both / (first_untied * second_untied) ** 0.5)


def inversions(
    a: Sequence[float],
    b: Sequence[float],
    errors_a: Sequence[float] | None = None,
    errors_b: Sequence[float] | None = None,
    higher_is_better: Directions = (False, False),
) -> list[Inversion]:
    """Every pair of generators that the columns order strictly differently.

    Args:
        a: a score of each generator.
        b: another score of each.
        errors_a: standard errors of `a`; zero if None. Where all were scored against the same images, the generated
            part (`FederatedScore.error_parts["generated"]`) is the one that differences have.
        errors_b: standard errors of `b`.
        higher_is_better: whether larger is better in `a`, and in `b`: (False, True) sets an FID against a precision.

    Raises:
        ValueError: for columns of different length or fewer than two values.

    Examples:
        >>> from fedgen.scores import inversions
        >>> avg, all = [1.0, 2.0, 3.0], [1.0, 3.0, 2.0]
        >>> [(pair.first, pair.second) for pair in inversions(avg, all)]
        [(1, 2)]
    """
    _check(a, b)
    columns = []
    for column, spread, higher in zip((a, b), (errors_a, errors_b), higher_is_better, strict=True):
        spread = spread or [0.0] * len(column)
        _check(spread, column)
        columns.append((np.asarray(column, float) * (-1.0 if higher else 1.0), np.asarray(spread, float)))
    return [pair for rows in _parts(np.arange(len(a)), len(a)) for pair in _inverted(rows, columns)]


def _inverted(rows: NDArray[np.int64], columns: Sequence[tuple[Floats, Floats]]) -> Iterator[Inversion]:
    """The inverted pairs of these generators and later ones."""
    (first, _), (second, _) = columns
    with np.errstate(invalid="ignore"):  # between two infinite values there is no order
        one, other = np.nonzero((first[rows, None] - first) * (second[rows, None] - second) < 0)
    one, other = rows[one][other > rows[one]], other[other > rows[one]]
    clear = np.ones(len(one), bool)
    for values, spread in columns:
        clear &= np.abs(values[one] - values[other]) > Z * (spread[one] ** 2 + spread[other] ** 2) ** 0.5
    better = np.where(first[one] < first[other], (one, other), (other, one))
    yield from map(Inversion, *better.tolist(), clear.tolist())


@dataclass(frozen=True)
class ExcessInversions:
    """Inversions of two aggregates over heterogeneous clients, next to those over IID clients of the same sizes.

    Args:
        found: over the clients.
        control: over the IID clients.

    Examples:
        >>> from fedgen.scores import excess_inversions
        >>> found = excess_inversions(([1, 2, 3], [3, 2, 1]), ([1, 2, 3], [1, 2, 3]))
        >>> found.excess
        3
    """

    found: list[Inversion]
    control: list[Inversion]

    @property
    def excess(self) -> int:
        """The number of pairs that are inverted beyond those of the control; negative if fewer."""
        return len(self.found) - len(self.control)

    @property
    def excess_beyond_error(self) -> int:
        """The same of pairs that are inverted beyond their errors."""
        return sum(pair.beyond_error for pair in self.found) - sum(pair.beyond_error for pair in self.control)

    @property
    def evidence(self) -> list[Inversion]:
        """The pairs inverted beyond their errors over the clients and not at all in the control."""
        innocent = {frozenset((pair.first, pair.second)) for pair in self.control}
        return [p for p in self.found if p.beyond_error and frozenset((p.first, p.second)) not in innocent]


def excess_inversions(
    columns: Columns,
    control: Columns,
    errors: Columns | None = None,
    control_errors: Columns | None = None,
    higher_is_better: Directions = (False, False),
) -> ExcessInversions:
    """The inversions that heterogeneity adds to those that small clients cause by themselves.

    FID's bias is larger at a small client than at the pool, and different for every generator: over IID clients, where
    avg and all measure the same, they still order pairs differently (2 of 45 at 200 images a client, 9 at 20). Only the
    excess over such a control is evidence; repeat it over several IID partitions, as the control is a draw too.

    Args:
        columns: avg and all of each generator over the clients, or two other scores of them.
        control: avg and all of the same generators, in the same order, over an IID partition of the same sizes.
        errors: standard errors of `columns`; zero if None.
        control_errors: standard errors of `control`; given if and only if `errors` are.
        higher_is_better: as in `inversions`, for the columns and the control alike.

    Raises:
        ValueError: for columns of different length, or errors on one side only.

    Examples:
        >>> from fedgen.scores import excess_inversions
        >>> found = excess_inversions(([1, 2, 3], [3, 2, 1]), ([1, 2, 3], [1, 3, 2]))
        >>> len(found.found), len(found.control), found.excess
        (3, 1, 2)
    """
    _check(columns[0], control[0])
    if (errors is None) != (control_errors is None):
        raise ValueError("give errors of both the columns and the control, or of neither: their counts are compared")
    found = []
    for (a, b), spreads in ((columns, errors), (control, control_errors)):
        errors_a, errors_b = spreads or (None, None)
        found.append(inversions(a, b, errors_a, errors_b, higher_is_better))
    return ExcessInversions(*found)


def half_width(values: Sequence[float]) -> float:
    """Half of the 95 % interval of the mean of two or more values, one of each seed, by Student's t."""
    from scipy import stats  # later, as choosing a checkpoint needs none of it

    return float(stats.t.ppf(0.975, len(values) - 1)) * statistics.stdev(values) / len(values) ** 0.5


def _check(a: Sequence[float], b: Sequence[float]) -> None:
    if len(a) != len(b) or len(a) < 2:
        raise ValueError(f"columns need the same length of at least 2, got {len(a)} and {len(b)}")
    if any(value != value for value in (*a, *b)):
        raise ValueError("columns hold NaN; leave out generators without a score")


LEVEL = 0.95
DRAWS = 2000
MOST_DRAWN = 200  # values; of more, Bonferroni's or Sidak's bound stands for quantiles: safe, and a little wider
SHARE = 0.2  # of the hybrid interval's error, spent on where the mean can be at all
STEPS = 60  # of a bisection


@dataclass(frozen=True)
class Winner:
    """The best of several values, and what can be said of its mean although it was chosen.

    Args:
        place: of the best.
        median: its mean, too small as often as too large.
        low, high: ends of the interval.
    """

    place: int
    median: float
    low: float
    high: float


def best_set(values: Sequence[float], errors: ArrayLike, level: float = LEVEL) -> NDArray[np.bool_]:
    """The values [M] that may be of the best, as a mask: the set holds it with this probability.

    Value j is in if the conditional chi-squared test of Cox and Shi (2023, Review of Economic Studies 90) does not
    refute that no mean is below its own: the squared distance of the values to the nearest means of which that is true,
    beside the chi-squared quantile of as many degrees of freedom as others are raised to reach them; if it is one, with
    their refinement, which makes the test of two values the usual one-sided one.

    Args:
        values: less is better; those that are not finite are out.
        errors: standard errors [M] of independent values, or their covariance [M, M].
        level: the probability.

    Examples:
        >>> from fedgen.scores.rankings import best_set
        >>> best_set([1.0, 1.1, 3.0], errors=[0.2, 0.2, 0.2]).tolist()
        [True, True, False]
    """
    centre, covariance = _checked(values, errors)
    known = np.flatnonzero(np.isfinite(centre))
    found = np.zeros(len(centre), bool)
    for own in known.tolist():
        spread = _spreads(covariance, own, known)
        found[own] = centre[own] <= centre[known][spread == 0].min(initial=np.inf)
        others = known[spread > 0]
        if not len(others) or not found[own]:
            continue
        ahead = centre[own] - centre[others]
        if len(known) > MOST_DRAWN:  # a Bonferroni bound
            found[own] = (ahead / spread[spread > 0]).max() <= NormalDist().inv_cdf(1 - (1 - level) / len(others))
        else:
            between = covariance[np.ix_(others, others)] + covariance[own, own]
            between -= covariance[others, [own]] + covariance[others, [own]][:, None]
            found[own] = not _refuted(ahead, between, 1 - level)
    return found


def _refuted(ahead: Floats, covariance: Floats, level: float) -> bool:
    """Whether normal values [K] with this covariance refute that no mean is positive: the test of Cox and Shi."""
    scale = covariance.diagonal() ** 0.5
    # the ridge gives a singular covariance one solution
    ahead, alike = ahead / scale, covariance / np.outer(scale, scale) + 1e-8 * np.eye(len(scale))
    if _chi_squared_tail(float(ahead.max()) ** 2 * bool(ahead.max() > 0), len(ahead)) < level:
        return True  # the distance is at least that to one bound, the degrees of freedom at most all
    forces = _forces(ahead, alike)
    tight = np.flatnonzero(forces)
    distance = float(forces @ ahead)  # squared, from the values to the nearest means of which none is positive
    if len(tight) == 1:
        # The refinement: had the values lain more than the slack within this bound, another one would be the nearest.
        angles, left = alike[tight[0]], alike[tight[0]] * ahead[tight[0]] - ahead
        away = angles < 1 - 1e-9
        slack = (left[away].clip(0) / (1 - angles[away])).min(initial=np.inf)
        level *= 2 * NormalDist().cdf(float(slack))
    return len(tight) > 0 and _chi_squared_tail(distance, len(tight)) < level


def _forces(ahead: Floats, alike: Floats) -> Floats:
    """x >= 0 [K] that minimises x alike x / 2 - x ahead: how hard each bound pulls (Lawson, Hanson 1974)."""
    found = np.zeros(len(ahead))
    held = np.zeros(len(ahead), bool)
    while True:
        left = np.where(held, -np.inf, ahead - alike @ found)
        if left.max() <= 1e-6:
            return found
        held[left.argmax()] = True
        while True:
            aim = np.zeros(len(ahead))
            aim[held] = np.linalg.solve(alike[np.ix_(held, held)], ahead[held])
            crossed = held & (aim <= 0)
            if not crossed.any():
                break
            found += (found[crossed] / (found[crossed] - aim[crossed])).min() * (aim - found)
            held &= found > 1e-12
            found[~held] = 0
        found = aim


def _chi_squared_tail(value: float, freedom: int) -> float:
    """The probability that a chi-squared variable exceeds a value: for whole degrees of freedom, a finite sum."""
    half = value / 2
    if half == 0:
        return 1.0
    steps = np.arange(freedom % 2 / 2, freedom / 2)
    terms = [math.exp(step * math.log(half) - half - math.lgamma(step + 1)) for step in steps]
    return sum(terms) + (math.erfc(half**0.5) if freedom % 2 else 0.0)


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
        >>> from fedgen.scores.rankings import winner
        >>> found = winner([1.0, 1.1, 3.0], errors=[0.2, 0.2, 0.2])
        >>> found.place, found.median > 1.0  # the best of two close ones is the luckier
        (0, True)
    """
    centre, covariance = _checked(values, errors)
    known = np.flatnonzero(np.isfinite(centre))
    if not len(known):
        raise ValueError("none of the values is finite, so that none is the best")
    place = int(known[centre[known].argmin()])
    own, deviation = -float(centre[place]), float(covariance[place, place] ** 0.5)
    if deviation == 0:
        return Winner(place, -own, -own, -own)
    others = known[known != place]
    shares = covariance[others, place] / deviation**2
    rest = -centre[others] - shares * own
    below, above = shares < 1, shares > 1
    low = float((rest[below] / (1 - shares[below])).max(initial=-np.inf))
    high = float((rest[above] / (1 - shares[above])).min(initial=np.inf))
    scales, beta = covariance[known, known] ** 0.5, SHARE * (1 - level)
    if len(known) <= MOST_DRAWN:
        draws, counted = _draws(covariance[np.ix_(known, known)], seed, 5), scales > 0
        largest = [(np.abs(part[:, counted]) / scales[counted]).max(1) for part in draws]
        reach = float(np.quantile(np.concatenate(largest), 1 - beta)) * deviation
    else:  # Sidak 1967: a bound for any covariance
        reach = NormalDist().inv_cdf((1 + (1 - beta) ** (1 / len(known))) / 2) * deviation
    part = (1 - level - beta) / (2 * (1 - beta))
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
        >>> from fedgen.scores.rankings import inverted_pairs
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
        with np.errstate(over="ignore"):
            far = np.abs(gaps) / np.where(spread > 0, spread, 1)
        sizes.append(np.where(spread > 0, far, np.where(gaps != 0, np.inf, 0)))
        spreads.append(spread)
    decided = np.isinf(np.stack(sizes))
    if len(first) > MOST_DRAWN:
        decided = np.stack(sizes) > NormalDist().inv_cdf(1 - (1 - level) / (4 * len(one)))
        return _opposite(columns, (one, other), decided)
    draws = [next(_draws(covariance, seed + place)) for place, (_, covariance) in enumerate(columns)]
    while True:
        left = ~decided & (np.stack(sizes) > 0)
        most = _largest(draws, (one, other), spreads, left)
        newly = left & (np.stack(sizes) > np.quantile(most, level))
        if not newly.any():
            break
        decided |= newly
    return _opposite(columns, (one, other), decided)


def _opposite(
    columns: Sequence[tuple[Floats, Floats]], pairs: tuple[NDArray[np.int64], NDArray[np.int64]], decided: NDArray[Any]
) -> list[tuple[int, int]]:
    """The pairs that both columns order for sure, and differently."""
    one, other = pairs
    with np.errstate(invalid="ignore"):
        ways = [np.sign(centre[one] - centre[other]) for centre, _ in columns]
    both = np.flatnonzero(decided.all(0) & (ways[0] * ways[1] < 0))
    return [(int(one[p]), int(other[p])) if ways[0][p] < 0 else (int(other[p]), int(one[p])) for p in both]


def _checked(values: Sequence[float], errors: ArrayLike) -> tuple[Floats, Floats]:
    centre, given = np.asarray(values, float), np.asarray(errors, float)
    covariance = np.diag(given**2) if given.ndim == 1 else given
    if covariance.shape != (len(centre), len(centre)) or not np.isfinite(covariance).all():
        raise ValueError(f"{len(centre)} values need as many finite errors, or a covariance of them, got {given.shape}")
    return centre, covariance


def _draws(covariance: Floats, seed: int, parts: int = 1) -> Iterator[Floats]:
    """Draws [DRAWS, M] of N(0, covariance), so many times: a training that writes a page keeps what one part takes."""
    random, root = np.random.default_rng(seed), np.diag(covariance.diagonal() ** 0.5)
    if np.any(covariance - np.diag(covariance.diagonal())):
        values, vectors = np.linalg.eigh(covariance)
        root = (vectors * np.sqrt(np.maximum(values, 0))).T
    for _ in range(parts):
        yield random.standard_normal((DRAWS, len(covariance))) @ root


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

    def probability(mean: float) -> float:
        bounds = max(ends[0], mean - reach), min(ends[1], mean + reach)
        inside = min(max(own, bounds[0]), bounds[1])
        low, at, high = ((value - mean) / deviation for value in (bounds[0], inside, bounds[1]))
        if low > 0:  # the upper tail, mirrored, where digits are left
            return 1 - _share(-high, -at, -low)
        return _share(low, at, high)

    low, high = own - reach, own + reach
    for _ in range(STEPS):
        mean = (low + high) / 2
        low, high = (mean, high) if probability(mean) > quantile else (low, mean)
    return (low + high) / 2


def _share(low: float, at: float, high: float) -> float:
    """(Phi(at) - Phi(low)) / (Phi(high) - Phi(low)); `reach` keeps all three within a few deviations."""
    low, at, high = (math.erfc(-bound / math.sqrt(2)) for bound in (low, at, high))
    return (at - low) / (high - low) if high > low else 0.5
