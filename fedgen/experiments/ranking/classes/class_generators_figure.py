"""The picture of class generators: avg against all, and the gap between the two, for each score."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedgen.experiments.engine.aggregate_rankings import Rows, column, errors_of, gaps_of
from fedgen.experiments.engine.results import save_figure
from fedgen.reports.figures.aggregate_panels import draw_gap

MARKERS = {"class": "D", "mixture": "o", "neighbourhood": "^"}
COLOURS = {"class": "#7a4fa0", "mixture": "#1f5fa8", "neighbourhood": "#c4560b"}
INVERTED = "#c0203a"


def draw(
    rows: Rows,
    controls: Sequence[Rows],
    found: Mapping[str, Mapping[str, Any]],
    kinds: Mapping[str, str],
    titles: Mapping[str, str],
    real: Mapping[str, Mapping[str, Any]],
    heading: str,
    path: Path,
) -> Path:
    """A column a score: above avg against all by kind of generator, below the gap by avg, beside IID clients'.

    Args:
        rows: scores of every generator over the clients.
        controls: over IID clients; those that lack a score show nothing of it.
        found: of each score, as `compare` gives it.
        kinds: of each generator.
        titles: scores by what to call them.
        real: scores of held-out real images over the clients.
        heading: of the whole figure.
        path: of the PNG.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.3 * len(titles), 7.4), layout="constrained")
    panels = figure.subplots(2, len(titles), squeeze=False)
    for (above, below), (score, title) in zip(panels.T, titles.items()):
        draw_kinds(above, rows, score, title, kinds, found[score], real[score])
        known = [control for control in controls if score in next(iter(control.values()))]
        others = [gaps_of(control, score) for control in known]
        draw_gap(below, column(rows, score, "avg"), gaps_of(rows, score), title, f"{title} avg", others)
        below.set_ylim(min(0, below.get_ylim()[0]), None)
    figure.suptitle(heading, fontsize=9)
    return save_figure(figure, path)


def draw_kinds(
    axes: Any,
    rows: Rows,
    score: str,
    title: str,
    kinds: Mapping[str, str],
    found: Mapping[str, Any],
    real: Mapping[str, Any],
) -> None:
    """avg (across) against all (up) of each generator with its errors, by kind; inverted pairs joined.

    Args:
        axes: matplotlib's.
        rows: scores of every generator.
        score: which.
        title: what to call it.
        kinds: of each generator.
        found: as `compare` gives it; pairs inverted beyond error and in no dealing stand out.
        real: avg and all of held-out real images.
    """
    avg, everyone = column(rows, score, "avg"), column(rows, score, "all")
    errors = errors_of(rows, score, "avg"), errors_of(rows, score, "all")
    axes.errorbar(avg, everyone, xerr=errors[0], yerr=errors[1], fmt="none", ecolor="0.8", elinewidth=0.8, zorder=1)
    for pairs, label, width in (
        (found["inverted"], "inverted pairs", 0.6),
        (found["evidence"], "beyond error, not IID", 2),
    ):
        for number, (first, second) in enumerate(pairs):
            ends = [avg[first], avg[second]], [everyone[first], everyone[second]]
            name = f"{label}: {len(pairs):,}" if number == 0 else None
            axes.plot(*ends, color=INVERTED, linewidth=width, zorder=2, label=name)
    for kind in dict.fromkeys(kinds.values()):
        own = [place for place, name in enumerate(rows) if kinds[name] == kind]
        points = [avg[place] for place in own], [everyone[place] for place in own]
        axes.scatter(*points, s=15, marker=MARKERS[kind], color=COLOURS[kind], linewidths=0, zorder=3, label=kind)
    axes.scatter([real["avg"]], [real["all"]], s=60, marker="*", color="black", linewidths=0, label="real images")
    axes.set_xlabel(f"{title} avg")
    axes.set_ylabel(f"{title} all")
    axes.grid(alpha=0.25)
    axes.set_axisbelow(True)
    axes.legend(fontsize=7, loc="upper left")
