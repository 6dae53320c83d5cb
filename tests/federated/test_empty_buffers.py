"""Buffers and parameters that are registered as None: what turns put into them, and that no refusal takes them away."""

import copy

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch import nn

from fedgen.evaluation.runs.rebuild import load_weights
from fedgen.federated import FedAdam, FedAvgStrategy, Median
from fedgen.federated.state_table import table_of
from tests.federated.modules import Automatic, make_data, make_trainer, same, weights
from tests.foreign.reference import fit_by_turns

SIZES = (12, 20, 8)
SHARES = [size / 40 for size in SIZES]


class Filled(Automatic):
    """A buffer that the first batch fills and others move, of floats; a count, and a flag that one client sets."""

    def __init__(self):
        super().__init__(
            "SGD"
        )  # Adam makes steps of the rounding errors that are the gradient of a bias before BatchNorm
        for name in ("centre", "seen", "flag"):
            self.net.register_buffer(name, None)
        self.client = None

    def on_turn_start(self, turn):
        self.client = turn.client

    def training_step(self, batch, batch_idx):
        self.fill(batch[0].mean(0))
        return super().training_step((batch[0] - self.net.centre, batch[1]), batch_idx)

    def fill(self, mean):
        net = self.net
        net.centre = mean if net.centre is None else net.centre.lerp(mean, 0.1)
        net.seen = torch.ones((), dtype=torch.int64) if net.seen is None else net.seen + 1


def make(kind=Filled):
    """Of a kind, with the same weights each time."""
    torch.manual_seed(0)
    return kind()


def fit(module, rounds=2, interval=3, data=None, callbacks=(), ckpt_path=None, **options):
    strategy = FedAvgStrategy(interval, seed=0, **options)
    trainer = make_trainer(strategy, rounds, callbacks=[*callbacks], enable_checkpointing=bool(callbacks))
    trainer.fit(module, data or make_data(SIZES), ckpt_path=ckpt_path)
    return strategy


@pytest.mark.parametrize("rounds", [1, 3])
def test_a_buffer_that_turns_fill_trains_as_in_ordinary_fits(rounds):
    module = make()
    fit(module, rounds)
    reference = fit_by_turns(make, make_data(SIZES), 3, rounds)
    mine, theirs = weights(module), weights(reference)
    assert mine.keys() == theirs.keys() >= {"net.centre", "net.seen"}
    for name, value in mine.items():
        assert value.dtype == theirs[name].dtype
        assert torch.allclose(value, theirs[name], atol=1e-6), name
    assert module.net.seen == 3 * rounds


def test_the_table_names_it_where_it_is():
    first, second = table_of(fit(make(), 1).state_table()), table_of(fit(make(), 2).state_table(), most=None)
    assert "not in state_dict, averaged: net.centre" in first
    assert "not in state_dict, a counter: the largest: net.seen" in first
    assert second.count("net.centre") == second.count("net.seen") == 1
    assert "net.centre, net.1.running_mean" in second


class Some(Filled):
    """Only the first client, or those that are named, fill; each begins with None."""

    who = (0,)

    def training_step(self, batch, batch_idx):
        if batch_idx == 0 and self.trainer.current_epoch == 0:
            assert self.net.centre is None
            if self.client in self.who:
                self.net.centre = torch.full((3,), self.client + 1.0)
                self.net.flag = torch.tensor(True)
        return Automatic.training_step(self, batch, batch_idx)


def test_those_that_fill_it_are_averaged_by_weight():
    module = make(Some)
    module.who = (0, 2)
    fit(module, 1)
    expected = (12 * 1.0 + 8 * 3.0) / 20
    assert torch.allclose(module.net.centre, torch.full((3,), expected))
    assert module.net.flag.dtype == torch.bool
    assert bool(module.net.flag)
    assert module.net.seen is None


@pytest.mark.filterwarnings("ignore::fedgen.federated.state_table.UnexchangedStateWarning")
@pytest.mark.parametrize(("rule", "expected"), [("server", None), ("max", 3.0), ("mean", 2.0), (None, None)])
def test_a_declared_rule_has_the_last_word(rule, expected):
    module = make(Some)
    module.who = (0, 2)
    options = {"aggregator": Median()} if rule is None else {"rules": {"net.centre": rule}}
    fit(module, 1, client_weights="uniform", **options)
    centre = module.net.centre
    assert (centre is None) if expected is None else torch.equal(centre, torch.full((3,), expected))


@pytest.mark.parametrize("options", [{"rules": {"net.centre": "personal"}}, {"personal": ["net.c*"]}])
def test_a_personal_one_stays_with_its_client(options):
    class Keeps(Some):
        who = (0, 1, 2)

        def training_step(self, batch, batch_idx):
            if self.trainer.current_epoch:
                assert self.net.centre.tolist() == [self.client + 1.0] * 3
            return super().training_step(batch, batch_idx)

    module = make(Keeps)
    strategy = fit(module, 2, **options)
    assert module.net.centre is None
    assert "centre" in module.net._buffers
    assert {client: own["net.centre"][0].item() for client, own in strategy.round.outside.personal.items()} == {
        0: 1.0,
        1: 2.0,
        2: 3.0,
    }


