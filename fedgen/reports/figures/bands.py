"""Panels of scores by size: means over repeats with their bands, and the path of the means through avg and all."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedgen.reports.figures.aggregate_panels import draw_aggregates
from fedgen.reports.figures.curves import COLOURS

Curves = Sequence[Sequence[float]]  # repeats x sizes
NARROW = 20  # the largest size over the least, below which an axis of sizes has ticks between powers of ten


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
    """A line for each aggregate: the mean over repeats, a band that holds 80 percent of them, and a ring at the least.

    Args:
        axes: matplotlib's.
        sizes: across, on a logarithmic scale.
        curves: by aggregate, "avg" and "all".
        ylabel: what the values are.
        xlabel: what the sizes are.
        floors: by aggregate, the score of real images, as a dashed line.
        rings: whether to mark the least.
        legend: whether to name the lines.
    """
    import numpy as np

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
            axes.axhline(
                floors[aggregate], color=colour, linestyle="--", linewidth=1, label=f"{aggregate}, real images"
            )
    scale_by_size(axes, sizes)
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.grid(alpha=0.25)
    if legend:
        axes.legend(fontsize=7, framealpha=0.8)


def scale_by_size(axes: Any, sizes: Sequence[int]) -> None:
    """A logarithmic axis across; of sizes that span little more than a factor of ten, ticks as 100, 200, 500.

    matplotlib would label every minor tick there, "2 × 10²3 × 10²", one over the other.
    """
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.set_xscale("log")
    if max(sizes) < NARROW * min(sizes):
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.xaxis.set_minor_formatter(NullFormatter())


def draw_path(axes: Any, sizes: Sequence[int], avg: Curves, all: Curves, score: str) -> Any:
    """avg against all: every generator by the logarithm of its size, and the way of their means; gives the points.

    Args:
        axes: matplotlib's.
        sizes: of the generators.
        avg: the score's avg, repeats x sizes.
        all: its all.
        score: what to call it.
    """
    import numpy as np

    left, right = np.asarray(avg, dtype=float), np.asarray(all, dtype=float)
    colours = np.broadcast_to(np.log10(np.asarray(sizes, dtype=float)), left.shape).ravel().tolist()
    points = draw_aggregates(axes, left.ravel().tolist(), right.ravel().tolist(), score, colours=colours)
    axes.plot(left.T, right.T, color="0.6", linewidth=0.5, alpha=0.5, zorder=1)
    across, up = left.mean(0), right.mean(0)
    axes.plot(across, up, color="0.15", linewidth=1.4, zorder=4)
    box = {"boxstyle": "round,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.7}
    for place in (0, -1):
        at = (across[place], up[place])
        axes.plot(*at, marker="o", markersize=5, color="0.15", zorder=4)
        inwards = -1 if across[place] > np.median(left) and across[place] > across[-1 - place] else 1
        axes.annotate(
            f"{sizes[place]:,}",
            at,
            textcoords="offset points",
            xytext=(7 * inwards, 5),
            ha="left" if inwards > 0 else "right",
            fontsize=8,
            zorder=5,
            bbox=box,
        )
    return points


def draw_ranks(axes: Any, avg: Curves, all: Curves, sizes: Sequence[int], score: str) -> Any:
    """Each generator's rank by avg (across) and by all (up), 1 being least; gives the points.

    Where the aggregates rank alike all points lie on the diagonal.

    Args:
        axes: matplotlib's.
        avg: the score's avg, repeats x sizes.
        all: its all.
        sizes: of the generators, shown by colour.
        score: what to call it.
    """
    import numpy as np
    from scipy.stats import rankdata

    left, right = (rankdata(np.asarray(side, dtype=float).ravel()) for side in (avg, all))
    colours = np.broadcast_to(np.log10(np.asarray(sizes, dtype=float)), np.shape(avg)).ravel()
    axes.plot([1, len(left)], [1, len(left)], color="0.6", linewidth=0.8, zorder=1)
    points = axes.scatter(left, right, c=colours, cmap="viridis", s=9, linewidths=0, zorder=2)
    axes.set_xlabel(f"rank by {score} avg")
    axes.set_ylabel(f"rank by {score} all")
    axes.set_aspect("equal")
    axes.grid(alpha=0.25)
    return points


def add_size_bar(figure: Any, points: Any, axes: Any, label: str) -> None:
    """The colour bar of `draw_path`'s or `draw_ranks`' points, with sizes instead of their logarithms."""
    bar = figure.colorbar(points, ax=axes, shrink=0.85, pad=0.02)
    low, high = points.get_clim()
    ticks = [power for power in range(0, 8) if low - 1e-9 <= power <= high + 1e-9]
    bar.set_ticks(ticks, labels=[f"{10**power:,}" for power in ticks])
    bar.ax.set_title(label, fontsize=8)
    bar.ax.tick_params(labelsize=7)
    bar.solids.set_alpha(1)
