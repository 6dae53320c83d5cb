"""Scores on seen and unseen clients over rounds, arm by arm, and their last gaps side by side."""

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedgen.evaluation.gaps import gap_title
from fedgen.experiments.engine.arms.gap_numbers import Curve, GapScores, gap_lines
from fedgen.experiments.engine.paired_seeds import beside_zero
from fedgen.experiments.engine.results import save_figure
from fedgen.reports.figures.generalisation import COLOURS, GAP_COLOURS

BEYOND = "#2a7f3f"
FIRST = 1 / 3  # of the rounds, left out where scores are drawn: the start is far above


def draw_arms(found: GapScores, columns: Sequence[str], path: Path, title: str) -> Path:
    """A row a column: the three splits over rounds in a panel an arm, and the last gaps of all arms.

    Where the floor has a score, also the participation gaps beyond the floor's.

    Args:
        found: of some runs.
        columns: "score aggregate".
        path: of the picture.
        title: of the figure.
    """
    from matplotlib.figure import Figure

    arms = list(found.curves)
    figure = Figure(figsize=(2.6 * len(arms) + 4.5, 3.1 * len(columns) + 1.0), layout="constrained")
    widths = [1.0] * len(arms) + [1.6]
    panels = figure.subplots(len(columns), len(arms) + 1, squeeze=False, width_ratios=widths)
    for row, column in zip(panels, columns):
        for axes, arm in zip(row, arms):
            _draw_curves(axes, found.of(arm, column))
            axes.set_title(arm, fontsize=9)
        for axes in row[1:-1]:
            axes.sharey(row[0])
        row[0].set_ylabel(column)
        _draw_gaps(row[-1], {arm: found.of(arm, column) for arm in arms}, column)
        beyond = [found.beyond(arm, column) for arm in arms]
        if all(beyond):
            _draw_beyond(row[-1], beyond)
    panels[0][0].legend(fontsize=7)
    for axes in panels[:, -1]:
        axes.legend(fontsize=7, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, frameon=False)
    for axes in panels[-1][:-1]:
        axes.set_xlabel("round", fontsize=8)
    count = max(len(seeds) for seeds in found.curves.values())
    figure.suptitle(f"{title} (mean of {count} seed(s); bars: 95 % over clients and seeds)", fontsize=11)
    return save_figure(figure, path)


def _draw_curves(axes: Any, curves: Sequence[Curve]) -> None:
    for split, colour in COLOURS.items():
        rounds = [round for round in curves[0]["rounds"] if round >= FIRST * curves[0]["rounds"][-1]]
        values = [curve["values"][split][-len(rounds) :] for curve in curves]
        axes.plot(rounds, [statistics.mean(each) for each in zip(*values)], color=colour, marker="o", markersize=3)
        axes.lines[-1].set_label(split)
    axes.grid(alpha=0.25)
    axes.tick_params(labelsize=7)


def _draw_gaps(axes: Any, arms: Mapping[str, Sequence[Curve]], column: str) -> None:
    axes.axvline(0, color="0.4", linewidth=0.8)
    for shift, (gap, colour) in zip((-0.2, 0.0), GAP_COLOURS.items()):
        lines = [gap_lines(curves, gap) for curves in arms.values()]
        _draw_bars(axes, shift, [(mean, high) for mean, _, high in lines], colour, gap_title(gap))
    axes.set_yticks(range(len(arms)), list(arms), fontsize=7)
    axes.invert_yaxis()
    axes.set_xlabel(f"last gap, {column}", fontsize=8)
    axes.tick_params(axis="x", labelsize=7)
    axes.grid(axis="x", alpha=0.25)


def _draw_beyond(axes: Any, beyond: Sequence[Sequence[float]]) -> None:
    rows = [beside_zero(values) for values in beyond]
    ends = [(row["difference"], row["interval"][1] if "interval" in row else math.inf) for row in rows]
    _draw_bars(axes, 0.2, ends, BEYOND, "the latter beyond the floor")


def _draw_bars(axes: Any, shift: float, ends: Sequence[tuple[float, float]], colour: str, label: str) -> None:
    """Means with the upper ends of their intervals, an arm a line; no bar where that is not known."""
    places = [place + shift for place in range(len(ends))]
    halves = [high - mean if math.isfinite(high) else math.nan for mean, high in ends]
    axes.errorbar([mean for mean, _ in ends], places, xerr=halves, fmt="o", color=colour, markersize=4, label=label)
