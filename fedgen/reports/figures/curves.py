"""Pictures of scores: over rounds, avg against all, and of every client beside the two aggregates."""

import math
import textwrap
import warnings
from collections.abc import Iterable, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedgen.evaluation import Columns, Run, ScoreRecord, by_column
from fedgen.evaluation.marks import (
    GAP_AGGREGATES,
    GAPS,
    axis_of,
    explained,
    gap_title,
    interval,
    marked,
    title_of,
)
from fedgen.evaluation.records import grouped, say_number, say_sampling
from fedgen.evaluation.runs.selection import default_column
from fedgen.evaluation.tables.table import SPLITS, best_first, has_gaps
from fedgen.federated.left_out import shorten
from fedgen.federated.run_files import TIME_FILE, read_times
from fedgen.foreign_text import printable
from fedgen.io.files import atomic_write
from fedgen.reports.controls import Controls

if TYPE_CHECKING:  # scores are drawn without torch
    from fedgen.evaluation.own_models import ClientMatrix

LONGEST_LINE = 200  # characters; the layout takes the more time the longer one is
LONGEST_REMARK = 600  # characters; panels get what room their title leaves
LONGEST_NAME = 60  # characters of a run's
COLOURS = {"avg": "#c4560b", "all": "#1f5fa8"}
SPLIT_COLOURS = dict(zip(SPLITS, ("#777777", "#1f5fa8", "#c4560b")))
GAP_COLOURS = dict(zip(GAPS, ("#1f5fa8", "#c4560b")))
CONTROL_STYLES = ":", "-."
BAND = 0.18  # opacity of two standard errors
LINE: dict[str, Any] = {"marker": "o", "markersize": 3.5, "linewidth": 1.5}
NAME = 0.34, 0.1  # width and height of a point's name, as shares of the range of all points
NAMED = 40  # clients; more are drawn without their names
ACROSS = 4  # panels in a row
WRITTEN = 10  # clients; of more the cells have no numbers
CELL = 0.8  # inches of a cell with its number
PANEL = 5.0, 7.5  # least and largest inches of a panel's side
NUMBER = 0.62  # of the colours' range, above which numbers are white


def new_figure(width: float, height: float) -> Any:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def save_picture(figure: Any, path: str | Path, dpi: int = 130) -> Path:
    """Writes a figure as PNG, whole or not at all; returns its path."""
    from matplotlib.text import Text

    powers = {
        label
        for axes in figure.findobj(lambda artist: hasattr(artist, "get_xscale"))
        for axis in (axes.xaxis, axes.yaxis)
        if axis.get_scale() != "linear"
        for label in axis.get_ticklabels(which="both")
    }
    for text in figure.findobj(Text):
        if text not in powers:
            text.set_parse_math(False)
            shown = "\n".join(printable(line, LONGEST_LINE) for line in text.get_text().split("\n"))
            if shown != text.get_text():
                text.set_text(shown)
    with atomic_write(path) as file, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph", UserWarning)  # names in scripts that the font lacks show as boxes
        figure.savefig(file, format="png", dpi=dpi)
    return Path(path)


def drawable(name: str, most: int) -> str:
    """A name, cut at its beginning; a byte that is no text cannot be drawn."""
    return (name if len(name) <= most else f"...{name[3 - most :]}").encode(errors="replace").decode()


def draw_curves(records: Sequence[ScoreRecord], path: str | Path, controls: Controls | None = None) -> Path:
    """Draws a run's scores and returns the path of the picture (PNG).

    A row for each score: avg and all against the round, with bands of two standard errors and the floor (real images
    scored as if generated) as dashed lines, and avg against all, one point a checkpoint. Pairs of points that lie on a
    falling line are those that the two aggregates order differently. Shows the run's first split and embedding, and
    controls as dotted lines. Values that are not finite are left out.

    Raises:
        ValueError: if there is nothing to draw.
    """
    first = next((record for record in records if record.is_model), None)
    if first is None:
        raise ValueError("no scores to draw; evaluate a checkpoint first")
    shown = [r for r in records if (r.split, r.embedding) == (first.split, first.embedding)]
    scores = list(dict.fromkeys(record.score for record in shown))
    figure = new_figure(10, 3.4 * len(scores) + 0.7)
    axes = figure.subplots(len(scores), 2, squeeze=False, width_ratios=(1.9, 1))
    for (left, right), score in zip(axes, scores):
        own = [record for record in shown if record.score == score]
        for style, (arm, records) in zip(CONTROL_STYLES, (controls or {}).items()):
            alike = [r for r in records if (r.split, r.embedding, r.score) == (first.split, first.embedding, score)]
            _draw_control(left, arm, style, alike)
        _draw_rounds(left, own)
        _draw_scatter(right, own, score)
    axes[-1][0].set_xlabel("round")
    title = f"{first.num_generated:,} generated {first.noun} against {first.real}\nembedding: {first.embedding}"
    return save_titled(figure, path, title, shown)


