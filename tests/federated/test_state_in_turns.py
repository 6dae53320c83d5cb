"""A module's state beside its saved tensors over whole runs, and the table that says what becomes of it."""

import logging
from typing import ClassVar

import pytest
import torch
from torch import nn

from fedgen.federated import ClientAlgorithm, FedAvgStrategy
from fedgen.federated.state_table import StateRow, UnexchangedStateWarning, table_of
from tests.federated.modules import Automatic, make_data, make_trainer, same, weights


class Stateful(Automatic):
    """Anneals by a step count of its own, and keeps a running value, a text and the losses of an epoch."""

    seen: ClassVar[list] = []

    def __init__(self):
        super().__init__("SGD")
        self.steps, self.level, self.phase, self.losses = 0, 0.0, "cold", []

    def training_step(self, batch, batch_idx):
        self.seen.append((self.steps, self.level))
        self.steps += 1
        self.level += 0.5
        self.phase = "warm"
        loss = super().training_step(batch, batch_idx)
        self.losses.append(loss.detach())
        return loss

    def on_train_epoch_end(self):
        self.log("losses", len(self.losses))
        self.losses.clear()


def fit(rounds, **options):
    torch.manual_seed(3)
    module = Stateful()
    module.seen.clear()
    trainer = make_trainer(FedAvgStrategy(2, seed=0, **options), rounds)
    return module, trainer


def test_a_running_module_counts_gathers_and_warns_of_what_is_reset():
    """Two clients of two iterations each: count and level go on in the next round, the text does not."""
    module, trainer = fit(2)
    with pytest.warns(UnexchangedStateWarning, match="personal"):
        trainer.fit(module, make_data((8, 8)))
    assert module.seen == [(0, 0.0), (1, 0.5)] * 2 + [(2, 1.0), (3, 1.5)] * 2
    assert (module.steps, module.level, module.phase) == (4, 2.0, "cold")
    assert trainer.callback_metrics["losses"] == 2 * 2


@pytest.mark.parametrize(("rule", "expected"), [("mean", 2.0), ("max", 2.0), ("server", 0.0), ("personal", 0.0)])
def test_a_declared_rule_does_not_warn(rule, expected):
    module, trainer = fit(2, rules={"level": rule, "phase": "server"})
    trainer.fit(module, make_data((8, 8)))
    assert module.level == expected
    assert module.seen[-1][1] == (0.5 if rule == "server" else 1.5)


def test_turns_do_not_hang_on_who_trained_before():
    """One client's model is the same alone and after another."""

    class Second(FedAvgStrategy):
        def sample_cohort(self, num_clients, round):
            return [1]

    ends = []
    for kind in (FedAvgStrategy, Second):
        torch.manual_seed(3)
        module = Stateful()
        strategy = kind(2, seed=0, personal=["*"], rules={"phase": "server"})
        make_trainer(strategy, 1).fit(module, make_data((8, 8)))
        with strategy.client_model(1):
            ends.append(weights(module))
    assert same(*ends)


def test_the_table_says_what_becomes_of_all_state_once(caplog):
    """The net has 24 + 16 weights and 8 + 8 + 8 + 2 other parameters, 16 statistics and one count."""
    module, trainer = fit(2, rules={"phase": "server"})
    module.frozen = nn.Linear(1, 1, bias=False).requires_grad_(False)
    with caplog.at_level(logging.INFO):
        trainer.fit(module, make_data((8, 8)))
    rows = {row.fate: (row.names, row.num_bytes) for row in trainer.strategy.state_table()}
    parameters = ("net.0.weight", "net.0.bias", "net.1.weight", "net.1.bias", "net.4.weight", "net.4.bias")
    assert rows["trained, averaged"] == (parameters, 4 * (24 + 8 + 8 + 8 + 16 + 2))
    assert rows["changed by turns, averaged"] == (("net.1.running_mean", "net.1.running_var"), 4 * 16)
    assert rows["counters and flags, the largest"] == (("net.1.num_batches_tracked",), 8)
    assert rows["constant, does not travel"] == (("frozen.weight",), 0)
    assert rows["not in state_dict, a counter: the largest"] == (("steps",), 0)
    assert rows["not in state_dict, averaged"] == (("level",), 8)
    assert rows["lists of the round's outputs, gathered over clients"] == (("losses",), 0)
    assert sum("what becomes of the module's state" in record.getMessage() for record in caplog.records) == 1


