"""Figures of arms over paired seeds, in the same strokes everywhere: each seed, the arms' means, controls as levels."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from fedgen.reports.figures.aggregate_panels import log_axis, show_picture, show_rows
from fedgen.reports.figures.curves import new_figure, save_picture

REAL: Mapping[str, Any] = {"color": "black", "linestyle": ":", "linewidth": 1.2}  # the stroke of what real images have
MANY = 20  # places, whose values need no points
Picture = tuple[Path, str, str]  # file, what stands above it, and that text's colour
Styles = Mapping[str, Mapping[str, Any]]  # arm or level -> colour, marker, line of its mean


@dataclass(frozen=True)
class ArmPanel:
    """Values of one score: of arms at places along an axis, and of what has no place there."""

    # arm -> place, a number -> one value a seed, as many at every place
    arms: Mapping[str, Mapping[Any, Sequence[float]]]
    # name -> values: a line at their mean, over a band as high as they lie apart
    levels: Mapping[str, Sequence[float]] = field(default_factory=dict)
    title: str = ""  # above it
    label: str = ""  # of its upright axis
    styles: Styles = field(default_factory=dict)  # of single arms, where they differ from the figure's
    ticks: Mapping[Any, str] = field(default_factory=dict)  # names of places; numbers if there are none
    joined: bool = False  # whether a thin line joins the values of a seed in all arms, which have one place each
    log: str = ""  # the axes that are logarithmic: "", "x", "y" or "xy"
    bottom: float | None = None  # where the upright axis begins; below the values if None


def pairs_panel(values: Mapping[str, Sequence[float]], names: Mapping[str, str] | None = None, **more: Any) -> ArmPanel:
    arms = {arm: {place: own} for place, (arm, own) in enumerate(values.items())}
    ticks = {place: (names or {}).get(arm, arm) for place, arm in enumerate(values)}
    return ArmPanel(arms, ticks=ticks, joined=True, **more)


def draw_panel(axes: Any, panel: ArmPanel, styles: Styles) -> None:
    for name, values in panel.levels.items():
        axes.axhline(statistics.mean(values), label=name, **styles[name])
        if len(values) > 1:
            axes.axhspan(min(values), max(values), color=styles[name]["color"], alpha=0.2, linewidth=0)
    if panel.joined:
        places = [place for states in panel.arms.values() for place in states]
        for seed in zip(*(values for states in panel.arms.values() for values in states.values())):
            axes.plot(places, seed, color="0.7", linewidth=0.8, zorder=1)
        axes.set_xlim(min(places) - 0.5, max(places) + 0.5)
    for arm, states in panel.arms.items():
        style = {"markersize": 5, "linewidth": 1.8, **styles[arm], **panel.styles.get(arm, {})}
        thin = {"color": style["color"], "linestyle": style.get("linestyle"), "alpha": 0.4}
        thin["marker"] = "." if len(states) < MANY else ""
        for seed in zip(*states.values()):
            axes.plot(list(states), seed, linewidth=0.8, markersize=4, **thin)
        axes.plot(list(states), [statistics.mean(values) for values in states.values()], label=arm, **style)
    for which in panel.log:
        log_axis(axes, which)
    if panel.ticks:
        axes.set_xticks(list(panel.ticks), list(panel.ticks.values()), rotation=20)
        axes.minorticks_off()
    axes.set_ylim(bottom=panel.bottom)
    axes.set_title(panel.title, fontsize=10)
    axes.set_ylabel(panel.label, fontsize=10)
    axes.tick_params(labelsize=9)
    axes.grid(alpha=0.25)


def draw_panels(
    rows: Sequence[Sequence[ArmPanel]],
    styles: Styles,
    path: Path,
    title: str,
    across: str = "",
    size: tuple[float, float] = (3.2, 2.8),
    pictures: Sequence[Picture] = (),
) -> Path:
    from matplotlib.lines import Line2D

    height, width = size[1] * len(rows) + 0.8, max(6.4, size[0] * len(rows[0]))
    heights = [height, 2.6] if pictures else [height]
    figure = new_figure(width, sum(heights))
    parts = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)
    lines = parts[0, 0].subplots(len(rows), len(rows[0]), squeeze=False)
    for line, panels in zip(lines, rows):
        for axes, panel in zip(line, panels):
            draw_panel(axes, panel, styles)
            axes.set_visible(bool(panel.arms))
    for axes in lines[-1]:
        axes.set_xlabel(across, fontsize=10)
    names = {name for panels in rows for panel in panels for name in (*panel.arms, *panel.levels)}
    handles = [Line2D([], [], label=name, **style) for name, style in styles.items() if name in names]
    room = width / (0.7 + 0.08 * max(map(len, names)))  # as many as find it side by side
    ncols = max(1, min(len(handles), int(room)))
    parts[0, 0].legend(handles=handles, loc="outside lower center", ncols=ncols, fontsize=9, frameon=False)
    if pictures:
        show_pictures(parts[1, 0], pictures)
    figure.suptitle(title, fontsize=11)
    return save_picture(figure, path)


def draw_pictures(rows: Sequence[Sequence[Picture]], path: Path, title: str, size: tuple[float, float]) -> Path:
    figure = new_figure(size[0] * max(map(len, rows)), size[1] * len(rows) + 0.4)
    for part, row in zip(figure.subfigures(len(rows), 1, squeeze=False)[:, 0], rows):
        show_pictures(part, row)
    figure.suptitle(title, fontsize=11)
    return save_picture(figure, path)


def draw_images(
    blocks: Mapping[str, Mapping[str, Tensor]], path: Path, label: str = "", colours: Sequence[str] = ()
) -> Path:
    columns = len(next(iter(next(iter(blocks.values())).values())))
    height = sum(0.55 * len(rows) + 0.6 for rows in blocks.values())
    figure = new_figure(0.6 * columns + 1.4, height)
    figure.get_layout_engine().set(w_pad=0.2)  # labels reach beyond what the layout reserves
    panels = figure.subplots(len(blocks), 1, squeeze=False)[:, 0]
    for axes, (title, rows), colour in zip(panels, blocks.items(), colours or ["black"] * len(blocks)):
        show_rows(axes, rows)
        axes.set_ylabel(label, fontsize=10)
        axes.set_title(title, fontsize=10, color=colour)
    return save_picture(figure, path)


def show_pictures(figure: Any, row: Sequence[Picture]) -> None:
    for axes, (file, text, colour) in zip(figure.subplots(1, len(row), squeeze=False)[0], row):
        show_picture(axes, file, text, fontsize=9, color=colour)
