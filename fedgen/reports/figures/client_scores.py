"""Every client's score beside the two aggregates."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedgen.evaluation import ScoreRecord
from fedgen.evaluation.directions import axis_of
from fedgen.evaluation.stored.stored_table import best_first
from fedgen.evaluation.tables.table import format_value
from fedgen.reports.figures.curves import COLOURS, finite, remarks
from fedgen.reports.figures.saving import save_picture

NAMED = 40  # clients; more are drawn without their names
ACROSS = 4  # panels in a row


def draw_clients(records: Sequence[ScoreRecord], path: str | Path) -> Path:
    """Draws one model's scores against every client and returns the path of the picture (PNG).

    A panel for each score: the clients' scores with bars of two standard errors, the best served client on top, and avg
    and all as lines with bands of as much. Panels share the clients' order, that of the first score. A value that is
    not finite is written at the left edge.

    Raises:
        ValueError: if no record has clients' scores.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    averages = [record for record in records if record.aggregate == "avg" and record.per_client]
    if not averages:
        raise ValueError("no clients' scores to draw; score a model against clients first")
    first = averages[0]
    order = best_first(first)
    height = 1.8 + 0.27 * min(max(len(order), 3), NAMED)
    across = min(ACROSS, len(averages))
    rows = -(-len(averages) // across)
    figure = Figure(figsize=(1.6 + 4.4 * across, height * rows), layout="constrained")
    FigureCanvasAgg(figure)
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
    title = f"{made} {clients}\nembedding: {first.embedding}{bars}"
    figure.suptitle("\n".join([title, *remarks(averages, figure)]), fontsize=11)
    return save_picture(figure, path)


def _draw_score(axes: Any, record: ScoreRecord, order: Sequence[int]) -> None:
    values = [record.per_client[client] for client in order]
    errors = [2 * finite(record.per_client_errors[client]) for client in order] if record.per_client_errors else None
    size = 5 if len(order) <= NAMED else 3
    shown = [value if math.isfinite(value) else math.nan for value in values]
    axes.errorbar(
        shown, range(len(order)), xerr=errors, fmt="o", color="0.25", markersize=size, ecolor="0.6", elinewidth=1.2
    )
    for place, value in enumerate(values):
        if not math.isfinite(value):
            axes.text(0.01, place, str(value), transform=axes.get_yaxis_transform(), va="center", color="0.25")
    axes.set_xlabel(axis_of(record))
    axes.locator_params(axis="x", nbins=6)
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _draw_aggregate(axes: Any, records: Sequence[ScoreRecord], colour: str) -> None:
    for record in records:
        label = f"{record.aggregate} {format_value(record.value, record.standard_error)}"
        if not math.isfinite(record.value):
            axes.plot([], [], color=colour, linewidth=1.6, label=label)
            continue
        spread = 2 * finite(record.standard_error)
        axes.axvspan(record.value - spread, record.value + spread, color=colour, alpha=0.15, linewidth=0)
        axes.axvline(record.value, color=colour, linewidth=1.6, label=label)


def _label_clients(axes: Any, names: Sequence[str]) -> None:
    axes.set_ylim(len(names) - 0.4, -0.6)  # the first on top
    if len(names) <= NAMED:
        shown = [name if len(name) <= 28 else f"...{name[-25:]}" for name in names]
        # a dollar is no mathematics, and a byte that is no text cannot be drawn
        texts = [name.encode(errors="replace").decode() for name in shown]
        axes.set_yticks(range(len(names)), texts, parse_math=False)
    else:
        axes.set_yticks([])
        axes.set_ylabel(f"{len(names)} clients, best served first")
