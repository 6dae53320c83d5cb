"""Curves over generators of rising variance: where a score is least, and whether it falls before and rises after."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedgen.experiments.engine.aggregate_rankings import expectation
from fedgen.scores.rankings import Z


def valley(
    values: Sequence[float], at: Sequence[float], difference: Callable[[int, int], tuple[float, float]]
) -> dict[str, Any]:
    """Return where a curve is least, and how far its ends lie above that.

    Keys: "least at" and "place", "least", "left" and "right" (difference of the first and the last value and its
    standard error), and "inside": whether both exceed 1.96 standard errors, so that the curve falls and rises.

    Args:
        values: of each generator.
        at: the generators' sizes, rising.
        difference: of the values at two places, and its standard error.
    """
    place = min(range(len(values)), key=values.__getitem__)
    found: dict[str, Any] = {"least at": at[place], "place": place, "least": values[place]}
    found |= {side: list(difference(end, place)) for side, end in (("left", 0), ("right", len(values) - 1))}
    found["inside"] = all(found[side][0] > max(0.0, Z * found[side][1]) for side in ("left", "right"))
    return found


def valley_line(title: str, low: Mapping[str, Any], size: str, note: str = "") -> str:
    """Say whether a curve falls and rises.

    Args:
        title: of the curve.
        low: as `valley` gives it.
        size: what generators differ by.
        note: to add.
    """
    ends = " and ".join(f"{low[side][0]:.4g} ± {low[side][1]:.2g}" for side in ("left", "right"))
    text = f"{title} falls and rises, least at {size} = {low['least at']:,} ({low['least']:.4g}), its ends {ends} above"
    return expectation(text + note, low["inside"])
