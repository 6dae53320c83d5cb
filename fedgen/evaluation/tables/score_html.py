"""Score tables as HTML, for notebooks."""

import io
from collections.abc import Sequence

from rich.console import Console

from fedgen.evaluation.records import ScoreRecord
from fedgen.evaluation.tables.run_tables import run_tables

WIDTH = 120  # columns


def html_of(records: Sequence[ScoreRecord]) -> str:
    """The tables of some records as a preformatted block; "" for none."""
    if not records:
        return ""
    console = Console(record=True, file=io.StringIO(), width=WIDTH, force_jupyter=False)
    for table in run_tables(records, WIDTH):
        console.print(table)
    return console.export_html(inline_styles=True, code_format='<pre style="line-height: 1.2">{code}</pre>')
