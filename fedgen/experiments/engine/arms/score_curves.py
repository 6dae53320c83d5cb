"""Scores of runs while they train, against what they cost: seconds, turns, bytes."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

Curve = Mapping[str, Any]
"""of a run: at its evaluations, values of each column, and what had been spent by each name"""


def value_at(curve: Curve, column: str, cost: str, spent: float) -> float:
    """Return the last value that a run had when so much was spent; its first, if there was none.

    Args:
        curve: the run's.
        column: of the value.
        cost: name of what is spent.
        spent: how much of it.
    """
    return float(curve[column][max(0, bisect_right(curve[cost], spent) - 1)])


def ends(curves: Sequence[Curve], name: str) -> list[float]:
    """Return what each seed's run ends with."""
    return [curve[name][-1] for curve in curves]


def at_the_end_of(curves: Mapping[str, Sequence[Curve]], arm: str, other: str, column: str, cost: str) -> list[float]:
    """Return one arm's values, a seed each, when it has spent what another arm has at its end."""
    return [value_at(own, column, cost, until[cost][-1]) for own, until in zip(curves[arm], curves[other])]


def draw_against(
    axes: Any, curves: Mapping[str, Sequence[Curve]], cost: str, column: str, colours: Mapping[str, str]
) -> None:
    """Draws a column against a cost on axes, a line each seed, with values on a logarithmic scale."""
    from matplotlib.ticker import LogLocator, NullFormatter

    for arm, own in curves.items():
        for place, curve in enumerate(own):
            style = {"color": colours[arm], "label": arm if not place else None, "linewidth": 1.2}
            axes.plot(curve[cost], curve[column], marker=".", alpha=0.8, **style)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.grid(alpha=0.25, which="both")
