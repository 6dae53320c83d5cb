"""Every client's score beside the two aggregates."""

import math
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedgen.evaluation import ScoreRecord
from fedgen.evaluation.marks import axis_of, title_of
from fedgen.evaluation.records import grouped
from fedgen.evaluation.stored.peers import best_first
from fedgen.numbers import say_number
from fedgen.reports.figures.curves import COLOURS, drawable, finite, new_figure, save_picture, save_titled

if TYPE_CHECKING:  # stored scores are drawn without Lightning
    from fedgen.evaluation.own_models import ClientMatrix

NAMED = 40  # clients; more are drawn without their names
ACROSS = 4  # panels in a row
WRITTEN = 10  # clients; of more the cells have no numbers
CELL = 0.8  # inches of a cell with its number
PANEL = 5.0, 7.5  # least and largest inches of a panel's side
NUMBER = 0.62  # of the colours' range, above which numbers are white
OUTLINE = "#c4560b"


def draw_clients(records: Sequence[ScoreRecord], path: str | Path) -> Path:
    """Draws one model's scores against every client and returns the path of the picture (PNG).

    A panel for each score: the clients' scores with bars of two standard errors, the best served client on top, and avg
    and all as lines with bands of as much. Panels share the clients' order, that of the first score. A value that is
    not finite is written at the left edge.

    Raises:
        ValueError: if no record has clients' scores.
    """
    averages = [record for record in records if record.aggregate == "avg" and record.per_client]
    if not averages:
        raise ValueError("no clients' scores to draw; score a model against clients first")
    first = averages[0]
    order = best_first(first)
    height = 1.8 + 0.27 * min(max(len(order), 3), NAMED)
    across = min(ACROSS, len(averages))
    rows = -(-len(averages) // across)
    figure = new_figure(1.6 + 4.4 * across, height * rows)
    panels = figure.subplots(rows, across, sharey=True, squeeze=False).ravel()
    for axes in panels[len(averages) :]:
        axes.remove()
    for axes, record in zip(panels, averages):
        _draw_score(axes, record, order)
        for aggregate, colour in COLOURS.items():
            _draw_aggregate(axes, [r for r in records if r.name == f"{record.score}_{aggregate}"], colour)
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, fontsize=9, frameon=False)
    for axes in panels[: len(averages) : across]:
        _label_clients(axes, [first.client_names[client] for client in order])
    made = f"{first.num_generated:,} generated images against" if first.num_generated else "against"
    bars = "; bars and bands: two standard errors" if first.per_client_errors else ""
    clients = "1 client" if len(order) == 1 else f"{len(order)} clients"
    return save_titled(figure, path, f"{made} {clients}\nembedding: {first.embedding}{bars}", averages)


def _draw_score(axes: Any, record: ScoreRecord, order: Sequence[int]) -> None:
    values = [record.per_client[client] for client in order]
    errors = [2 * finite(record.per_client_errors[client]) for client in order] if record.per_client_errors else None
    size = 5 if len(order) <= NAMED else 3
    shown = [value if math.isfinite(value) else math.nan for value in values]
    look = {"fmt": "o", "color": "0.25", "markersize": size, "ecolor": "0.6", "elinewidth": 1.2}
    axes.errorbar(shown, range(len(order)), xerr=errors, **look)
    for place, value in enumerate(values):
        if not math.isfinite(value):
            axes.text(0.01, place, str(value), transform=axes.get_yaxis_transform(), va="center", color="0.25")
    axes.set_xlabel(axis_of(record))
    axes.locator_params(axis="x", nbins=6)
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_aggregate(axes: Any, records: Sequence[ScoreRecord], colour: str) -> None:
    for record in records:
        label = f"{record.aggregate} {say_number(record.value, record.standard_error)}"
        if not math.isfinite(record.value):
            axes.plot([], [], color=colour, linewidth=1.6, label=label)
            continue
        spread = 2 * finite(record.standard_error)
        axes.axvspan(record.value - spread, record.value + spread, color=colour, alpha=0.15, linewidth=0)
        axes.axvline(record.value, color=colour, linewidth=1.6, label=label)


def _label_clients(axes: Any, names: Sequence[str]) -> None:
    axes.set_ylim(len(names) - 0.4, -0.6)  # the first on top
    if len(names) <= NAMED:
        axes.set_yticks(range(len(names)), [drawable(name, 28) for name in names])
    else:
        axes.set_yticks([])
        axes.set_ylabel(f"{len(names)} clients, best served first")


def draw_matrices(matrices: "Sequence[ClientMatrix]", path: str | Path) -> Path:
    """Draws matrices and returns the path of the picture (PNG)."""
    if not matrices:
        raise ValueError("no matrix to draw; score clients' own models first")
    rows = grouped(matrices, lambda matrix: (matrix.split, matrix.embedding))
    across = max(map(len, rows.values()))
    side = min(max(CELL * max(len(matrix.clients) for matrix in matrices), PANEL[0]), PANEL[1])
    figure = new_figure((side + 1.3) * across, (side + 1) * len(rows) + 0.5)
    panels = figure.subplots(len(rows), across, squeeze=False)
    for axes, own in zip(panels, rows.values()):
        for panel, matrix in zip(axes, own):
            _draw(panel, matrix)
        for panel in axes[len(own) :]:
            panel.remove()
    first = matrices[0]
    made = f"{first.num_generated:,} images of each model, " if first.num_generated else ""
    figure.suptitle(f"each client's own model on each client's images: {made}round {first.round}", fontsize=11)
    return save_picture(figure, path)


def _draw(axes: Any, matrix: "ClientMatrix") -> None:
    from matplotlib.patches import Rectangle

    worse = "Blues_r" if matrix.higher_is_better else "Blues"
    image = axes.imshow(matrix.values.numpy(), cmap=worse, interpolation="nearest", aspect="auto")
    for row, column in matrix.own:
        corner = (column - 0.5, row - 0.5)
        axes.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor=OUTLINE, linewidth=2))
    if max(matrix.values.shape) <= WRITTEN:
        _write(axes, matrix, image)
    for names, place in ((matrix.clients, axes.set_xticks), (matrix.models, axes.set_yticks)):
        turned = place == axes.set_xticks and sum(map(len, names)) > NAMED
        shown = names if len(names) <= NAMED else ()
        place(range(len(shown)), shown, fontsize=8, rotation=90 if turned else 0)
    axes.set(xlabel="images of", ylabel="own model of")
    axes.set_title(f"{matrix.reference}\nembedding: {matrix.embedding}", fontsize=9)
    direction = "higher is better" if matrix.higher_is_better else "lower is better"
    axes.figure.colorbar(image, ax=axes, fraction=0.05, pad=0.02, label=f"{title_of(matrix.score)} ({direction})")


def _write(axes: Any, matrix: "ClientMatrix", image: Any) -> None:
    for row, column in product(range(len(matrix.models)), range(len(matrix.clients))):
        value = float(matrix.values[row, column])
        error = None if matrix.errors is None else float(matrix.errors[row, column])
        share = image.norm(value)
        dark = (1 - share if matrix.higher_is_better else share) > NUMBER
        text = say_number(value, error).replace("±", "\n±")
        axes.text(column, row, text, ha="center", va="center", fontsize=7.5, color="white" if dark else "0.15")
