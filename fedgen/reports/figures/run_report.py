"""The end of a run: tables and figures of its scores."""

import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import wrap
from typing import Any

from rich.console import Console

from fedgen.evaluation import Run, ScoreRecord, print_report
from fedgen.evaluation.marks import GAP_AGGREGATES, GAPS, axis_of, gap_title, interval
from fedgen.evaluation.panels import OWN_MODEL
from fedgen.evaluation.runs.rebuild import RECIPE
from fedgen.evaluation.tables.gap_table import SPLITS, has_gaps
from fedgen.own_code import program
from fedgen.progress import make_console
from fedgen.reports.figures.curves import BAND, draw_curves, finish_rounds, line_of, new_figure, remarks, save_picture
from fedgen.reports.sentences import findings, next_steps

COLOURS = dict(zip(SPLITS, ("#777777", "#1f5fa8", "#c4560b")))
GAP_COLOURS = dict(zip(GAPS, ("#1f5fa8", "#c4560b")))
EVENTS = "events.out.tfevents.*"  # what TensorBoard writes
INDENT = "  "
CURVES, GENERALISATION = "curves.png", "generalisation.png"


def draw_generalisation(records: Sequence[ScoreRecord], path: str | Path) -> Path:
    """Draws a run's scores on seen and unseen clients and returns the path of the picture (PNG).

    A row for each score, avg on the left and all on the right of it: the three splits against the round, and the gaps
    with 95 % intervals over clients, dashed where real images of all clients stand in for generated ones (the floor).
    Shows the run's first embedding, and the model's own losses.

    Raises:
        ValueError: if no client was kept from training.
    """
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
    title = f"{gap.num_clients} clients of either kind"
    if gap.num_generated:
        title = f"{gap.num_generated:,} generated images, {title}, embedding {gap.embedding}"
    title += "\nbands: 95 % intervals over clients; dashed: real images of all clients in place of generated ones"
    figure.suptitle("\n".join([title, *remarks(shown, figure)]), fontsize=11)
    return save_picture(figure, path)


def _draw_splits(axes: Any, records: Sequence[ScoreRecord], aggregate: str) -> None:
    for split, colour in COLOURS.items():
        _draw_line(axes, records, split, split, colour)
    own = [record for record in records if record.split in SPLITS]
    axes.set_ylabel(f"{aggregate}: {axis_of(own[0])}" if own else aggregate)
    finish_rounds(axes)


def _draw_line(axes: Any, records: Sequence[ScoreRecord], split: str, label: str, colour: str) -> list[ScoreRecord]:
    line = line_of(record for record in records if record.split == split)
    rounds, values = [record.round for record in line], [record.value for record in line]
    axes.plot(rounds, values, color=colour, marker="o", markersize=3.5, linewidth=1.5, label=label)
    return line


def _draw_gaps(axes: Any, records: Sequence[ScoreRecord], aggregate: str) -> None:
    axes.axhline(0, color="0.4", linewidth=0.8)
    for gap, colour in GAP_COLOURS.items():
        line = _draw_line(axes, records, gap, gap_title(gap), colour)
        ends = [interval(record) or (record.value, record.value) for record in line]
        low, high = ([end[side] for end in ends] for side in (0, 1))
        axes.fill_between([record.round for record in line], low, high, color=colour, alpha=BAND, linewidth=0)
        for floor in (record for record in records if record.is_floor and record.split == gap):
            axes.axhline(floor.value, color=colour, linestyle="--", linewidth=1)
    axes.set_ylabel(f"{aggregate}: gap (how much worse)")
    finish_rounds(axes)


def closing_lines(
    folder: Path,
    records: Sequence[ScoreRecord],
    pictures: Sequence[Path] = (),
    recipe: str | None = None,
    width: int = 160,
) -> list[str]:
    """A run's conclusion, its pictures and logs, and the commands that go on from here, under a heading each."""
    room, models = width - len(INDENT), any(record.is_model for record in records)
    said = findings(records, folder) if models else []
    steps = {f"{program()} report {shlex.quote(str(folder))}": "shows the run as one page"} if models else {}
    steps |= next_steps(records, folder, (folder / RECIPE).exists(), recipe=recipe)
    parts = {
        "In short": [part for line in said for part in wrap(line, room, subsequent_indent="  ")],
        "To look at": looks(folder, pictures),
        "What next": beside(steps, room),
    }
    return [part for heading, lines in parts.items() if lines for part in (f"{heading}:", *(INDENT + x for x in lines))]


def beside(commands: Mapping[str, str], room: int) -> list[str]:
    """Commands with what they are for: behind them if that fits into the columns, else above them."""
    if not commands:
        return []
    longest = max(map(len, commands))
    if longest + max(map(len, commands.values())) + 4 <= room:
        return [f"{command:<{longest}}  # {words}" for command, words in commands.items()]
    return [line for command, words in commands.items() for line in (f"# {words}", command)]


def looks(folder: Path, pictures: Sequence[Path] = ()) -> list[str]:
    """The newest grid of samples, the figures, and the logs: TensorBoard's command, or the newest table."""
    grids = sorted((folder / "samples").glob("round=*.png"))
    found = [f"{path}  # samples, above real images" for path in grids[-1:]]
    found += map(str, [*pictures, *sorted(folder.glob("*.html"))])
    newest = sorted(folder.rglob(EVENTS), key=lambda path: path.stat().st_mtime)
    found += [f"tensorboard --logdir {shlex.quote(str(path.parent))}" for path in newest[-1:]]
    tables = sorted(folder.rglob("metrics.csv"), key=lambda path: path.stat().st_mtime)
    return found + [f"{path}  # logged values" for path in tables[-1:]]


def report_run(folder: str | Path, console: Console | None = None, recipe: str | None = None) -> None:
    """Prints a run's tables, draws its curves, `curves.png`, into its folder, and says in words what came of it.

    Args:
        folder: the run's.
        console: where to print; standard output by default.
        recipe: name or path of its recipe, for the commands that go on from it.

    Raises:
        FileNotFoundError: if nothing was scored there.
    """
    console = console or make_console()
    run = Run(folder)
    print_report(run, console)
    records = run.records
    pictures = []
    if any(record.is_model for record in records):
        pictures.append(draw_curves(records, run.folder / CURVES))
    if has_gaps([record for record in records if record.is_model]):
        pictures.append(draw_generalisation(records, run.folder / GENERALISATION))
    for line in closing_lines(run.folder, records, pictures, recipe, console.width):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
