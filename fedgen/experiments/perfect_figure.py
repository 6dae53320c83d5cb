"""Table and figure of a checkpoint and the images of one class, which FID-avg and FID-all may order differently."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.table import Table

from fedgen.experiments.checkpoints import PCA, title_of
from fedgen.experiments.comparison import Rows, column
from fedgen.experiments.results import save_figure
from fedgen.experiments.study import Study
from fedgen.figures.aggregates import draw_aggregates

FIGURE = "perfect_generator.png"
GRIDS = {"checkpoint": "checkpoint.png", "class": "class.png"}
CLASS_COLOUR, PAIR_COLOUR = "#c4560b", "#c0203a"


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


def draw(rows: Rows, pair: Mapping[str, Any], study: Study, real: str) -> Path:
    """The pair's images over their four scores; avg against all of every generator, in FID and KID."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.5, 8.8), layout="constrained")
    panels = figure.subplots(2, 2, height_ratios=(1.15, 1))
    for axes, side in zip(panels[0], GRIDS):
        _draw_grid(axes, study.path(GRIDS[side]), pair[side], rows[pair[side]], rows, pair)
    for axes, score in zip(panels[1], ("fid", "kid")):
        points = _draw_scatter(axes, rows, pair, study.numbers["checkpoints"], real, score)
    figure.colorbar(points, ax=list(panels[1]), label="local iterations of the checkpoint", aspect=30)
    settings = study.settings
    figure.suptitle(
        f"Checkpoints of federated GANs and images of one class, {study.numbers['images']} images each, over a client"
        f" for each class\n{settings['data']}, {settings['embedding']}",
        fontsize=10,
    )
    return save_figure(figure, study.path(FIGURE))


def _draw_grid(axes: Any, file: Path, name: str, own: Mapping[str, Any], rows: Rows, pair: Mapping[str, Any]) -> None:
    """Images, and the scores below: in bold where the score prefers this side."""
    from matplotlib.image import imread

    picture = imread(file)
    axes.imshow(picture, cmap="gray", interpolation="nearest")
    axes.set_title(name, fontsize=10)
    axes.set_xticks([])
    axes.set_yticks([])
    sides = [rows[pair[side]] for side in GRIDS]
    for place, (score, how) in enumerate((score, how) for score in ("fid", "kid") for how in ("all", "avg")):
        best = own[score][how] == min(side[score][how] for side in sides)
        axes.text(
            0.04 + 0.5 * (place % 2), -0.04 - 0.075 * (place // 2), f"{score.upper()}-{how}  {own[score][how]:.4g}",
            transform=axes.transAxes, va="top", fontsize=10, weight="bold" if best else "normal",
        )  # fmt: skip


def _draw_scatter(
    axes: Any, rows: Rows, pair: Mapping[str, Any], about: Mapping[str, Any], real: str, score: str
) -> Any:
    """avg against all: checkpoints by their iterations, classes, real images; the pair joined by a line."""
    made = {name: rows[name] for name in about}
    classes = {name: row for name, row in rows.items() if name not in about and name != real}
    values = {how: column(rows, score, how) for how in ("avg", "all")}
    names = list(rows)
    places = [[names.index(pair["checkpoint"]), names.index(pair["class"])]]
    points = draw_aggregates(
        axes, column(made, score, "avg"), column(made, score, "all"), title_of(score),
        colours=[one["iterations"] for one in about.values()],
    )  # fmt: skip
    axes.scatter(
        column(classes, score, "avg"), column(classes, score, "all"), marker="s", s=26, color=CLASS_COLOUR, zorder=4,
        label="images of one class",
    )  # fmt: skip
    star = {how: rows[real][score][how] for how in ("avg", "all")}
    axes.scatter([star["avg"]], [star["all"]], marker="*", s=110, color="black", zorder=5, label="real images")
    for first, second in places:
        ends = [[values[how][first], values[how][second]] for how in ("avg", "all")]
        axes.plot(*ends, color=PAIR_COLOUR, linewidth=1.4, zorder=6, marker="o", markersize=9, fillstyle="none",
                  label="the pair above")  # fmt: skip
    axes.legend(fontsize=8)
    return points
