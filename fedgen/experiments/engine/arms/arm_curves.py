"""Curves of arms over their checkpoints, in the same strokes in every figure."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

REAL: Mapping[str, Any] = {"color": "black", "linestyle": ":"}
Rows = Mapping[str, Mapping[int, Sequence[Mapping[str, Mapping[str, float]]]]]
"""arm -> how far a checkpoint is -> one for each seed: embedding -> score -> value"""


def draw_arm(
    axes: Any,
    states: Mapping[int, Sequence[Mapping[str, Mapping[str, float]]]],
    column: tuple[str, str],
    unit: float,
    **style: Any,
) -> None:
    """Draw each seed as a thin line, and their mean.

    Args:
        axes: to draw into.
        states: of an arm, see `Rows`.
        column: embedding and score.
        unit: of the axis: places are divided by it.
        style: of the mean: colour, marker, line.
    """
    embedding, score = column
    places = [place / unit for place in states]
    seeds = list(zip(*([one[embedding][score] for one in state] for state in states.values())))
    for values in seeds:
        axes.plot(places, values, color=style["color"], alpha=0.3, linewidth=0.8)
    axes.plot(places, [statistics.mean(values) for values in zip(*seeds)], markersize=4, linewidth=1.8, **style)


def finish_panels(figure: Any, panels: Any, across: str, styles: Mapping[str, Mapping[str, Any]], real: str) -> None:
    """Give every panel its grid, the lowest their axis, and the figure its legend.

    Args:
        figure: to add the legend to.
        panels: array of axes.
        across: what the lowest axes show.
        styles: of the arms' lines, by what the legend calls them.
        real: what the dotted line is.
    """
    from matplotlib.lines import Line2D

    for axes in panels.flat:
        axes.grid(alpha=0.25)
        axes.tick_params(labelsize=9)
    for axes in panels[-1]:
        axes.set_xlabel(across, fontsize=10)
    handles = [Line2D([], [], markersize=4, label=name, **style) for name, style in styles.items()]
    handles.append(Line2D([], [], **REAL, label=real))
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), fontsize=10, frameon=False)