def test_rows_of_many_names_are_shortened():
    rows = [StateRow("trained, averaged", tuple("abcdef"), 2048), StateRow("constant, does not travel", ("g",), 0)]
    assert table_of(rows, most=2).splitlines() == [
        "  trained, averaged: 2.05 kB a round: a, b, ... (6 in all)",
        "  constant, does not travel: g",
    ]
    assert "a, b, c, d, e, f" in table_of(rows, most=None)


class Assisted(Automatic):
    """Keeps a moving average of its first layer in a frozen one."""

    def __init__(self):
        super().__init__("SGD")
        self.average = nn.Linear(3, 8).requires_grad_(False)

    def training_step(self, batch, batch_idx):
        for mine, theirs in zip(self.average.parameters(), self.net[0].parameters()):
            mine.lerp_(theirs.detach(), 0.5)
        return super().training_step(batch, batch_idx)


def test_a_moving_average_in_frozen_parameters_is_averaged_over_clients():
    """Three clients of equal weight: the server's average is the mean of theirs, each begun from the server's."""

    class Watching(ClientAlgorithm):
        def end_turn(self, client, model, iterations):
            ends.append(module.average.weight.detach().clone())

    torch.manual_seed(3)
    module, ends = Assisted(), []
    before = module.average.weight.detach().clone()
    strategy = FedAvgStrategy(2, seed=0, client_weights="uniform", client_algorithm=Watching())
    make_trainer(strategy, 1).fit(module, make_data((8, 8, 8)))
    torch.testing.assert_close(module.average.weight.detach(), torch.stack(ends).mean(0))
    assert not torch.equal(module.average.weight, before)
    assert not any(p.requires_grad for p in module.average.parameters())
    assert strategy.exchange.moving == [
        "net.1.running_mean",
        "net.1.running_var",
        "average.weight",
        "average.bias",
    ]


class Late(Automatic):
    """Its second client alone moves a buffer."""

    def __init__(self):
        super().__init__("SGD")
        self.register_buffer("level", torch.zeros(1))

    def on_turn_start(self, turn):
        if turn.client == 1:
            self.level += 8


@pytest.mark.parametrize("sizes", [(8, 8), (8, 24), (12, 4)])
def test_clients_before_the_first_that_moves_a_buffer_count_with_the_servers_value(sizes):
    module = Late()
    strategy = FedAvgStrategy(1, seed=0)
    make_trainer(strategy, 1).fit(module, make_data(sizes))
    assert strategy.exchange.moving == ["level", "net.1.running_mean", "net.1.running_var"]
    assert module.level.item() == pytest.approx(8 * sizes[1] / sum(sizes))


def test_a_rule_that_matches_nothing_is_named():
    with pytest.warns(UserWarning, match="matched"):
        make_trainer(FedAvgStrategy(1, seed=0, rules={"no.such*": "mean"}), 1).fit(Automatic("SGD"), make_data())


class Looked(Stateful):
    """With buffers that no turn changes, saved and not, and a number that each client keeps."""

    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.ones(2))
        self.register_buffer("shift", torch.ones(2), persistent=False)

    def look(self):
        seen = self.level
        self.scale.mul_(3)
        self.shift.mul_(3)
        self.level, self.made = 100.0, True
        self.net.eval()
        return seen


def test_a_look_at_a_clients_model_shows_what_it_keeps_and_leaves_nothing_behind():
    """Each client has raised its level by 0.5 in each of 2 rounds' 2 iterations."""
    module = Looked()
    trainer = make_trainer(FedAvgStrategy(2, seed=0, rules={"level": "personal", "phase": "server"}), 2)
    trainer.fit(module, make_data((8, 8)))
    module.train()
    before = weights(module)
    for client in (0, 1, 0):
        with trainer.strategy.client_model(client):
            assert module.look() == 2.0
    assert same(weights(module), before)
    assert torch.equal(module.shift, torch.ones(2))
    assert module.level == 0.0
    assert not hasattr(module, "made")
    assert module.net.training
