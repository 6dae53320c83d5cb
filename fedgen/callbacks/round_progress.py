"""A progress bar over a run's rounds."""

import logging
import math
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from importlib.util import find_spec
from typing import Any, TextIO

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar, RichProgressBar
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fedgen.data.optional_attributes import optional
from fedgen.federated import FedAvgStrategy
from fedgen.federated.state_table import StateRow, rows_so_far, table_of
from fedgen.io.files import in_bytes
from fedgen.models.optional_hooks import ScoringCallback
from fedgen.progress import make_console

SHORTEST_BAR, LONGEST_BAR = 8, 40
LONGEST_LOSS = len("-1.23e-05")
REFRESHES = 4  # a second
SLOW = 1.0  # seconds of a round from which on its clients are counted, too
PLAIN_FIRST, PLAIN_EVERY = 10.0, 60.0  # seconds between lines where there is no terminal
TITLE = "What becomes of the module's state in clients' turns"


@dataclass(frozen=True)
class Progress:
    unit: str
    done: int
    total: int | None
    seconds: float
    since: int = 0
    turn: tuple[int, int] | None = None
    loss: str = ""
    score: str = ""

    @property
    def made(self) -> float:
        """Rounds since training began, a part of the one at work among them."""
        return self.done - self.since + (self.turn[0] / self.turn[1] if self.turn else 0.0)

    @property
    def pace(self) -> str:
        """Rounds a second, or seconds a round where it takes longer: "8.1/s", "4.2 s each"; "" before the first."""
        if not self.made or self.seconds <= 0:
            return ""
        each = self.seconds / self.made
        return f"{each:.3g} s each" if each > 1 else f"{1 / each:,.0f}/s" if each < 0.1 else f"{1 / each:.1f}/s"

    @property
    def left(self) -> str:
        """The time that the run still needs, evaluations included: "0:04:51 left"; "" where that is unknown."""
        if not self.made or self.total is None:
            return ""
        return f"{_clock(self.seconds / self.made * max(self.total - self.since - self.made, 0))} left"

    @property
    def count(self) -> str:
        """ "37 of 100 rounds"."""
        total = "" if self.total is None else f" of {self.total}"
        counted = self.done if self.total is None else self.total
        return f"{self.done}{total} {self.unit}{'' if counted == 1 else 's'}"

    @property
    def client(self) -> str:
        """ "client 3/10"; "" between rounds."""
        return f"client {self.turn[0]}/{self.turn[1]}" if self.turn else ""


def plain_line(progress: Progress) -> str:
    """A line for files and pipes: "37 of 100 rounds, 8.1/s, 0:00:08 left, critic_loss -0.31, fid_all 9.1±0.3"."""
    parts = [progress.count, progress.pace, progress.left, progress.client, progress.loss, progress.score]
    return ", ".join(filter(None, parts))


def last_line(progress: Progress) -> str:
    """Return the line that stays when the bar has gone: "100 of 100 rounds done in 0:02:10"."""
    return f"{progress.count} done in {_clock(progress.seconds)}"


def bar_line(progress: Progress, width: int) -> Text:
    """The line of a terminal: the count, a bar, and as much of pace, time left, score and loss as has room."""
    room, used, shown = width - 1, len(progress.count), list[str]()
    # a loss takes as many columns as the longest, for a bar of one length
    loss = f"{progress.loss:<{len(progress.loss.rpartition(' ')[0]) + 1 + LONGEST_LOSS}}" if progress.loss else ""
    for text in (progress.client, progress.left, progress.score, progress.pace, loss):
        shown.append(text if used + 2 + len(text) + SHORTEST_BAR + 2 <= room else "")
        used += 2 + len(shown[-1]) if shown[-1] else 0
    client, left, score, pace, loss = shown
    line = Text(progress.count[:room], no_wrap=True, end="")
    if progress.total and (size := min(LONGEST_BAR, room - used - 2)) >= SHORTEST_BAR:
        full = round(size * min((progress.since + progress.made) / progress.total, 1.0))
        line.append("  ").append("━" * full, "green").append("─" * (size - full), "bright_black")
    for text in filter(None, (client, pace, left, loss, score)):
        line.append("  ").append(text, "cyan" if text == score else "")
    return line


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))


