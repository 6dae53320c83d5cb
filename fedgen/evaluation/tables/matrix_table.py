"""The cross-client matrix as a table."""

from rich.markup import escape
from rich.table import Table

from fedgen.evaluation.personal.client_matrix import ClientMatrix
from fedgen.evaluation.tables.table import format_value


def matrix_table(matrix: ClientMatrix, errors: bool = True) -> Table:
    """A row for each client's own model, a column for each client's images; the best of a column is bold.

    Args:
        matrix: of few clients, to be readable.
        errors: whether values have their standard errors.
    """
    title = f"{matrix.score} of each client's own model, round {matrix.round}: {matrix.num_generated} images of each"
    place = f"against {matrix.reference}, embedding {matrix.embedding}"
    table = Table(title=escape(f"{title}\n{place}"), caption=escape(matrix.words), caption_justify="left")
    table.add_column("model of", overflow="fold")
    for name in matrix.clients:
        table.add_column(escape(name), justify="right")
    for row, name in enumerate(matrix.models):
        table.add_row(escape(name), *(_cell(matrix, row, column, errors) for column in range(len(matrix.clients))))
    return table


def _cell(matrix: ClientMatrix, row: int, column: int, errors: bool) -> str:
    value = float(matrix.values[row, column])
    known = None if matrix.errors is None else float(matrix.errors[row, column])
    text = format_value(value, known) if errors else f"{value:.3g}"
    return f"[bold]{text}[/bold]" if matrix.best[column] == row else text
