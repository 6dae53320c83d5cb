"""What a run shows at its end: tables and figures of its scores."""

from pathlib import Path

from rich.console import Console

from fedgen.evaluation import Run, print_report
from fedgen.evaluation.gap_table import has_gaps
from fedgen.figures.curves import draw_curves
from fedgen.figures.generalisation import draw_generalisation
from fedgen.progress import make_console

CURVES, GENERALISATION = "curves.png", "generalisation.png"


def report_run(folder: str | Path, console: Console | None = None) -> None:
    """Prints a run's tables and draws its curves, `curves.png`, into its folder.

    Raises:
        FileNotFoundError: if nothing was scored there.
    """
    console = console or make_console()
    run = Run(folder)
    print_report(run, console)
    records = run.records
    if any(record.is_model for record in records):
        console.print(f"figure: {draw_curves(records, run.folder / CURVES)}")
    if has_gaps([record for record in records if record.is_model]):
        console.print(f"figure: {draw_generalisation(records, run.folder / GENERALISATION)}")
