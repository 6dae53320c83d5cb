"""Ranks of the same generators by two aggregates: Kendall's tau, and the pairs they order differently."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Z = 1.96  # two-sided 95 percent of a normal

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
    both = first_untied = second_untied = 0
    left, right = np.asarray(a, float), np.asarray(b, float)
    for place in range(len(a) - 1):  # a row of the matrix of pairs at a time
        signs, others = ((col[place] > col[place + 1 :]) * 1 - (col[place] < col[place + 1 :]) for col in (left, right))
        both += int((signs * others).sum())
        first_untied += int(np.count_nonzero(signs))
        second_untied += int(np.count_nonzero(others))
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
    return [pair for place in range(len(a) - 1) for pair in _inverted_with(place, columns)]


def _inverted_with(place: int, columns: Sequence[tuple[NDArray[np.float64], NDArray[np.float64]]]) -> list[Inversion]:
    with np.errstate(invalid="ignore"):  # between two infinite values there is no order
        first, second = (values[place] - values[place + 1 :] for values, _ in columns)
        clear = np.ones(len(first), bool)
        for step, (_, spread) in zip((first, second), columns):
            clear &= np.abs(step) > Z * (spread[place] ** 2 + spread[place + 1 :] ** 2) ** 0.5
        found = np.flatnonzero(first * second < 0)
    pairs = []
    for step in found.tolist():
        ends = (place, place + 1 + step) if first[step] < 0 else (place + 1 + step, place)
        pairs.append(Inversion(*ends, bool(clear[step])))
    return pairs


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


def _check(a: Sequence[float], b: Sequence[float]) -> None:
    if len(a) != len(b) or len(a) < 2:
        raise ValueError(f"columns need the same length of at least 2, got {len(a)} and {len(b)}")
    if any(value != value for value in (*a, *b)):
        raise ValueError("columns hold NaN; leave out generators without a score")
