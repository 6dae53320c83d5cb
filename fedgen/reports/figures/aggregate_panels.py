"""Panels that show avg against all of many generators, and the gap between the two."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedgen.images import tile
from fedgen.reports.figures.curves import COLOURS

CONTROL = "#3a8a3a"
Curves = Sequence[Sequence[float]]  # repeats x sizes
NARROW = 20  # the largest size over the least, below which an axis of sizes has ticks between powers of ten
SIDE = 32  # pixels that a small image is enlarged to
LARGE = 64  # pixels from which images are smoothed when drawn smaller


def draw_aggregates(
    axes: Any,
    avg: Sequence[float],
    all: Sequence[float],
    score: str,
    errors: tuple[Sequence[float], Sequence[float]] | None = None,
    colours: Sequence[float] | None = None,
    marker: str = "o",
) -> Any:
    """avg (across) against all (up), one point a generator; returns the points for a colour bar."""
    if errors is not None:
        axes.errorbar(avg, all, xerr=errors[0], yerr=errors[1], fmt="none", ecolor="0.75", elinewidth=0.8, zorder=1)
    look = {"color": COLOURS["all"]} if colours is None else {"c": colours, "cmap": "viridis"}
    points = axes.scatter(avg, all, s=16, zorder=3, linewidths=0, marker=marker, **look)
    axes.set(xlabel=f"{score} avg", ylabel=f"{score} all", axisbelow=True)
    axes.grid(alpha=0.25)
    return points


def draw_gap(
    axes: Any, x: Sequence[float], gaps: Sequence[float], score: str, xlabel: str, controls: Curves = ()
) -> None:
    """avg - all of each generator: flat for a score that cannot rank in two ways; IID controls in green."""
    for number, control in enumerate(controls):
        label = "IID clients of the same sizes" if number == 0 else None
        axes.plot(x, control, color=CONTROL, marker=".", markersize=5, linewidth=0, alpha=0.6, label=label)
    axes.plot(x, gaps, color="0.2", marker="o", markersize=3, linewidth=0, label="the clients")
    low, high = min([*gaps, *(g for control in controls for g in control)]), max(gaps)
    if high - low < 1e-6 * max(abs(high), abs(low), 1e-12):  # a flat line, not the noise of its last digits
        axes.set_ylim(0, 2 * high) if high > 0 else axes.set_ylim(2 * low, 0)
    axes.set(xlabel=xlabel, ylabel=f"{score} avg - all")
    axes.grid(alpha=0.25)
    if controls:
        axes.legend(fontsize=8)


def draw_bands(
    axes: Any,
    sizes: Sequence[int],
    curves: Mapping[str, Curves],
    ylabel: str,
    xlabel: str,
    floors: Mapping[str, float] | None = None,
    rings: bool = True,
    legend: bool = True,
) -> None:
    for aggregate, values in curves.items():
        table, colour = np.asarray(values, dtype=float), COLOURS[aggregate]
        mean = table.mean(0)
        low, high = np.quantile(table, (0.1, 0.9), axis=0)
        axes.fill_between(sizes, low, high, color=colour, alpha=0.15, linewidth=0)
        axes.plot(sizes, mean, color=colour, marker=".", markersize=4, linewidth=1.4, label=aggregate)
        if rings:
            least = int(mean.argmin())
            axes.plot(sizes[least], mean[least], marker="o", markersize=9, color=colour, fillstyle="none")
        if floors and aggregate in floors:
            label = f"{aggregate}, real images"
            axes.axhline(floors[aggregate], color=colour, linestyle="--", linewidth=1, label=label)
    scale_by_size(axes, sizes)
    axes.set(xlabel=xlabel, ylabel=ylabel)
    if legend:
        axes.legend(fontsize=7, framealpha=0.8)


def scale_by_size(axes: Any, sizes: Sequence[int]) -> None:
    """A logarithmic axis across; of sizes that span little more than a factor of ten, ticks as 100, 200, 500."""
    if max(sizes) < NARROW * min(sizes):
        log_axis(axes, "x", form="{x:,.0f}")
    else:
        axes.set_xscale("log")


def log_axis(axes: Any, which: str, subs: Sequence[int] = (1, 2, 5), form: str = "{x:g}") -> None:
    """Makes the "x" or the "y" axis logarithmic, with plain numbers at multiples of powers of ten."""
    from matplotlib.ticker import LogLocator, NullFormatter

    getattr(axes, f"set_{which}scale")("log")  # of a name that is one of two
    scale = getattr(axes, f"{which}axis")  # likewise
    scale.set_major_locator(LogLocator(subs=subs))
    scale.set_major_formatter(form)
    scale.set_minor_formatter(NullFormatter())


def draw_path(axes: Any, sizes: Sequence[int], avg: Curves, all: Curves, score: str) -> Any:
    """avg against all: every generator by the logarithm of its size, and the way of their means; gives the points."""
    left, right = np.asarray(avg, dtype=float), np.asarray(all, dtype=float)
    colours = np.tile(np.log10(sizes), len(left)).tolist()
    points = draw_aggregates(axes, left.ravel().tolist(), right.ravel().tolist(), score, colours=colours)
    axes.plot(left.T, right.T, color="0.6", linewidth=0.5, alpha=0.5, zorder=1)
    across, up = left.mean(0), right.mean(0)
    axes.plot(across, up, color="0.15", linewidth=1.4, zorder=4)
    box = {"boxstyle": "round,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.7}
    for place in (0, -1):
        at = (across[place], up[place])
        axes.plot(*at, marker="o", markersize=5, color="0.15", zorder=4)
        inwards = -1 if across[place] > np.median(left) and across[place] > across[-1 - place] else 1
        look = {"ha": "left" if inwards > 0 else "right", "fontsize": 8, "zorder": 5, "bbox": box}
        axes.annotate(f"{sizes[place]:,}", at, textcoords="offset points", xytext=(7 * inwards, 5), **look)
    return points


def draw_ranks(axes: Any, avg: Curves, all: Curves, sizes: Sequence[int], score: str) -> Any:
    """Each generator's rank by avg (across) and by all (up), 1 being least; gives the points."""
    from scipy.stats import rankdata

    left, right = (rankdata(np.asarray(side, dtype=float).ravel()) for side in (avg, all))
    axes.plot([1, len(left)], [1, len(left)], color="0.6", linewidth=0.8, zorder=1)
    colours = np.tile(np.log10(sizes), len(avg))
    points = axes.scatter(left, right, c=colours, cmap="viridis", s=9, linewidths=0, zorder=2)
    axes.set(xlabel=f"rank by {score} avg", ylabel=f"rank by {score} all")
    axes.set_aspect("equal")
    return points


