"""FedProx by hand, and against the same thing written as a plain loop."""

import copy
import math
from typing import ClassVar

import pytest
import torch
import yaml
from torch import nn

from fedgen.federated import FedAvgStrategy, FedProx
from fedgen.seeds import seed_all
from tests.federated.modules import (
    Automatic,
    Manual,
    Quadratic,
    TwoOptimizers,
    make_data,
    make_quadratics,
    make_trainer,
    same,
    strategy_of,
    weights,
)
from tests.federated.test_strategy import make_turn


def fit(module, data, rounds, mu=None, interval=3, **options):
    algorithm = None if mu is None else FedProx(mu)
    strategy = FedAvgStrategy(interval, seed=0, client_algorithm=algorithm, **options)
    make_trainer(strategy, rounds).fit(module, data)
    return module


def test_two_steps_of_two_clients_by_hand():
    """From w = 1, lr 0.1, mu 2; the pull is 0 at the first step.

    Client (1, 0): 1 - 0.1 * 1 = 0.9, then 0.9 - 0.1 (0.9 - 2 * 0.1) = 0.83.
    Client (3, 4): 1 - 0.1 * 3 (1 - 4) = 1.9, then 1.9 - 0.1 (3 * -2.1 + 2 * 0.9) = 2.35. Their mean is 1.59.
    """
    assert fit(Quadratic(), make_quadratics(), 1, mu=2.0, interval=2).w.item() == pytest.approx(1.59, rel=1e-12)


@pytest.mark.slow
def test_a_strong_pull_keeps_clients_at_the_server():
    """Minimisers of a / 2 (w - b)^2 + mu / 2 (w - 1)^2 are (a b + mu) / (a + mu): 9 / 10 and 21 / 12, mean 1.325."""
    assert fit(Quadratic(), make_quadratics(), 1, mu=9.0, interval=200).w.item() == pytest.approx(1.325, rel=1e-9)
    assert fit(Quadratic(), make_quadratics(), 1, interval=200).w.item() == pytest.approx(2.0, rel=1e-9)


@pytest.mark.parametrize("kind", [Automatic, Manual, TwoOptimizers])
def test_without_strength_it_is_fedavg_to_the_bit(kind):
    torch.manual_seed(3)
    start = kind()
    plain, prox = copy.deepcopy(start), copy.deepcopy(start)
    fit(plain, make_data(), 2)
    fit(prox, make_data(), 2, mu=0.0)
    assert same(weights(plain), weights(prox))


def pull(parameters, anchors, mu):
    for parameter, anchor in zip(parameters, anchors):
        parameter.grad.add_(parameter.detach() - anchor, alpha=mu)


def plain_step(local, anchor, optimizers, batch, index, mu):
    if isinstance(local, TwoOptimizers):
        losses, parts = lambda: local.losses(batch), [(local.a, anchor.a), (local.b, anchor.b)]
    else:
        losses, parts = lambda: nn.functional.cross_entropy(local.net(batch[0]), batch[1]), [(local.net, anchor.net)]
    for optimizer, (part, anchored) in list(zip(optimizers, parts))[: 1 if index % 3 else 2]:
        loss = losses()
        optimizer.zero_grad()
        loss.backward()
        pull(part.parameters(), anchored.parameters(), mu)
        optimizer.step()


@pytest.mark.parametrize("kind", [Automatic, Manual, TwoOptimizers])
def test_equals_a_plain_loop_to_the_bit(kind):
    """One client, so that the average is its model; Adam and SGD with momentum, each of its own parameters."""
    torch.manual_seed(3)
    module, data = kind(), make_data((8,))
    server = copy.deepcopy(module)
    for round in range(3):
        local = copy.deepcopy(server).train()
        optimizers = local.configure_optimizers()
        optimizers = list(optimizers) if isinstance(optimizers, tuple) else [optimizers]
        seed_all(0, "turn", round, 0)
        for i, batch in enumerate(make_turn(data, 0, round).batches(4)):
            plain_step(local, server, optimizers, batch, i, 0.7)
        server.load_state_dict(local.state_dict())
    fit(module, data, 3, mu=0.7, interval=4)
    assert same(weights(module), weights(server))


class Partly(Automatic):
    """Remembers the gradients of its last layer's weight at every step."""

    gradients: ClassVar[list] = []

    def on_before_optimizer_step(self, optimizer):
        self.gradients.append(dict(self.named_parameters())["net.4.weight"].grad.clone())


def test_what_does_not_travel_is_not_pulled():
    """With the last layer personal and the others frozen, the strongest pull changes nothing."""
    results = []
    for mu in (None, 1e6):
        torch.manual_seed(3)
        module = Partly("SGD")
        module.net[0].requires_grad_(False)
        module.net[1].requires_grad_(False)
        fit(module, make_data((8, 8)), 2, mu=mu, personal=["net.4.*"])
        results.append([*module.gradients])
        module.gradients.clear()
    assert len(results[0]) == 2 * 2 * 3
    assert all(map(torch.equal, results[0], results[1]))


@pytest.mark.parametrize("mu", [-0.1, math.inf, math.nan])
def test_a_strength_out_of_range_is_named(mu):
    with pytest.raises(ValueError, match=f"mu={mu}: the strength"):
        FedProx(mu)


def test_a_recipe_names_it_by_class_path():
    recipe = """
    strategy:
      class_path: fedgen.federated.FedAvgStrategy
      init_args:
        client_algorithm: {class_path: fedgen.federated.FedProx, init_args: {mu: 0.1}}
    """
    assert strategy_of(yaml.safe_load(recipe)).client_algorithm.mu == 0.1