def test_what_a_robust_rule_does_not_exchange_is_reset_with_a_warning():
    module = make(Some)
    with pytest.warns(UserWarning, match="exchanged"):
        fit(module, 2, aggregator=Median())
    assert module.net.centre is None


def test_two_shapes_are_refused_with_the_remedy():
    class Shapes(Some):
        def training_step(self, batch, batch_idx):
            self.net.centre = torch.ones(self.client + 1)
            return Automatic.training_step(self, batch, batch_idx)

    module = make(Shapes)
    said = r"clients give net.centre the shapes \[1\] and \[2\].*rules=\{'net.centre': 'personal'\}"
    with pytest.raises(MisconfigurationException, match=said):
        fit(module, 1)
    assert module.net.centre is None
    module = make(Shapes)
    fit(module, 1, rules={"net.centre": "personal"})


def test_a_client_that_fills_in_nan_is_left_out():
    class Broken(Some):
        def training_step(self, batch, batch_idx):
            self.net.centre = torch.full((3,), float("nan") if self.client == 1 else 2.0)
            return Automatic.training_step(self, batch, batch_idx)

    module = make(Broken)
    with pytest.warns(UserWarning, match="centre"):
        strategy = fit(module, 2)
    assert torch.allclose(module.net.centre, torch.full((3,), 2.0))
    assert [entry["client"] for entry in strategy.left_out] == [1, 1]


class WithParameter(Automatic):
    """One client makes a parameter that was registered as None."""

    def __init__(self):
        super().__init__()
        self.net.register_parameter("scale", None)
        self.net.register_buffer("cache", None)

    def on_turn_start(self, turn):
        self.client = turn.client

    def training_step(self, batch, batch_idx):
        assert self.net.scale is None
        if self.client == 0:
            self.net.cache = torch.ones(2)
            self.net.scale = nn.Parameter(torch.ones(2))
        return super().training_step(batch, batch_idx)


def test_a_parameter_that_a_turn_makes_is_refused_and_its_registration_stays():
    module = make(WithParameter)
    with pytest.warns(UserWarning, match="starts"):
        strategy = fit(module, 2, interval=1)
    assert [entry["client"] for entry in strategy.left_out] == [0, 0]
    assert module.net._parameters["scale"] is None
    assert module.net._buffers["cache"] is None


def test_a_registration_that_a_turn_deletes_is_put_back():
    class Deletes(Some):
        def training_step(self, batch, batch_idx):
            assert self.net.centre is None
            del self.net.centre
            if self.client == 0:
                raise ValueError("broken")
            return Automatic.training_step(self, batch, batch_idx)

    module = make(Deletes)
    with pytest.warns(UserWarning, match="broken"):
        fit(module, 2, interval=1)
    assert module.net._buffers["centre"] is None


def test_a_server_optimizer_keeps_its_state_over_it():
    """A buffer that is averaged changes nothing of the weights: those of a run whose module has it from the start."""

    class Beside(Filled):
        def training_step(self, batch, batch_idx):
            self.fill(batch[0].mean(0))
            return Automatic.training_step(self, batch, batch_idx)

    class Plain(Filled):
        def training_step(self, batch, batch_idx):
            return Automatic.training_step(self, batch, batch_idx)

    module, plain = make(Beside), make(Plain)
    for one in (module, plain):
        fit(one, 3, server_optimizer=FedAdam)
    own = weights(plain)
    assert same({name: weights(module)[name] for name in own}, own)


@pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty")
def test_a_run_is_resumed_bit_for_bit_and_evaluated(tmp_path):
    saver = ModelCheckpoint(tmp_path, "{epoch}", save_top_k=-1)
    whole = make()
    fit(whole, 3, callbacks=[saver])
    resumed = make()
    fit(resumed, 3, callbacks=[copy.deepcopy(saver)], ckpt_path=tmp_path / "epoch=0.ckpt")
    assert same(weights(whole), weights(resumed))
    assert "net.centre" in weights(whole)
    fresh = make()
    load_weights(fresh, tmp_path / "epoch=2.ckpt")
    assert same(weights(whole), weights(fresh))
    assert "centre" not in vars(fresh.net)


@pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty")
def test_a_checkpoint_of_another_model_is_still_refused(tmp_path):
    fit(make(), 1, callbacks=[ModelCheckpoint(tmp_path, "{epoch}")])
    with pytest.raises(MisconfigurationException, match="unknown"):
        fit(make(Automatic), 2, callbacks=[ModelCheckpoint(tmp_path, "{epoch}")], ckpt_path=tmp_path / "epoch=0.ckpt")


def test_a_clients_model_between_rounds_has_it():
    class Looks(Filled):
        def on_train_epoch_end(self):
            before = self.net.centre.clone()
            with self.trainer.strategy.client_model(1):
                assert torch.equal(self.net.centre, before)
            assert torch.equal(self.net.centre, before)

    fit(make(Looks))
