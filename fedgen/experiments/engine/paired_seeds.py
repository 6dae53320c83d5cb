"""Arms of an experiment over paired seeds: what one differs from its control by, how sure that is, and what follows."""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from fedgen.experiments.engine.study import expectation
from fedgen.scores.rankings import half_width

Row = Mapping[str, Any]  # one score of one arm, as `compare_pairs` gives it
Claim = Literal["less", "more", "not less", "not more"]
CELL = "below means: the difference, how many seeds improved, and the difference's 95 % interval"


def compare_pairs(
    control: Sequence[float], treated: Sequence[float], badness: Callable[[float], float] = float
) -> dict[str, Any]:
    """An arm beside its control over pairs, which are runs of one seed, as numbers for `results.json`.

    Keys: "values" (the arm's), "difference" (the mean of treated - control), "improved" (in how many pairs the arm is
    better) and, from two pairs on, "interval" ([low, high], which holds the difference with 95 percent by Student's t).
    """
    assert len(control) == len(treated) > 0
    differences = [b - a for a, b in zip(control, treated)]
    mean = statistics.mean(differences)
    improved = sum(badness(b) < badness(a) for a, b in zip(control, treated))
    row: dict[str, Any] = {"values": list(treated), "difference": mean, "improved": improved}
    if len(differences) > 1:
        half = half_width(differences)
        row["interval"] = [mean - half, mean + half]
    return row


def verdict_on(text: str, values: Iterable[Sequence[float]], claim: Claim | None = None) -> str:
    """The line of `verdict`, or without a claim that of `difference`."""
    control, treated = values
    row = compare_pairs(control, treated)
    return verdict(text, row, claim) if claim else difference(text, row)


def beside_zero(values: Sequence[float]) -> dict[str, Any]:
    return compare_pairs([0.0] * len(values), values)


def mean_of(row: Row) -> float:
    return statistics.mean(row["values"])


def change_of(row: Row) -> str:
    """The difference with its interval, where there is one: "-2 (-14.7 to +10.7)"."""
    change = f"{row['difference']:+.3g}"
    return change + (" ({:+.3g} to {:+.3g})".format(*row["interval"]) if "interval" in row else "")


def mean_and_spread(values: Sequence[float], digits: int = 1) -> str:
    """Mean and standard deviation over seeds, "2 ± 1", or the one value there is."""
    mean = f"{statistics.mean(values):.3g}"
    return f"{mean} ± {statistics.stdev(values):.{digits}g}" if len(values) > 1 else mean


def mean_shown(row: Row, mark: str = "") -> str:
    return f"{mean_of(row):.3g} {mark}".rstrip()


def cell(row: Row, mark: str = "") -> str:
    """The mean with its mark; from two pairs on, below it the difference, how many improved, and the interval."""
    if "interval" not in row:
        return mean_shown(row, mark)
    low, high = row["interval"]
    counted = f"{row['difference']:+.2g}, {row['improved']}/{len(row['values'])}"
    return f"{mean_shown(row, mark)}\n{counted}\n{low:+.2g} to {high:+.2g}"


def holds(row: Row, claim: Claim) -> bool | None:
    """Say whether an arm has less (more, ...) than its control; None where the interval has room for both answers."""
    if "interval" not in row:
        return None
    low, high = row["interval"]
    if claim.endswith("more"):
        low, high = -high, -low
    less = True if high < 0 else False if low >= 0 else None
    return not less if claim.startswith("not") and less is not None else less


def verdict(text: str, row: Row, claim: Claim) -> str:
    """A line on what was expected: "as expected" or "not seen" beyond the paired interval, or "cannot be told"."""
    line, told = f"{text}: {change_of(row)}", holds(row, claim)
    if told is not None:
        return expectation(line, told)
    count = len(row["values"])
    return f"cannot be told from {'one seed' if count == 1 else f'these {count} seeds'}: {line}"


def difference(text: str, row: Row) -> str:
    """A line that says whether an arm differs from its control at all, beyond doubt by the paired interval."""
    low, high = row.get("interval", (-math.inf, math.inf))
    return f"{text} {'differs' if low > 0 or high < 0 else 'cannot be told apart'}: {change_of(row)}"


def by_chance(count: int) -> str:
    """Say what so many intervals together are worth."""
    return f"each of these {count} intervals holds its difference with 95 %: {count / 20:.2g} of them miss it by chance"
