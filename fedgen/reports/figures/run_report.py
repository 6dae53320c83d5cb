"""The end of a run: tables and figures of its scores."""

from pathlib import Path

from rich.console import Console

from fedgen.evaluation import Run, print_report
from fedgen.evaluation.tables.gap_table import has_gaps
from fedgen.progress import make_console
from fedgen.reports.figures.closing import closing_lines
from fedgen.reports.figures.curves import draw_curves
from fedgen.reports.figures.generalisation import draw_generalisation

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
