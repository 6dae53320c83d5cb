"""Table and figure of a checkpoint and the images of one class, which FID-avg and FID-all may order differently."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from fedgen.experiments.engine.aggregate_rankings import Rows, column
from fedgen.experiments.engine.results import save_figure
from fedgen.experiments.engine.scored_checkpoints import PCA, title_of
from fedgen.experiments.engine.study import Study
from fedgen.reports.figures.aggregate_panels import draw_aggregates
from fedgen.reports.figures.picture_panels import show_picture

FIGURE = "perfect_generator.png"
SIDES = ("checkpoint", "class")
CLASS_COLOUR = "#c4560b"
MARKERS = ("o", "^")  # of the kinds of generators
PAIR_COLOURS = ("#c0203a", "#7a4fa0")


def grid_of(kind: str, side: str) -> str:
    """File name of the images of one side of a kind's pair."""
    return f"{kind.lower()}-{side}.png"


def pair_table(rows: Rows, pair: Mapping[str, Any], real: str, overlap: bool = False) -> Table:
    """The pair's scores and the real floor's, avg and all, with the one of the pair that each prefers.

    Args:
        rows: scores of every generator.
        pair: "checkpoint" and "class".
        real: the real floor's name.
        overlap: whether real images, the floor's too, are among those that clients are scored by.
    """
    made, stored = rows[pair["checkpoint"]], rows[pair["class"]]
    floor = (
        "some of those that clients train on, below what new images score" if overlap else "a perfect generator's score"
    )
    table = Table(
        title=f"A: {pair['checkpoint']}; B: {pair['class']}",
        caption=f"± standard error over generated images; real: {real}, as many: {floor}",
        caption_justify="left",
    )
    for heading in ("score", "A", "B", "prefers", "real"):
        table.add_column(heading, justify="left" if heading in ("score", "prefers") else "right")
    for score in made:
        for how in ("all", "avg"):
            cells = [f"{row[score][how]:.4g} ± {row[score]['errors'][how]:.1g}" for row in (made, stored)]
            better = "A" if made[score][how] < stored[score][how] else "B"
            name = "FID, PCA" if score == PCA else title_of(score)
            table.add_row(f"{name} {how}", *cells, better, f"{rows[real][score][how]:.4g}")
    return table


def draw(rows: Rows, pairs: Mapping[str, Mapping[str, Any]], study: Study, real: str) -> Path:
    """Each kind's pair of images over its four scores; avg against all of every generator, in FID and KID."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.5 if len(pairs) == 1 else 13, 8.8 if len(pairs) == 1 else 9.4), layout="constrained")
    parts: Any = figure.subfigures(2, 1, height_ratios=(1.15, 1))
    above, below = parts
    for panels, (kind, pair) in zip(above.subfigures(1, len(pairs), squeeze=False)[0], pairs.items()):
        for axes, side in zip(panels.subplots(1, 2), SIDES):
            _draw_grid(axes, study.path(grid_of(kind, side)), pair[side], [rows[pair[one]] for one in SIDES], rows)
    scatters = below.subplots(1, 2)
    for axes, score in zip(scatters, ("fid", "kid")):
        points = _draw_scatter(axes, rows, pairs, study.numbers["checkpoints"], real, score)
    below.colorbar(points, ax=list(scatters), label="share of the checkpoint's training", aspect=30)
    settings = study.settings
    figure.suptitle(
        f"Checkpoints of federated {' and '.join(f'{kind}s' for kind in pairs)}, and images of one class,"
        f" {study.numbers['images']} images each, over a client for each class\n{settings['data']},"
        f" {settings['embedding']}",
        fontsize=10,
    )
    return save_figure(figure, study.path(FIGURE))


def _draw_grid(axes: Any, file: Path, name: str, sides: Sequence[Mapping[str, Any]], rows: Rows) -> None:
    """Images, and the scores below: in bold where the score prefers this one of the two sides."""
    show_picture(axes, file, name.replace(", seed", ",\nseed"), fontsize=10)
    own = rows[name]
    for place, (score, how) in enumerate((score, how) for score in ("fid", "kid") for how in ("all", "avg")):
        best = own[score][how] == min(side[score][how] for side in sides)
        axes.text(
            0.02 + 0.5 * (place % 2), -0.04 - 0.075 * (place // 2), f"{score.upper()}-{how}  {own[score][how]:.4g}",
            transform=axes.transAxes, va="top", fontsize=10, weight="bold" if best else "normal",
        )  # fmt: skip


def _draw_scatter(
    axes: Any,
    rows: Rows,
    pairs: Mapping[str, Mapping[str, Any]],
    about: Mapping[str, Any],
    real: str,
    score: str,
) -> Any:
    """avg against all: checkpoints by how far they are trained, classes, real images; each pair joined by a line."""
    for marker, colour, (kind, pair) in zip(MARKERS, PAIR_COLOURS, pairs.items()):
        made = {name: rows[name] for name, one in about.items() if one["series"] == kind}
        iterations = [about[name]["iterations"] for name in made]
        points = draw_aggregates(
            axes, column(made, score, "avg"), column(made, score, "all"), title_of(score),
            colours=[one / max(iterations) for one in iterations], marker=marker,
        )  # fmt: skip
        points.set_clim(0, 1)
        axes.scatter([], [], marker=marker, s=16, color="0.4", label=f"{kind} checkpoints")
        ends = [[rows[pair[side]][score][how] for side in SIDES] for how in ("avg", "all")]
        axes.plot(*ends, color=colour, linewidth=1.4, zorder=6, marker="o", markersize=9, fillstyle="none",
                  label=f"the pair of the {kind}")  # fmt: skip
    classes = {name: row for name, row in rows.items() if name not in about and name != real}
    axes.scatter(
        column(classes, score, "avg"), column(classes, score, "all"), marker="s", s=26, color=CLASS_COLOUR, zorder=4,
        label="images of one class",
    )  # fmt: skip
    star = {how: rows[real][score][how] for how in ("avg", "all")}
    axes.scatter([star["avg"]], [star["all"]], marker="*", s=110, color="black", zorder=5, label="real images")
    axes.legend(fontsize=8)
    return points
