"""The progress bar counts rounds in one line that no terminal wraps, and is plain lines where there is none."""

import io
import logging
import re
import sys
from dataclasses import replace

import lightning as L
import pytest
from rich.console import Console

from fedgen.callbacks import RoundProgressBar
from fedgen.callbacks import round_progress as progress
from fedgen.callbacks.round_progress import Progress, bar_line, last_line, paused, plain_line
from fedgen.federated import FedAvgStrategy
from tests.federated.modules import Automatic, make_data, make_trainer

HALF = Progress("round", 50, 100, seconds=25.0, loss="critic_loss -0.31", score="fid_all 9.1±0.3")


def fit(bar, rounds=3, strategy=None, module=None, **options):
    trainer = make_trainer(strategy or FedAvgStrategy(2), rounds, callbacks=[bar], enable_progress_bar=True, **options)
    trainer.fit(module or Automatic(), make_data())
    return trainer


def terminal(width=80):
    return Console(file=io.StringIO(), force_terminal=True, width=width)


def bar_of(loss, width):
    line = bar_line(replace(HALF, loss=loss), width)
    return sum(span.end - span.start for span in line.spans[:2])


@pytest.mark.parametrize("width", [80, 90, 120])
def test_the_bar_keeps_its_length_whatever_the_loss(width):
    losses = ["loss 1", "loss -0.312", "loss 137", "loss -1.23e-05", "loss 12.5"]
    assert len({bar_of(loss, width) for loss in losses}) == 1


def test_a_line_has_rounds_pace_time_left_loss_and_score():
    line = bar_line(HALF, 120).plain
    assert re.sub("━+─+", "BAR", line).replace("-0.31    ", "-0.31") == (
        "50 of 100 rounds  BAR  2.0/s  0:00:25 left  critic_loss -0.31  fid_all 9.1±0.3"
    )


@pytest.mark.parametrize("width", [10, 40, 80, 81, 120, 200])
@pytest.mark.parametrize("score", ["fid_all 9.1±0.3", "report/efficientnet-lite0-32/precision_all 0.1234±0.0012"])
def test_no_terminal_wraps_the_line(width, score):
    slow = Progress("round", 99_999, 1_000_000, 9e6, 0, (137, 1000), "generator_loss -0.312", score)
    assert len(bar_line(slow, width).plain) < width


def test_what_has_no_room_goes_loss_first_and_the_count_and_the_bar_stay():
    assert "critic_loss" not in bar_line(HALF, 70).plain
    assert "fid_all" in bar_line(HALF, 70).plain
    assert bar_line(HALF, 30).plain == "50 of 100 rounds  " + "━" * 6 + "─" * 5


def test_the_bar_is_as_full_as_the_run_is_done():
    full, empty = [span.end - span.start for span in bar_line(HALF, 120).spans[:2]]
    assert full == empty


def test_a_resumed_runs_pace_is_of_the_rounds_since_and_slow_rounds_count_clients():
    slow = Progress("round", 41, 100, seconds=60.0, since=40, turn=(5, 10))
    assert plain_line(slow) == "41 of 100 rounds, 40 s each, 0:39:00 left, client 5/10"


def test_the_end_says_the_same_number_twice_and_a_run_without_an_end_counts_on():
    assert last_line(Progress("round", 100, 100, 130.0)) == "100 of 100 rounds done in 0:02:10"
    assert plain_line(Progress("epoch", 7, None, 14.0)) == "7 epochs, 2 s each"


def test_a_terminal_sees_one_line_which_goes_and_leaves_the_count(capsys):
    screen = terminal()
    fit(RoundProgressBar(screen))
    shown = screen.file.getvalue()
    assert "0 of 3 rounds" in shown
    assert shown.count("\n") == 1
    assert re.search(r"\n[^\n]*\x1b\[1A\x1b\[2K$", shown)  # the bar's one newline is taken back, its line wiped
    assert re.fullmatch(r"3 of 3 rounds done in 0:00:\d\d\n", capsys.readouterr().err)


def test_ordinary_training_counts_epochs(capsys):
    fit(RoundProgressBar(), strategy="auto")
    assert "3 of 3 epochs done in" in capsys.readouterr().err


