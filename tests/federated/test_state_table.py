"""The table of what becomes of a module's state: its rows, its text, what is warned of, and the file that keeps it."""

import warnings
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from fedgen.federated import FedAvgStrategy, Scaffold
from fedgen.federated.client_state.exchange import Exchange, Rules
from fedgen.federated.client_state.local_state import LocalState
from fedgen.federated.client_state.outside_messages import OutsideMessages
from fedgen.federated.client_state.outside_state import OutsideState
from fedgen.federated.run_files import STATE_FILE, read_state
from fedgen.federated.server_model import Counters
from fedgen.federated.state_table import (
    OPAQUE,
    NoRoundError,
    StateRow,
    UnexchangedStateWarning,
    rows_so_far,
    state_rows,
    table_of,
    warn_of_state,
    write_state,
)
from tests.federated.modules import Automatic, make_data, make_trainer


class Parts(nn.Module):
    """A weight of 2 numbers, a moving buffer of 3, a constant of 5, a counter, a queue of 7 and a held number."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2))
        for name, size in (("average", 3), ("betas", 5), ("queue", 7), ("level", 1)):
            self.register_buffer(name, torch.zeros(size))
        self.register_buffer("steps", torch.zeros(1, dtype=torch.int64))
        self.register_buffer("classes", torch.zeros(1, dtype=torch.int64))


def parts(words=None, opaque=None):
    """The rows of a turn that changes everything but the constants, with these words for what lies outside."""
    module = Parts()
    rules = Rules({"queue": "personal", "level": "server"}, module)
    exchange, counters = Exchange(module, [module.weight], [], rules), Counters()
    exchange.snapshot()
    module.average += 1
    module.steps += 1
    exchange.settle(1)
    exchange.grow()
    counters.add(exchange.counters, exchange.server)
    counters.end_round(exchange.server, 1)
    outside = OutsideState(module, rules)
    outside.found, outside.opaque = words or {}, opaque or {}
    model, local = SimpleNamespace(counters=counters), LocalState([], [], None, "average")
    parts = {"exchange": exchange, "model": model, "outside": outside, "local": local, "algorithm": Scaffold()}
    parts["messages"] = OutsideMessages(outside)
    return state_rows(SimpleNamespace(**parts))


def test_rows_name_saved_tensors_by_what_becomes_of_them_with_their_bytes():
    """Four bytes a float, eight an integer; what does not travel has none."""
    assert parts() == [
        ("trained, averaged", ("weight",), 2 * 4),
        ("changed by turns, averaged", ("average",), 3 * 4),
        ("counters and flags, the largest", ("steps",), 8),
        ("stays with each client", ("queue",), 0),
        ("declared 'server', reset at every turn", ("level",), 0),
        ("constant, does not travel", ("betas", "classes"), 0),
    ]


WORDS = {
    "mean": "not in state_dict, averaged as declared",
    "max": "not in state_dict, a counter: the largest",
    "personal": "not in state_dict, stays with each client as declared",
    "gathered": "lists of the round's outputs, gathered over clients",
    "seeded": "random generators, seeded for each turn",
    "rebuilt": "not in state_dict, made anew in every turn",
    "server": "declared 'server', not in state_dict, reset at every turn",
    "reset": "not in state_dict, reset at every turn",
}


def test_every_fate_of_state_outside_has_a_row():
    rows = parts({f"its_{word}": word for word in WORDS}, {"stream": "_io.FileIO"})[6:]
    assert rows[:-1] == [(fate, (f"its_{word}",), 0) for word, fate in WORDS.items()]
    assert rows[-1] == (OPAQUE, ("stream (_io.FileIO)",), 0)


def test_the_text_has_a_line_for_each_row_and_shortens_long_ones():
    rows = [StateRow("trained, averaged", tuple("abcdef"), 2048), StateRow(WORDS["reset"], ("g",), 0)]
    assert table_of(rows).splitlines() == [
        "  trained, averaged: 2.05 kB a round: a, b, c, d, ... (6 in all)",
        "  not in state_dict, reset at every turn: g",
    ]
    assert table_of(rows, most=None).splitlines()[0] == "  trained, averaged: 2.05 kB a round: a, b, c, d, e, f"
    assert table_of([]) == ""


@pytest.mark.parametrize("word", [word for word in WORDS if word != "reset"])
def test_nothing_is_warned_of_that_is_exchanged_declared_or_made_anew(word):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_state(parts({"level": word}))


def test_state_that_had_a_value_and_is_reset_is_warned_of_with_the_remedy():
    with pytest.warns(UnexchangedStateWarning, match="personal"):
        warn_of_state(parts({"pool.images": "reset", "steps": "max"}))
    with pytest.warns(UnexchangedStateWarning, match="rules"):
        warn_of_state(parts({"scale": "reset"}), remedies={"scale": "mean"})


def test_what_cannot_be_looked_into_is_warned_of_with_another_remedy():
    with pytest.warns(
        UnexchangedStateWarning, match=r"part\.stream \(_io\.FileIO\)\n(.|\n)*own_turn_state = \('stream',\)"
    ):
        warn_of_state(parts(opaque={"part.stream": "_io.FileIO"}))


class Remembers(Automatic):
    """Sets a number that was None, and a tensor that was 0."""

    def __init__(self):
        super().__init__("SGD")
        self.last, self.level = None, torch.zeros(())

    def training_step(self, batch, batch_idx):
        self.last = float(batch[0].sum())
        self.level = self.level + 0.5
        return super().training_step(batch, batch_idx)


def test_a_fit_warns_of_the_tensor_that_had_a_value_alone():
    strategy = FedAvgStrategy(1, seed=0)
    with pytest.warns(UnexchangedStateWarning) as said:
        make_trainer(strategy, 1).fit(Remembers(), make_data((8, 8)))
    (told,) = [str(one.message) for one in said if one.category is UnexchangedStateWarning]
    assert "reset at every turn: level\n" in told
    assert "last" not in told
    rows = {row.fate: row.names for row in strategy.state_table()}
    assert rows[WORDS["rebuilt"]] == ("last",)


def test_the_table_wants_a_whole_round():
    strategy = FedAvgStrategy(1, seed=0)
    with pytest.raises(NoRoundError, match="trained"):
        strategy.state_table()
    assert rows_so_far(strategy) == []
    make_trainer(strategy, 1).fit(Automatic(), make_data((8, 8)))
    assert rows_so_far(strategy) == strategy.state_table() != []


def test_other_strategies_have_no_rows():
    assert rows_so_far(make_trainer("auto", 1).strategy) == []


def test_the_file_keeps_all_names(tmp_path):
    rows = [StateRow("trained, averaged", tuple("abcdef"), 2048), StateRow(WORDS["reset"], ("ü",), 0)]
    assert read_state(tmp_path) == ""
    write_state(tmp_path, [])
    assert not (tmp_path / STATE_FILE).exists()
    write_state(tmp_path, rows)
    assert read_state(tmp_path) == table_of(rows, most=None)
    assert [path.name for path in tmp_path.iterdir()] == [STATE_FILE]
