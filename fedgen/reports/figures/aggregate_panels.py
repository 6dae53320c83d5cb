"""Panels that show avg against all of many generators, and the gap between the two."""

from collections.abc import Sequence
from typing import Any

from fedgen.reports.figures.curves import COLOURS

CONTROL = "#3a8a3a"


def draw_aggregates(
    axes: Any,
    avg: Sequence[float],
    all: Sequence[float],
    score: str,
    errors: tuple[Sequence[float], Sequence[float]] | None = None,
    inverted: Sequence[Sequence[int]] = (),
    colours: Sequence[float] | None = None,
    marker: str = "o",
) -> Any:
    """avg (across) against all (up), one point a generator; returns the points for a colour bar.

    Two points on a falling line are a pair that the aggregates order differently.

    Args:
        axes: matplotlib's.
        avg: the score's avg of each generator.
        all: its all.
        score: what to call it, e.g. "FID".
        errors: standard errors of avg and of all.
        inverted: pairs of places to join by a line.
        colours: a number for each generator, shown by colour.
        marker: matplotlib's, of the points.
    """
    for first, second in inverted:
        axes.plot([avg[first], avg[second]], [all[first], all[second]], color="#c0203a", linewidth=0.8, zorder=2)
    if errors is not None:
        axes.errorbar(
            avg, all, xerr=errors[0], yerr=errors[1], fmt="none", ecolor="0.75", elinewidth=0.8, zorder=1
        )  # fmt: skip
    look = {"color": COLOURS["all"]} if colours is None else {"c": colours, "cmap": "viridis"}
    points = axes.scatter(avg, all, s=16, zorder=3, linewidths=0, marker=marker, **look)
    axes.set_xlabel(f"{score} avg")
    axes.set_ylabel(f"{score} all")
    axes.grid(alpha=0.25)
    axes.set_axisbelow(True)
    return points


def draw_gap(
    axes: Any,
    x: Sequence[float],
    gaps: Sequence[float],
    score: str,
    xlabel: str,
    controls: Sequence[Sequence[float]] = (),
) -> None:
    """avg - all of each generator: flat for a score that cannot rank in two ways; IID controls in green.

    Args:
        axes: matplotlib's.
        x: where each generator stands.
        gaps: avg - all of each.
        score: what to call it.
        xlabel: what x is.
        controls: gaps of the same generators over IID clients, one sequence a control.
    """
    for number, control in enumerate(controls):
        label = "IID clients of the same sizes" if number == 0 else None
        axes.plot(x, control, color=CONTROL, marker=".", markersize=5, linewidth=0, alpha=0.6, label=label)
    axes.plot(x, gaps, color="0.2", marker="o", markersize=3, linewidth=0, label="the clients")
    low, high = min([*gaps, *(g for control in controls for g in control)]), max(gaps)
    if high - low < 1e-6 * max(abs(high), abs(low), 1e-12):  # a flat line, not the noise of its last digits
        axes.set_ylim(0, 2 * high) if high > 0 else axes.set_ylim(2 * low, 0)
    axes.set_xlabel(xlabel)
    axes.set_ylabel(f"{score} avg - all")
    axes.grid(alpha=0.25)
    if controls:
        axes.legend(fontsize=8)
