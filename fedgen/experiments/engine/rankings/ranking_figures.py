"""Figures of rankings: avg against all of many generators, the gap between the two, and IID clients beside."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedgen.experiments.engine.aggregate_rankings import Rows, ScoredRows, column, errors_of, gaps_of
from fedgen.experiments.engine.results import save_figure
from fedgen.reports.figures.aggregate_panels import draw_aggregates, draw_gap

INVERTED = "#c0203a"
LOOKS = {"class": ("#7a4fa0", "D"), "mixture": ("#1f5fa8", "o"), "neighbourhood": ("#c4560b", "^")}  # of generators


@contextmanager
def panels(
    path: Path, size: tuple[float, float], rows: int = 1, columns: int = 1, title: str = "", **options: Any
) -> Iterator[tuple[Any, Any]]:
    """A figure and its axes [rows, columns], saved as PNG when they are drawn.

    Args:
        path: of the PNG.
        size: inches across and up.
        rows: of axes; 0 for a figure without any.
        columns: of axes.
        title: above all.
        options: more arguments of matplotlib's `subplots`.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    if title:
        figure.suptitle(title, fontsize=10)
    yield figure, figure.subplots(rows, columns, squeeze=False, **options) if rows else None
    save_figure(figure, path)


def draw_ranking(
    axes: Any,
    rows: Rows,
    score: str,
    title: str,
    found: Mapping[str, Any] | None = None,
    real: Mapping[str, Any] | None = None,
    kinds: Mapping[str, str] | None = None,
    colours: Sequence[float] | None = None,
    real_title: str = "real images",
    marker: str = "o",
    errors: bool = True,
) -> Any:
    """avg (across) against all (up) of each generator with its errors; returns the points for a colour bar.

    Args:
        axes: matplotlib's.
        rows: scores of every generator.
        score: which.
        title: what to call it.
        found: as `compare` gives it: inverted pairs are joined, those beyond error and in no dealing by thick lines.
        real: scores of real images, a star.
        kinds: of each generator, one of LOOKS.
        colours: a number for each generator, shown by colour.
        real_title: what to call the star.
        marker: of the points, where there are no kinds.
        errors: whether bars show the standard errors, where there are any.
    """
    sides = avg, everyone = column(rows, score, "avg"), column(rows, score, "all")
    pairs = {"inverted pairs": (found["inverted"], 0.6)} if found else {}
    if found and found.get("control inverted"):
        pairs["beyond error, not IID"] = found["evidence"], 2
    for label, (ends, width) in pairs.items():
        for place, (first, second) in enumerate(ends):
            name = None if place else f"{label}: {len(ends):,}"
            line = [[side[first], side[second]] for side in sides]
            axes.plot(*line, color=INVERTED, linewidth=width, zorder=2, label=name)
    bars = (errors_of(rows, score, "avg"), errors_of(rows, score, "all")) if errors else None
    points = draw_aggregates(axes, avg, everyone, title, bars, colours=colours, marker=marker)
    if kinds is not None:
        points.remove()
        for kind in dict.fromkeys(kinds.values()):
            colour, marker = LOOKS[kind]
            own = [place for place, name in enumerate(rows) if kinds[name] == kind]
            where = [[side[place] for place in own] for side in sides]
            axes.scatter(*where, s=16, marker=marker, color=colour, linewidths=0, zorder=3, label=kind)
    if real:
        axes.scatter(
            [real[score]["avg"]], [real[score]["all"]], s=80, marker="*", color="black", zorder=4, label=real_title
        )
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=8)
    return points


def draw_gaps(axes: Any, x: Sequence[float], rows: ScoredRows, score: str, title: str, xlabel: str) -> None:
    """avg - all of each generator at x, over the clients and over each IID dealing, with zero in sight."""
    others = [gaps_of(control, score) for control in rows.controls(score)]
    draw_gap(axes, x, gaps_of(rows.clients, score), title, xlabel, others)
    axes.set_ylim(min(0, axes.get_ylim()[0]), None)
