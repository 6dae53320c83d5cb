"""The progress bar counts rounds and clients, and is silent without a terminal."""

import sys

from rich.console import Console

from fedgen.callbacks import RoundProgressBar
from fedgen.callbacks.progress import paused
from fedgen.federated import FedAvgStrategy
from tests.federated.modules import Automatic, make_data, make_trainer


def describe(strategy, rounds, epoch):
    bar = RoundProgressBar()
    trainer = make_trainer(strategy, rounds, callbacks=[bar], enable_progress_bar=True)
    bar._trainer = trainer
    return bar._get_train_description(epoch)


def test_rounds_and_clients_are_named():
    assert describe(FedAvgStrategy(2), 50, 2) == "round 3/50, clients"
    assert describe(FedAvgStrategy(2), -1, 2) == "round 3, clients"
    assert describe("auto", 50, 2) == "epoch 3/50, batches"


def test_it_is_silent_without_a_terminal(capsys):
    bar = RoundProgressBar()
    make_trainer(FedAvgStrategy(2), 1, callbacks=[bar], enable_progress_bar=True).fit(Automatic(), make_data())
    assert bar.is_disabled
    assert "round" not in capsys.readouterr().out


def test_it_is_shown_in_a_notebook(monkeypatch):
    bar = RoundProgressBar()
    monkeypatch.setattr("fedgen.callbacks.progress.get_console", lambda: Console(force_jupyter=True))
    bar.setup(make_trainer(FedAvgStrategy(2), 1, callbacks=[bar], enable_progress_bar=True), Automatic(), "fit")
    assert not bar.is_disabled


def test_a_live_bar_is_paused_and_goes_on(monkeypatch, capsys):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    states = []

    class Watching(RoundProgressBar):
        def on_train_batch_end(self, trainer, *args):
            states.append(self.progress.live.is_started)
            with paused(trainer):
                states.append(self.progress.live.is_started)
            states.append(self.progress.live.is_started)
            super().on_train_batch_end(trainer, *args)

    trainer = make_trainer(FedAvgStrategy(2), 1, callbacks=[Watching()], enable_progress_bar=True)
    trainer.fit(Automatic(), make_data())
    assert states[:3] == [True, False, True]


def test_the_time_that_the_run_still_needs_is_shown_from_the_second_round_on(monkeypatch, capsys):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    shown = []

    class Watching(RoundProgressBar):
        def get_metrics(self, trainer, pl_module):
            self._started -= 10  # as if each call came ten seconds later
            items = super().get_metrics(trainer, pl_module)
            shown.append((trainer.current_epoch, items.get("run left")))
            return items

    trainer = make_trainer(FedAvgStrategy(2), 3, callbacks=[Watching()], enable_progress_bar=True)
    trainer.fit(Automatic(), make_data())
    assert {left for round, left in shown if round == 0} == {None}
    assert all(left is not None and left >= "0:00:10" for round, left in shown if round > 0)
