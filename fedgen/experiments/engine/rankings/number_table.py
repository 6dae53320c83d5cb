"""Tables of numbers as experiments print them: names on the left, numbers on the right."""

from collections.abc import Iterable, Sequence
from typing import Any

from rich.markup import escape
from rich.table import Table


def number_table(
    title: str,
    headings: Sequence[str],
    rows: Iterable[Sequence[Any] | None],
    names: Sequence[str] = ("score",),
    caption: str = "",
    digits: int = 4,
    **look: Any,
) -> Table:
    """Return a table of cells.

    Args:
        title: above it.
        headings: of the columns.
        rows: texts and integers, shown as they are, numbers, and None where there is nothing to show; a row that is
            None draws a line.
        names: headings of columns of texts, which are set left.
        caption: below it.
        digits: significant ones of numbers.
        look: more arguments of rich's `Table`.
    """
    table = Table(title=escape(title), caption=caption or None, caption_justify="left", **look)
    for heading in headings:
        table.add_column(heading, justify="left" if heading in names else "right")
    for row in rows:
        if row is None:
            table.add_section()
        else:
            table.add_row(*(_shown(cell, digits) for cell in row))
    return table


def _shown(cell: Any, digits: int) -> str:
    if cell is None:
        return "-"
    return f"{cell:.{digits}g}" if isinstance(cell, float) else str(cell)