def test_without_a_terminal_there_are_plain_lines_now_and_then(capsys, monkeypatch):
    monkeypatch.setattr(progress, "PLAIN_FIRST", 0.0)
    bar = RoundProgressBar()
    fit(bar)
    assert bar.live is None
    lines = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"1 of 3 rounds, [\d.,]+(/s| s each), 0:00:\d\d left.*", lines[0])
    assert len(lines) == 2  # the next is due in a minute; the last is the end's
    assert lines[1].startswith("3 of 3 rounds done in")


def test_a_notebook_without_widgets_has_plain_lines(monkeypatch):
    screen = Console(file=io.StringIO(), force_jupyter=True, width=80)
    monkeypatch.setattr(progress, "find_spec", lambda name: None)
    bar = RoundProgressBar(screen)
    bar.start()
    assert bar.live is None
    monkeypatch.setattr(progress, "find_spec", lambda name: object())
    monkeypatch.setattr(progress.Live, "start", lambda live, refresh=False: None)
    bar.start()
    assert bar.live is not None
    bar.stop()


def test_a_bar_that_is_disabled_shows_nothing(capsys):
    bar = RoundProgressBar(screen := terminal())
    bar.disable()
    fit(bar)
    assert screen.file.getvalue() == ""
    assert "rounds done" not in capsys.readouterr().err


def test_a_live_bar_is_paused_and_goes_on():
    states = []

    class Watching(RoundProgressBar):
        def on_train_epoch_end(self, trainer, pl_module):
            with paused(trainer):
                states.append(self.live is None)
            states.append(self.live is not None and self.live.is_started)
            super().on_train_epoch_end(trainer, pl_module)

    bar = Watching(terminal())
    fit(bar, rounds=1)
    assert states == [True, True]
    assert bar.live is None


def test_what_loggers_write_goes_above_the_bar_and_their_streams_come_back(monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    handler = logging.StreamHandler(sys.stderr)
    before, seen = handler.stream, []

    class Watching(RoundProgressBar):
        def on_train_epoch_start(self, trainer, pl_module):
            seen.append(handler.stream is sys.stderr and handler.stream is not before)
            super().on_train_epoch_start(trainer, pl_module)

    logging.getLogger("fedgen.tests").addHandler(handler)
    try:
        fit(Watching(terminal()), rounds=1)
    finally:
        logging.getLogger("fedgen.tests").removeHandler(handler)
    assert seen == [True]
    assert handler.stream is before


class Logging(Automatic):
    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.log("my_loss", 0.25)
        self.log("other", 0.5)
        return loss


def test_what_is_printed_into_a_file_goes_there_while_a_terminal_has_the_bar(capsys):
    class Printing(Automatic):
        def on_train_epoch_end(self):
            print("for the file")

    fit(RoundProgressBar(screen := terminal()), rounds=1, module=Printing())
    assert capsys.readouterr().out == "for the file\n"
    assert "for the file" not in screen.file.getvalue()


def test_the_loss_is_the_one_that_is_logged_for_bars_or_has_its_name():
    seen = []

    class Watching(RoundProgressBar):
        def on_train_epoch_end(self, trainer, pl_module):
            super().on_train_epoch_end(trainer, pl_module)
            seen.append(self._loss)

    fit(Watching(terminal()), rounds=2, module=Logging())
    assert seen == ["my_loss 0.25"] * 2


def test_the_score_is_the_newest_headline_of_a_callback():
    seen = []

    class Evaluation(L.Callback):
        headline = "fid_all 9.1±0.3"

    class Watching(RoundProgressBar):
        def on_train_start(self, trainer, pl_module):
            super().on_train_start(trainer, pl_module)
            seen.append(self._progress.score)

    bar = Watching(terminal())
    trainer = make_trainer(FedAvgStrategy(2), 1, callbacks=[bar, Evaluation()], enable_progress_bar=True)
    trainer.fit(Automatic(), make_data())
    assert seen == ["fid_all 9.1±0.3"]


def test_an_error_takes_the_bar_away():
    class Failing(Automatic):
        def on_train_epoch_end(self):
            raise ArithmeticError("broken")

    bar = RoundProgressBar(terminal())
    with pytest.raises(ArithmeticError, match="broken"):
        fit(bar, module=Failing())
    assert bar.live is None
