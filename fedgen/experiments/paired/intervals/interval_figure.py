"""Figures of `communication-interval`: scores against the interval beside the controls, and samples of each."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedgen.experiments.engine.results import save_figure
from fedgen.experiments.engine.scored_checkpoints import title_of
from fedgen.experiments.engine.study import Study
from fedgen.experiments.paired.intervals.interval_report import HELD_OUT, intervals_in, kinds_in
from fedgen.reports.figures.curves import COLOURS
from fedgen.reports.figures.picture_panels import show_picture

FIGURE, SAMPLES = "communication_interval.png", "samples.png"
SIDE = 6  # images along a grid
BANDS = {"local only": "#7a4fa0", "centralised": "#3a8a3a"}
# KID-avg is KID-all and a constant
PANELS = (("fid", "avg"), ("fid", "all"), ("kid", "all"))


def grid_of(kind: str, group: str) -> str:
    """File name of a grid of images."""
    return f"{kind}-{group}.png".lower().replace(" ", "-")


def draw(study: Study) -> Path:
    """A row for each kind and embedding, a panel for each score against held-out images: means and seeds by interval.

    Controls are bands as high as their seeds lie apart, a line at the mean; dashes real images.
    """
    from matplotlib.figure import Figure

    numbers = study.numbers
    rows = [(kind, embedding) for embedding in numbers["quality"] for kind in kinds_in(numbers)]
    figure = Figure(figsize=(10, 2.7 * len(rows) + 0.9), layout="constrained")
    for panels, (kind, embedding) in zip(figure.subplots(len(rows), len(PANELS), squeeze=False), rows):
        quality = numbers["quality"][embedding][HELD_OUT][kind]
        for axes, (score, how) in zip(panels, PANELS):
            _draw_panel(axes, quality, intervals_in(numbers), score, how)
            real = numbers["real"][embedding][HELD_OUT][score][how]
            axes.axhline(real, color="black", linestyle="--", linewidth=1, label="real images")
            axes.set_title(f"{kind}, {embedding}", fontsize=9)
            axes.set_ylabel(f"{title_of(score)} {how}")
    for axes in panels:
        axes.set_xlabel("communication interval")
    handles, labels = panels[1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), fontsize=9)
    seeds = study.settings["seeds"]
    title = (
        f"Ten clients of one digit each, equal local iterations, {seeds} seed{'s' * (seeds > 1)}; against {HELD_OUT}"
    )
    figure.suptitle(title, fontsize=10)
    return save_figure(figure, study.path(FIGURE))


def _draw_panel(
    axes: Any, quality: Mapping[str, Mapping[str, Sequence[float]]], intervals: Sequence[int], score: str, how: str
) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    values = [quality[f"interval {interval}"][f"{score} {how}"] for interval in intervals]
    for group, colour in BANDS.items():
        own = quality[group][f"{score} {how}"]
        axes.axhspan(min(own), max(own), color=colour, alpha=0.2, linewidth=0)
        axes.axhline(statistics.mean(own), color=colour, linewidth=1.4, label=group)
    for interval, seeds in zip(intervals, values):
        axes.scatter([interval] * len(seeds), seeds, s=9, color=COLOURS[how], alpha=0.5, linewidths=0)
    axes.plot(
        intervals, [statistics.mean(seeds) for seeds in values], color=COLOURS[how], marker="o", markersize=4,
        label="FedAvg" if how == "all" else None,
    )  # fmt: skip
    axes.set_xscale("log")
    axes.set_xticks(intervals, [str(interval) for interval in intervals])
    axes.minorticks_off()
    if score == "fid":
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
    axes.grid(alpha=0.25)


def draw_samples(study: Study, groups: Iterable[tuple[str, str]]) -> Path:
    """The last samples of the first seed: a row for each kind, a column for each interval and control."""
    from matplotlib.figure import Figure

    by_kind: dict[str, list[str]] = {}
    for kind, group in groups:
        by_kind.setdefault(kind, []).append(group)
    across = max(map(len, by_kind.values()))
    figure = Figure(figsize=(1.75 * across, 2.05 * len(by_kind)), layout="constrained")
    for row, (kind, own) in zip(figure.subplots(len(by_kind), across, squeeze=False), by_kind.items()):
        for axes, group in zip(row, own):
            show_picture(axes, study.path(grid_of(kind, group)), group, fontsize=9)
        row[0].set_ylabel(kind)
    return save_figure(figure, study.path(SAMPLES))
