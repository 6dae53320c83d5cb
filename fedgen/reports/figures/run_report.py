"""The end of a run: tables and figures of its scores."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import wrap

from rich.console import Console

from fedgen.called_as import program
from fedgen.evaluation import Run, ScoreRecord, print_report
from fedgen.evaluation.runs.rebuild import RECIPE
from fedgen.evaluation.tables.gap_table import has_gaps
from fedgen.progress import make_console
from fedgen.reports.figures.curves import draw_curves
from fedgen.reports.figures.generalisation import draw_generalisation
from fedgen.reports.sentences import findings, next_steps

EVENTS = "events.out.tfevents.*"  # what TensorBoard writes
INDENT = "  "


def closing_lines(
    folder: Path,
    records: Sequence[ScoreRecord],
    pictures: Sequence[Path] = (),
    recipe: str | None = None,
    width: int = 160,
) -> list[str]:
    """A run's conclusion, its pictures and logs, and the commands that go on from here, under a heading each.

    Args:
        folder: the run's.
        records: its scores.
        pictures: drawn of them just now.
        recipe: its name or path, as it was given to `fedgen fit`; None of runs in Python.
        width: of the terminal: sentences are wrapped, and words on commands are put above them where there is no room.
    """
    room, models = width - len(INDENT), any(record.is_model for record in records)
    said = findings(records, folder) if models else []
    steps = {f"{program()} report {_quoted(folder)}": "shows the run as one page"} if models else {}
    steps |= next_steps(records, folder, (folder / RECIPE).exists(), recipe=recipe)
    parts = {
        "In short": [part for line in said for part in wrap(line, room, subsequent_indent="  ")],
        "To look at": looks(folder, pictures),
        "What next": beside(steps, room),
    }
    return [part for heading, lines in parts.items() if lines for part in (f"{heading}:", *(INDENT + x for x in lines))]


def beside(commands: Mapping[str, str], room: int) -> list[str]:
    """Commands with what they are for: behind them if that fits into so many columns, else above them."""
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
    found += [str(path) for path in pictures]
    found += [str(path) for path in sorted(folder.glob("*.html"))]
    newest = sorted(folder.rglob(EVENTS), key=lambda path: path.stat().st_mtime)
    found += [f"tensorboard --logdir {_quoted(path.parent)}" for path in newest[-1:]]
    tables = sorted(folder.rglob("metrics.csv"), key=lambda path: path.stat().st_mtime)
    return found + [f"{path}  # logged values" for path in tables[-1:]]


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))


CURVES, GENERALISATION = "curves.png", "generalisation.png"


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