def _draw_rounds(axes: Any, records: Sequence[ScoreRecord]) -> None:
    lines = {name: line_of(record for record in records if record.aggregate == name) for name in COLOURS}
    for aggregate, colour in COLOURS.items():
        if line := lines[aggregate]:
            draw_line(axes, [record.round for record in line], line, aggregate, colour)
        for floor in (r for r in records if r.is_floor and r.aggregate == aggregate and math.isfinite(r.value)):
            label = f"{aggregate} of {floor.num_generated:,} real {floor.noun}"
            axes.axhline(floor.value, color=colour, linestyle="--", linewidth=1, label=label)
    if any(finite(record.standard_error) for line in lines.values() for record in line):
        axes.fill_between([], [], color="black", alpha=BAND, linewidth=0, label="± 2 standard errors")
    axes.set_ylabel(axis_of(max(records, key=lambda record: record.is_optimised)))
    finish_rounds(axes, ncols=2)


def _draw_control(axes: Any, arm: str, style: str, records: Sequence[ScoreRecord]) -> None:
    axes.plot([], [], style, color="0.3", label=arm)
    for aggregate, colour in COLOURS.items():
        line = line_of(record for record in records if record.aggregate == aggregate)
        axes.plot([one.round for one in line], [one.value for one in line], style, color=colour, linewidth=1.2)


def finish_rounds(axes: Any, ncols: int = 1) -> None:
    """Gives a panel over rounds its grid, whole numbers across, and a legend of its lines."""
    axes.margins(x=0.02)
    axes.grid(alpha=0.25)
    axes.xaxis.get_major_locator().set_params(integer=True)
    if axes.lines:
        axes.legend(fontsize=8, ncols=ncols, framealpha=0.8)


def draw_line(
    axes: Any, across: Sequence[Any], records: Sequence[ScoreRecord], label: str, colour: str | None = None
) -> None:
    """Draws records' values with a band of two standard errors."""
    values, spread = [r.value for r in records], [2 * finite(r.standard_error) for r in records]
    (line,) = axes.plot(across, values, color=colour, label=label, **LINE)
    low, high = ([v + sign * s for v, s in zip(values, spread)] for sign in (-1, 1))
    axes.fill_between(across, low, high, color=line.get_color(), alpha=BAND, linewidth=0)


def _draw_scatter(axes: Any, records: Sequence[ScoreRecord], score: str) -> None:
    by_round = {r.round: r for r in line_of(record for record in records if record.aggregate == "all")}
    avg = line_of(record for record in records if record.aggregate == "avg" and record.round in by_round)
    pairs = [(record, by_round[record.round]) for record in avg]
    if pairs:
        x, y = [a.value for a, _ in pairs], [b.value for _, b in pairs]
        errors = [[finite(r.generated_error) for r in side] for side in zip(*pairs)]
        axes.errorbar(x, y, xerr=errors[0], yerr=errors[1], fmt="none", ecolor="0.7", elinewidth=1, zorder=1)
        axes.scatter(x, y, c=[a.round for a, _ in pairs], cmap="viridis", s=18, zorder=2)
        for record, other in pairs[:1] + pairs[1:][-1:]:
            at = (record.value, other.value)
            name = "untrained" if record.round == -1 else f"round {record.round}"
            right, up = free_side(at, list(zip(x, y)))
            anchor = {"ha": "left" if right else "right", "va": "bottom" if up else "top"}
            apart = (5 if right else -5, 4 if up else -4)
            axes.annotate(name, at, textcoords="offset points", xytext=apart, fontsize=8, **anchor)
        axes.margins(x=0.35, y=0.15)  # room for the names
    for label, aggregate in ((axes.set_xlabel, "avg"), (axes.set_ylabel, "all")):
        label(marked(f"{title_of(score)} {aggregate}", records))
    axes.grid(alpha=0.25)


