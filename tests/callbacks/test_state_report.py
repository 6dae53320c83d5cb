"""What becomes of a module's state, shown once on a terminal or in a file."""

import io
import logging

from rich.console import Console

from fedgen.callbacks import RoundCheckpoint, StateReport
from fedgen.callbacks.round_progress import TITLE, show_state
from fedgen.federated import FedAvgStrategy
from fedgen.federated.run_files import read_state
from fedgen.federated.state_table import StateRow, table_of
from tests.federated.modules import Automatic, make_data, make_trainer

ROWS = [
    StateRow("trained, averaged", tuple(f"net.{i}.weight" for i in range(9)), 2048),
    StateRow("constant", ("x[/b]",), 0),
]


def shown(rows, terminal):
    out = io.StringIO()
    show_state(rows, Console(file=out, force_terminal=terminal, width=100))
    return out.getvalue()


def test_a_terminal_gets_a_table_with_all_names_and_bytes():
    text = shown(ROWS, terminal=True)
    assert TITLE in text
    assert "2.05 kB a round" in text
    assert all(f"net.{i}.weight" in text for i in range(9))
    assert "x[/b]" in text  # not taken for markup
    assert "┃" in text or "│" in text


def test_a_file_gets_lines():
    assert shown(ROWS, terminal=False) == f"{TITLE}:\n{table_of(ROWS, most=None)}\n"


def fit(strategy, rounds, **options):
    out = io.StringIO()
    report = StateReport(Console(file=out, force_terminal=False, width=100))
    callbacks = [report, *options.pop("callbacks", [])]
    trainer = make_trainer(strategy, rounds, callbacks=callbacks, **options)
    trainer.fit(Automatic("SGD"), make_data((8, 8)))
    return out.getvalue(), trainer


def test_it_is_shown_once_and_training_goes_on():
    strategy = FedAvgStrategy(1, seed=0)
    text, trainer = fit(strategy, 3)
    assert text == f"{TITLE}:\n{table_of(strategy.state_table(), most=None)}\n"
    assert trainer.current_epoch == 3


def test_the_log_leaves_the_table_to_it(caplog):
    caplog.set_level(logging.INFO, "lightning.pytorch.utilities.rank_zero")
    fit(FedAvgStrategy(1, seed=0), 2)
    assert "sends" in caplog.text  # what the log says otherwise is there
    assert "what becomes of the module's state" not in caplog.text


def test_nothing_is_shown_of_ordinary_training():
    assert fit("auto", 1)[0] == ""


def test_a_run_keeps_it_in_its_folder(tmp_path):
    strategy = FedAvgStrategy(1, seed=0)
    fit(strategy, 2, callbacks=[RoundCheckpoint(tmp_path)], enable_checkpointing=True)
    assert read_state(tmp_path) == table_of(strategy.state_table(), most=None)
    fit("auto", 1, callbacks=[RoundCheckpoint(tmp_path / "other")], enable_checkpointing=True)
    assert not (tmp_path / "other" / "state.txt").exists()
