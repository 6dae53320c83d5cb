"""A message after the first round: what becomes of a module's state in clients' turns."""

from collections.abc import Sequence

from lightning.pytorch import Callback, LightningModule, Trainer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedgen.callbacks.round_progress import paused
from fedgen.federated import FedAvgStrategy
from fedgen.federated.state_table import StateRow, rows_so_far, table_of
from fedgen.io.files import in_bytes
from fedgen.progress import make_console

TITLE = "What becomes of the module's state in clients' turns"


class StateReport(Callback):
    """Prints all of `FedAvgStrategy.state_table()` after the first round that is trained: `fedgen fit --explain`.

    A table where there is a terminal, lines of text elsewhere, in place of the short one of the log. Training goes on.
    Other strategies have none to show.

    Args:
        console: to print on; standard output by default.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console, self._is_shown = console, False

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._is_shown = False
        if isinstance(trainer.strategy, FedAvgStrategy):
            trainer.strategy.silence_state_table()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._is_shown or not trainer.is_global_zero or not (rows := rows_so_far(trainer.strategy)):
            return
        self._is_shown = True
        with paused(trainer):
            show_state(rows, self._console or make_console())


def show_state(rows: Sequence[StateRow], console: Console) -> None:
    """Prints rows of state with all names: a table on a terminal, the lines of `table_of` elsewhere."""
    if not console.is_terminal:
        console.print(f"{TITLE}:\n{table_of(rows, most=None)}", markup=False, highlight=False, soft_wrap=True)
        return
    table = Table(title=TITLE, title_justify="left", show_lines=True)
    table.add_column("what becomes of it", ratio=2)
    table.add_column("a client sends", justify="right", no_wrap=True)
    table.add_column("state", ratio=5)
    for row in rows:
        size = f"{in_bytes(row.num_bytes)} a round" if row.num_bytes else ""
        table.add_row(Text(row.fate), size, Text(", ".join(row.names)))
    console.print(table)
