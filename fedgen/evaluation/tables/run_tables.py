"""The tables printed of a run: its scores, its gaps, what each column selects, and where avg and all disagree."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from fedgen.evaluation.gaps import GAPS
from fedgen.evaluation.records import ScoreRecord
from fedgen.evaluation.runs.run_folder import Run
from fedgen.evaluation.tables.gap_table import distribution_table, gap_tables
from fedgen.evaluation.tables.table import inversions_found, score_tables, selection_table
from fedgen.progress import make_console


def run_tables(records: Sequence[ScoreRecord], width: int = 80) -> list[Table]:
    """The scores of every split and embedding; where some clients never train, the gaps and the clients' spread."""
    places = dict.fromkeys((record.split, record.embedding) for record in records if record.split not in GAPS)
    tables = [table for place in places for table in score_tables(records, *place, width)]
    found = distribution_table(records)
    return [*tables, *gap_tables(records), *([found] if found else [])]


def print_report(run: Run | str | Path, console: Console | None = None) -> None:
    """Prints a run's tables: scores by split and embedding, what each column selects, and the inverted pairs.

    Args:
        run: a run, or its folder.
        console: where to print; the terminal by default.

    Raises:
        FileNotFoundError: if there is no such folder, or it has no scores.
    """
    console = console or make_console()
    records = (run if isinstance(run, Run) else Run(run)).records
    for table in run_tables(records, console.width):
        console.print(table)
    console.print(selection_table(records))
    console.print(inversions_found(records))
