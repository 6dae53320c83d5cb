"""Scores on seen and unseen clients over rounds, arm by arm, and their last gaps side by side."""

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedgen.evaluation.gaps import gap_title
from fedgen.experiments.gap_numbers import Curve, gap_lines
from fedgen.figures.generalisation import COLOURS, GAP_COLOURS
from fedgen.files import atomic_write

FIRST = 1 / 3  # of the rounds, left out where scores are drawn: the start is far above


def draw_arms(
    found: Mapping[str, Mapping[str, Mapping[str, Curve]]], columns: Sequence[str], path: Path, title: str
) -> Path:
    """A row a column: the three splits over rounds in a panel an arm, and the last gaps of all arms.

    Args:
        found: arm -> seed -> column -> curve.
        columns: "score aggregate".
        path: of the picture.
        title: of the figure.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    across = len(found) + 1
    figure = Figure(figsize=(2.6 * len(found) + 4.5, 3.1 * len(columns) + 1.0), layout="constrained")
    FigureCanvasAgg(figure)
    widths = [1.0] * len(found) + [1.6]
    panels = figure.subplots(len(columns), across, squeeze=False, width_ratios=widths)
    for row, column in zip(panels, columns):
        for axes, (arm, seeds) in zip(row, found.items()):
            _draw_curves(axes, [by_column[column] for by_column in seeds.values() if column in by_column])
            axes.set_title(arm, fontsize=9)
        for axes in row[1:-1]:
            axes.sharey(row[0])
        row[0].set_ylabel(column)
        _draw_gaps(row[-1], {arm: [by[column] for by in seeds.values()] for arm, seeds in found.items()}, column)
    panels[0][0].legend(fontsize=7)
    panels[0][-1].legend(fontsize=7, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False)
    for axes in panels[-1][:-1]:
        axes.set_xlabel("round", fontsize=8)
    count = max(len(seeds) for seeds in found.values())
    figure.suptitle(f"{title} (mean of {count} seed(s); bars: 95 % over clients and seeds)", fontsize=11)
    with atomic_write(path) as file:
        figure.savefig(file, format="png", dpi=120)
    return path


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
    for shift, (gap, colour) in zip((-0.12, 0.12), GAP_COLOURS.items()):
        lines = [gap_lines(curves, gap) for curves in arms.values()]
        places = [place + shift for place in range(len(lines))]
        means = [mean for mean, _, _ in lines]
        halves = [high - mean if math.isfinite(high) else math.nan for mean, _, high in lines]  # no bar if not known
        axes.errorbar(means, places, xerr=halves, fmt="o", color=colour, markersize=4, label=gap_title(gap))
    axes.set_yticks(range(len(arms)), list(arms), fontsize=7)
    axes.invert_yaxis()
    axes.set_xlabel(f"last gap, {column}", fontsize=8)
    axes.tick_params(axis="x", labelsize=7)
    axes.grid(axis="x", alpha=0.25)
