"""Which parameters train, and that server optimizers and client algorithms leave the others alone."""

import copy

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam

from fedgen.federated import FedAvgStrategy, FedProx, Scaffold
from fedgen.federated.server_model import trained_parameters
from tests.federated.modules import Automatic, make_data, make_trainer, weights


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(2, 1, bias=False)
        self.copy = nn.Linear(2, 1, bias=False).requires_grad_(False)

    def trained(self, *optimizers):
        names = {id(p): name for name, p in self.named_parameters()}
        return [names[id(p)] for p in trained_parameters(self, optimizers)]


def test_a_frozen_copy_that_an_optimizer_holds_beside_others_does_not_train():
    pair = Pair()
    assert pair.trained(Adam(pair.parameters())) == ["net.weight"]


def test_a_net_that_rests_trains():
    """Lightning's toggle_optimizer leaves requires_grad of one optimizer's parameters alone off between steps."""
    pair = Pair()
    assert pair.trained(SGD(pair.net.parameters()), SGD(pair.copy.parameters())) == ["net.weight", "copy.weight"]


def test_what_no_optimizer_holds_does_not_train():
    pair = Pair()
    pair.copy.requires_grad_(True)
    assert pair.trained(SGD(pair.net.parameters())) == ["net.weight"]


def test_without_any_optimizer_all_that_requires_a_gradient_trains():
    assert Pair().trained() == ["net.weight"]


@pytest.mark.parametrize("place", [lambda one: one, lambda one: [one], lambda one: {"a": one}])
def test_optimizers_of_the_modules_own_count(place):
    pair = Pair()
    pair.copy.requires_grad_(True)
    pair.own = place(SGD(pair.copy.parameters()))
    assert pair.trained(SGD(pair.net.parameters())) == ["net.weight", "copy.weight"]


class Averaging(Automatic):
    """Two moving averages of a net in one module: the one frozen, both told or not told to the optimizer."""

    def __init__(self, told):
        super().__init__()
        self.told = told
        self.frozen = copy.deepcopy(self.net).requires_grad_(False)
        self.loose = copy.deepcopy(self.net)

    def on_train_batch_end(self, outputs, batch, batch_idx):
        with torch.no_grad():
            for average in (self.frozen, self.loose):
                for moved, value in zip(average.parameters(), self.net.parameters()):
                    moved.lerp_(value, 0.5)

    def configure_optimizers(self):
        if not self.told:
            return super().configure_optimizers()
        return Adam([*self.net.parameters(), *self.frozen.parameters()], lr=0.05)


ACTING = {
    "server optimizer": {"server_optimizer": lambda p: SGD(p, lr=0.0)},
    "control variates": {"client_algorithm": Scaffold()},
    "proximal term": {"client_algorithm": FedProx(0.5)},
}


@pytest.mark.parametrize("told", [False, True])
@pytest.mark.parametrize("name", ACTING)
def test_averages_of_weights_are_averaged_and_nothing_else_acts_on_them(name, told):
    """A server optimizer of rate 0 leaves the net where it was; its averages take the clients' mean."""
    torch.manual_seed(3)
    module = Averaging(told)
    before = weights(module)
    strategy = FedAvgStrategy(2, seed=0, **ACTING[name])
    make_trainer(strategy, 1).fit(module, make_data())
    assert {name.split(".")[0] for name in strategy.exchange.trained} == {"net"}
    assert {name.split(".")[0] for name in strategy.exchange.moving} >= {"frozen", "loose"}
    after = weights(module)
    assert not torch.equal(after["frozen.0.weight"], before["frozen.0.weight"])
    assert torch.equal(after["frozen.0.weight"], after["loose.0.weight"])
    if name == "server optimizer":
        assert torch.equal(after["net.0.weight"], before["net.0.weight"])


class Thawing(Automatic):
    """An optimizer that is given more parameters when the second round starts."""

    def __init__(self):
        super().__init__()
        self.more = nn.Parameter(torch.zeros(2))

    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) + self.more.sum()

    def on_train_epoch_start(self):
        if self.current_epoch == 1:
            self.optimizers().optimizer.add_param_group({"params": [self.more]})


def test_parameters_that_an_optimizer_is_given_between_rounds_train_from_then_on():
    module = Thawing()
    strategy = FedAvgStrategy(2, seed=0)
    make_trainer(strategy, 1).fit(module, make_data())
    assert "more" not in strategy.exchange.trained
    module = Thawing()
    make_trainer(strategy := FedAvgStrategy(2, seed=0), 2).fit(module, make_data())
    assert "more" in strategy.exchange.trained
    assert module.more.tolist() != [0, 0]