class RoundProgressBar(ProgressBar):
    """One line on standard error over the whole run: "37 of 100 rounds", a bar, pace, time left, a loss and a score.

    `Trainer(callbacks=[RoundProgressBar()])` shows it in the place of Lightning's bar, as `fedgen fit` does.
    Rounds that are done are counted: 100 of 100 rounds are those that tables call 0 to 99, as Lightning numbers epochs.
    The times include evaluations. Rounds of more than a second count their clients, too. The loss is the first logged
    with `prog_bar=True`, or else the first whose name has "loss" in it; the score is the newest of the column that
    `FederatedEvaluation` puts first. The line is cut to the terminal's width, leaves nothing behind but "100 of 100
    rounds done in 0:02:10", and makes room for what others print. Under a strategy without rounds it counts epochs.

    Where there is neither a terminal nor a notebook with ipywidgets it writes a plain line now and then: after 10
    seconds, and then each minute.

    Args:
        console: where to show it; standard error by default.
    """

    def __init__(self, console: Console | None = None) -> None:
        super().__init__()
        self._given, self.is_enabled = console, True
        self.live: Live | None = None
        self._begun = self._round_begun = self._next_line = self._next_loss = 0.0
        self._since = self._turns = 0
        self._progress: Progress | None = None
        self._loss = ""
        self._logs = ExitStack()

    def disable(self) -> None:
        self.is_enabled = False

    def enable(self) -> None:
        self.is_enabled = True

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self._progress is not None:
            yield bar_line(self._progress, options.max_width)

    def start(self) -> None:
        """Shows the bar, if there is a terminal or a notebook to show it on."""
        console = self._given or Console(stderr=True)
        in_notebook = console.is_jupyter and find_spec("ipywidgets") is not None  # rich shows nothing without
        if not self.is_enabled or not (console.is_terminal or in_notebook):
            return
        # what goes into a file goes on doing so while the terminal has a bar
        out, err = (in_notebook or stream.isatty() for stream in (sys.stdout, sys.stderr))
        own: Any = {"refresh_per_second": REFRESHES, "redirect_stdout": out, "redirect_stderr": err}
        self.live = Live(self, console=console, transient=True, **own)
        before = sys.stdout, sys.stderr
        self.live.start(refresh=True)
        self._logs.enter_context(logs_above(before))

    def stop(self) -> None:
        self._logs.close()
        if self.live is not None:
            self.live.stop()
            self.live = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._begun, self._since = time.monotonic(), trainer.current_epoch
        self._next_line = self._begun + PLAIN_FIRST
        self._note(trainer, trainer.current_epoch)
        self.start()

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._round_begun, self._turns = time.monotonic(), 0
        # now nothing is left to be summed over processes, which this one alone would wait for
        if trainer.world_size > 1:
            self._read_loss(trainer)

    def on_train_batch_end(self, trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        self._turns += 1
        if time.monotonic() - self._round_begun > SLOW:
            self._note(trainer, trainer.current_epoch)
            self._say()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._turns = 0
        if trainer.world_size == 1:
            self._read_loss(trainer)
        self._note(trainer, trainer.current_epoch + 1)
        if trainer.current_epoch + 1 == trainer.max_epochs:
            self._end()  # before Lightning says that training has stopped
        else:
            self._say()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._end()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self.stop()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self.stop()
        self._progress = None

    def _read_loss(self, trainer: Trainer) -> None:
        """Takes the newest value for progress bars, or else the first loss, as often as the bar is drawn."""
        if not self.is_enabled or time.monotonic() < self._next_loss:
            return
        self._next_loss = time.monotonic() + 1 / REFRESHES
        shown, logged = trainer.progress_bar_metrics, trainer.callback_metrics
        name = next(iter(shown), None) or next((name for name in logged if "loss" in name.lower()), "")
        value = shown.get(name, logged.get(name))
        self._loss = "" if value is None else f"{name} {float(value):.3g}"

    def _note(self, trainer: Trainer, done: int) -> None:
        if not self.is_enabled:
            return
        now, turns = time.monotonic(), trainer.num_training_batches
        slow = self._turns and now - self._round_begun > SLOW and turns != math.inf
        self._progress = Progress(
            unit="round" if hasattr(trainer.strategy, "sample_cohort") else "epoch",
            done=done,
            total=None if trainer.max_epochs in (None, -1) else trainer.max_epochs,
            seconds=now - self._begun,
            since=self._since,
            turn=(self._turns, int(turns)) if slow else None,
            loss=self._loss,
            score=next(filter(None, (optional(one, ScoringCallback, "headline") for one in trainer.callbacks)), ""),
        )

    def _say(self) -> None:
        """Writes a plain line where no bar is shown, if it is time for one."""
        if self.is_enabled and self.live is None and self._progress is not None and time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + PLAIN_EVERY
            print(plain_line(self._progress), file=sys.stderr, flush=True)

    def _end(self) -> None:
        """Leaves one line in the bar's place, once."""
        self.stop()
        if self.is_enabled and self._progress is not None:
            print(last_line(self._progress), file=sys.stderr, flush=True)
            self._progress = None


@contextmanager
def logs_above(before: tuple[TextIO, TextIO]) -> Iterator[None]:
    """Lets loggers write above a bar inside the block, as `print` does."""
    loggers = [logging.root, *(one for one in logging.root.manager.loggerDict.values() if hasattr(one, "handlers"))]
    with ExitStack() as after:
        for handler in {one for logger in loggers for one in logger.handlers}:
            for old, new in zip(before, (sys.stdout, sys.stderr)):
                if isinstance(handler, logging.StreamHandler) and handler.stream is old and new is not old:
                    handler.setStream(new)
                    after.callback(handler.setStream, old)
        yield


@contextmanager
def paused(trainer: Trainer) -> Iterator[None]:
    """No live progress bar of training inside the block: two on one terminal would overwrite each other."""
    bar: Any = trainer.progress_bar_callback
    shown = bar.progress if isinstance(bar, RichProgressBar) else bar if isinstance(bar, RoundProgressBar) else None
    with ExitStack() as after:
        if shown is not None and shown.live is not None and shown.live.is_started:
            shown.stop()
            after.callback(shown.start)
        yield


class StateReport(Callback):
    """Prints all of `FedAvgStrategy.state_table()` after the first round that is trained: `fedgen fit --explain`.

    A table where there is a terminal, lines of text otherwise, in place of the short one of the log. Training goes on.
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
    """Prints rows of state with all names: a table on a terminal, the lines of `table_of` otherwise."""
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