def free_side(at: tuple[float, float], points: Sequence[tuple[float, float]]) -> tuple[bool, bool]:
    """Whether a point's name stands to its right, and above it: where it lies on fewest of the points."""
    low, high = ([end(values) for values in zip(*points)] for end in (min, max))
    size = [top - bottom or 1.0 for bottom, top in zip(low, high)]
    apart = [[(one - own) / wide for one, own, wide in zip(point, at, size)] for point in points]
    inwards = 2 * at[0] <= low[0] + high[0]

    def covered(side: tuple[bool, bool]) -> int:
        signs = [1 if forth else -1 for forth in side]
        boxes = ([sign * way for sign, way in zip(signs, ways)] for ways in apart if any(ways))
        return sum(0 <= across <= NAME[0] and -0.03 <= along <= NAME[1] for across, along in boxes)

    return min([(inwards, True), (inwards, False), (not inwards, True), (not inwards, False)], key=covered)


def save_titled(figure: Any, path: str | Path, title: str, records: Sequence[ScoreRecord]) -> Path:
    """Writes a figure under a title, and below it how models sampled and what marks of scores mean."""
    said = sorted({say_sampling(record.sampling) for record in records if record.is_model} - {""})
    width = int(11 * figure.get_figwidth())  # characters of the titles' size
    texts = [shorten(text, LONGEST_REMARK) for text in [*said, *explained(records)]]
    figure.suptitle("\n".join([title, *(line for text in texts for line in textwrap.wrap(text, width))]), fontsize=11)
    return save_picture(figure, path)


def finite(error: float | None) -> float:
    """The length of a bar for an error: 0 where there is none, or no end of it."""
    return error if error is not None and math.isfinite(error) else 0.0


def line_of(records: Iterable[ScoreRecord]) -> list[ScoreRecord]:
    """The models' records with finite values, by round."""
    own = [record for record in records if record.is_model and math.isfinite(record.value)]
    return sorted(own, key=lambda record: -1 if record.round is None else record.round)


def draw_generalisation(records: Sequence[ScoreRecord], path: str | Path) -> Path:
    """Draws a run's scores on seen and unseen clients and returns the path of the picture (PNG).

    A row for each score, avg on the left and all on the right of it: the three splits against the round, and the gaps
    with 95 % intervals over clients, dashed where real images of all clients stand in for generated ones (the floor).
    Shows the run's first embedding, and the model's own losses.

    Raises:
        ValueError: if no client was kept from training.
    """
    from fedgen.evaluation.panels import OWN_MODEL  # with torch, which a page is written without

    models = [record for record in records if record.is_model]
    if not has_gaps(models):
        raise ValueError("no gaps to draw: no client was kept from training (give the data module a `split`)")
    shown_in = (models[0].embedding, OWN_MODEL)
    shown = [r for r in records if r.embedding in shown_in and r.aggregate in GAP_AGGREGATES and math.isfinite(r.value)]
    scores = list(dict.fromkeys(record.score for record in shown if record.split in GAPS))
    figure = new_figure(13.5, 3.5 * len(scores) + 0.8)
    panels = figure.subplots(len(scores), 4, squeeze=False)
    for row, score in zip(panels, scores):
        for aggregate, (left, right) in zip(GAP_AGGREGATES, (row[:2], row[2:])):
            own = [record for record in shown if (record.score, record.aggregate) == (score, aggregate)]
            _draw_splits(left, own, aggregate)
            _draw_gaps(right, own, aggregate)
    for axes in panels[-1]:
        axes.set_xlabel("round")
    gap = next(record for record in shown if record.split in GAPS and record.is_model)
    title = f"{gap.num_clients} clients of each kind"
    if gap.num_generated:
        title = f"{gap.num_generated:,} generated {gap.noun}, {title}, embedding {gap.embedding}"
    title += f"\nbands: 95 % intervals over clients; dashed: real {gap.noun} of all clients in place of generated ones"
    return save_titled(figure, path, title, shown)


