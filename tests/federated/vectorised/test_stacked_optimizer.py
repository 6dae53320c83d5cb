"""Optimizers stepped for many clients beside PyTorch's own, one client each."""

import copy

import pytest
import torch
from torch import nn

from fedgen.federated.vectorised.stacked_clients import StackedOptimizer, why_not_stacked

CASES = [
    ("SGD", {}),
    ("SGD", {"weight_decay": 0.1, "maximize": True}),
    ("SGD", {"momentum": 0.9, "dampening": 0.3}),
    ("SGD", {"momentum": 0.9, "nesterov": True}),
    ("Adam", {}),
    ("Adam", {"weight_decay": 0.1, "amsgrad": True, "betas": (0.0, 0.9)}),
    ("Adam", {"maximize": True, "eps": 1e-3}),
    ("AdamW", {"weight_decay": 0.3}),
]
STEPS = 5


def make(name, options):
    """A module of three parameters in float64, one of them a scalar, under two groups of unlike rates."""
    torch.manual_seed(0)
    module = nn.ParameterDict({"a": torch.randn(3, 2), "b": torch.randn(4), "c": torch.randn(())}).double()
    groups = [{"params": [module["a"], module["c"]], "lr": 0.1}, {"params": [module["b"]], "lr": 0.02}]
    return module, getattr(torch.optim, name)(groups, **options)


def gradients(client, step):
    draws = torch.Generator().manual_seed(100 * client + step)
    return {
        n: torch.randn(s, generator=draws, dtype=torch.float64) for n, s in {"a": (3, 2), "b": (4,), "c": ()}.items()
    }


def take(module, optimizer, client, steps, rate=None):
    for step in steps:
        for name, gradient in gradients(client, step).items():
            module[name].grad = gradient
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] if rate is None else rate
        optimizer.step()


@pytest.mark.parametrize(("name", "options"), CASES)
def test_each_row_is_a_client_s_own_optimizer(name, options):
    """Client 0 begins anew, client 1 after three steps of its own, client 2 at a learning rate of its own."""
    begun = [make(name, options) for _ in range(3)]
    take(*begun[1], 1, range(3))
    starts = [{n: p.detach().clone() for n, p in module.items()} for module, _ in begun]
    module, optimizer = make(name, options)
    for own, _ in begun:  # a client's states go by the module's parameters
        assert own.keys() == module.keys()
    states = [
        {module[n]: copy.deepcopy(one.state[own[n]]) for n in module if own[n] in one.state} for own, one in begun
    ]
    found = StackedOptimizer(optimizer, {id(p): n for n, p in module.items()}, starts, states)
    rates = [None, None, 0.05]
    for step in range(3, 3 + STEPS):
        rows = [gradients(client, step) for client in range(3)]
        stacked = torch.stack([torch.cat([row[n].reshape(-1) for n in ("a", "c", "b")]) for row in rows])
        found.step(stacked, rates, 1.0)
    for client, (own, one) in enumerate(begun):
        take(own, one, client, range(3, 3 + STEPS), rates[client])
        optimizer.state.clear()
        found.load(client, rates[client])
        for n in module:
            assert torch.allclose(module[n], own[n], rtol=1e-12, atol=1e-12)
            kept, expected = optimizer.state.get(module[n], {}), one.state.get(own[n], {})
            assert kept.keys() == expected.keys()
            for slot, value in expected.items():
                assert kept[slot].shape == value.shape
                assert torch.allclose(kept[slot].double(), value.double(), rtol=1e-12, atol=1e-12)
    assert [group["lr"] for group in optimizer.param_groups] == [0.05, 0.05]


def test_a_factor_acts_on_the_groups_rates_and_not_on_a_step_s_own():
    module, optimizer = make("SGD", {})
    start = {n: torch.zeros_like(p) for n, p in module.items()}
    found = StackedOptimizer(optimizer, {id(p): n for n, p in module.items()}, [start, start], [{}, {}])
    found.step(torch.ones(2, 11, dtype=torch.float64), [None, 0.3], 0.5)
    assert found.named(found.weights)["a"][:, 0, 0].tolist() == pytest.approx([-0.05, -0.3])
    assert found.named(found.weights)["b"][:, 0].tolist() == pytest.approx([-0.01, -0.3])


def test_states_of_part_of_a_group_are_refused():
    module, optimizer = make("Adam", {})
    take(module, optimizer, 0, range(2))
    names = {id(p): n for n, p in module.items()}
    starts = [{n: p.detach() for n, p in module.items()}]
    part = {module["a"]: optimizer.state[module["a"]]}
    with pytest.raises(ValueError, match="parameters"):
        StackedOptimizer(optimizer, names, starts, [part])
    uneven = {p: copy.deepcopy(optimizer.state[p]) for p in module.values()}
    uneven[module["c"]]["step"] += 1
    with pytest.raises(ValueError, match="steps"):
        StackedOptimizer(optimizer, names, starts, [uneven])


@pytest.mark.parametrize(
    ("optimizer", "said"),
    [
        (lambda p: torch.optim.RMSprop(p), "RMSprop has no form"),
        (lambda p: torch.optim.NAdam(p), "NAdam has no form"),
        (lambda p: torch.optim.Adam(p, differentiable=True), "differentiable"),
        (lambda p: torch.optim.SGD(p, lr=torch.tensor(0.1)), "learning rate a tensor"),
    ],
)
def test_optimizers_without_a_form_for_many_say_so(optimizer, said):
    assert said in why_not_stacked(optimizer([nn.Parameter(torch.ones(1))]))