def add_size_bar(figure: Any, points: Any, axes: Any, label: str) -> None:
    bar = figure.colorbar(points, ax=axes, shrink=0.85, pad=0.02)
    low, high = points.get_clim()
    ticks = [power for power in range(8) if low - 1e-9 <= power <= high + 1e-9]
    bar.set_ticks(ticks, labels=[f"{10**power:,}" for power in ticks])
    bar.ax.set_title(label, fontsize=8)
    bar.ax.tick_params(labelsize=7)
    bar.solids.set_alpha(1)


def show_picture(axes: Any, path: str | Path, title: str = "", **style: Any) -> None:
    from matplotlib.image import imread

    axes.imshow(imread(path), cmap="gray", interpolation="nearest")
    axes.set_title(title, **style)
    axes.set(xticks=[], yticks=[])


def show_rows(axes: Any, rows: Mapping[str, Tensor]) -> None:
    """Fills a panel with rows of images, what a row is written at its left."""
    columns, _, height, _ = next(iter(rows.values())).shape
    sheet = tile(torch.cat(list(rows.values())), columns, min_side=SIDE).permute(1, 2, 0).squeeze(-1)
    smooth = "nearest" if height < LARGE else "antialiased"
    axes.imshow(sheet.numpy(), cmap="gray", vmin=0, vmax=255, interpolation=smooth)
    side = len(sheet) / len(rows)
    axes.set_yticks([(row + 0.5) * side for row in range(len(rows))], list(rows), fontsize=10)
    axes.set_xticks([])
    axes.grid(visible=False)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