def _draw_splits(axes: Any, records: Sequence[ScoreRecord], aggregate: str) -> None:
    for split, colour in SPLIT_COLOURS.items():
        line = line_of(record for record in records if record.split == split)
        axes.plot([one.round for one in line], [one.value for one in line], color=colour, label=split, **LINE)
    own = [record for record in records if record.split in SPLITS]
    axes.set_ylabel(f"{aggregate}: {axis_of(own[0])}" if own else aggregate)
    finish_rounds(axes)


def _draw_gaps(axes: Any, records: Sequence[ScoreRecord], aggregate: str) -> None:
    axes.axhline(0, color="0.4", linewidth=0.8)
    for gap, colour in GAP_COLOURS.items():
        line = line_of(record for record in records if record.split == gap)
        rounds, ends = [one.round for one in line], [interval(one) or (one.value, one.value) for one in line]
        axes.plot(rounds, [one.value for one in line], color=colour, label=gap_title(gap), **LINE)
        low, high = ([end[side] for end in ends] for side in (0, 1))
        axes.fill_between(rounds, low, high, color=colour, alpha=BAND, linewidth=0)
        for floor in (record for record in records if record.is_floor and record.split == gap):
            axes.axhline(floor.value, color=colour, linestyle="--", linewidth=1)
    axes.set_ylabel(f"{aggregate}: gap (how much worse)")
    finish_rounds(axes)


def scores_over_time(run: str | Path, column: str) -> tuple[list[float], list[ScoreRecord]]:
    """Return a run's seconds on the simulated clock and its scores at them, of one column."""
    if not (times := read_times(run)):
        raise FileNotFoundError(
            f"{run} has no {TIME_FILE}: train with FedBuffStrategy, or with FedAvgStrategy(speeds=...), and evaluate"
        )
    columns = by_column(Run(run).records)
    if column not in columns:
        raise ValueError(f"{run} has no column {column!r}; it has {', '.join(columns)}")
    known = [one for one in columns[column] if one.round == -1 or one.round in times]
    return [0.0 if one.round is None or one.round < 0 else times[one.round].seconds for one in known], known


def draw_over_time(runs: Sequence[str | Path], path: str | Path, column: str | None = None) -> Path:
    """Draw one column of several runs against simulated seconds, with bands of two standard errors; gives the path.

    The first run's floor, real images scored as if generated, is a dashed line.

    Args:
        runs: folders, each with the simulated time that its strategy has kept.
        path: of the picture (PNG).
        column: e.g. "fid_all"; the one that `fedgen.select` takes for the first run by default.

    Raises:
        FileNotFoundError: for a run that has kept no simulated time.
        ValueError: for a column that a run has not, naming those it has.
    """
    first = Run(runs[0]).records
    column = column or default_column(by_column(first))
    found = {str(run): scores_over_time(run, column) for run in runs}
    figure = new_figure(7, 4)
    axes = figure.subplots()
    for name, (seconds, records) in found.items():
        draw_line(axes, seconds, records, shorten(Path(name).name, LONGEST_NAME))
    columns = Columns.of(first)
    floor = next((record for record in first if record.is_floor and columns.name(record) == column), None)
    if floor is not None:
        label = f"{floor.num_generated:,} real {floor.noun}"
        axes.axhline(floor.value, color="black", linestyle="--", linewidth=1, label=label)
    axes.set(xlabel="simulated seconds", ylabel=f"{axis_of(next(iter(found.values()))[1][0])}, {column}")
    axes.set_xlim(left=0)
    axes.grid(alpha=0.25)
    axes.legend(fontsize=9)
    return save_picture(figure, path)


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
    made = f"{first.num_generated:,} generated {first.noun} against" if first.num_generated else "against"
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
            _draw_matrix(panel, matrix)
        for panel in axes[len(own) :]:
            panel.remove()
    first = matrices[0]
    made = f"{first.num_generated:,} images of each model, " if first.num_generated else ""
    figure.suptitle(f"each client's own model on each client's images: {made}round {first.round}", fontsize=11)
    return save_picture(figure, path)


def _draw_matrix(axes: Any, matrix: "ClientMatrix") -> None:
    from matplotlib.patches import Rectangle

    worse = "Blues_r" if matrix.higher_is_better else "Blues"
    image = axes.imshow(matrix.values.numpy(), cmap=worse, interpolation="nearest", aspect="auto")
    for row, column in matrix.own:
        corner = (column - 0.5, row - 0.5)
        axes.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor=COLOURS["avg"], linewidth=2))
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
