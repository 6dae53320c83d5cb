"""The seam that client algorithms plug into."""

import logging
from typing import Any

import pytest
import torch
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch import nn

from fedgen.federated import ClientAlgorithm, Constant, FedAvgStrategy
from fedgen.federated.algorithms.algorithm import about_to_step, gradients_of, parameter_names
from tests.federated.modules import Automatic, Manual, Quadratic, make_data, make_quadratics, make_trainer

HOOKS = ("reset", "start_fit", "start_round", "start_turn", "before_step", "end_turn", "end_round")


class Listening(ClientAlgorithm):
    """Notes which hooks are called, with the arguments that are plain."""

    def __init__(self):
        self.calls = []
        for name in HOOKS:
            setattr(self, name, self.note(name, getattr(super(), name)))

    def note(self, name, hook):
        def call(*args):
            self.calls.append((name, *(arg for arg in args if isinstance(arg, int))))
            return hook(*args)

        return call


def test_hooks_come_in_order():
    listening = Listening()
    strategy = FedAvgStrategy(1, seed=0, client_algorithm=listening)
    trainer = make_trainer(strategy, 1)
    module = Quadratic()
    trainer.fit(module, make_quadratics())
    round: list[tuple[Any, ...]] = [("start_round",)]
    for client in (0, 1):
        round += [("start_turn", client), ("before_step",), ("end_turn", client, 1)]
    round.append(("end_round",))
    assert listening.calls == [("reset",), ("start_fit",), *round]
    listening.calls.clear()
    trainer.fit_loop.max_epochs = 2
    trainer.fit(module, make_quadratics())
    assert listening.calls == [("start_fit",), *round]  # the same model, so its clients are the same
    listening.calls.clear()
    trainer.fit_loop.max_epochs = 3
    trainer.fit(Quadratic(), make_quadratics())
    assert listening.calls[0] == ("reset",)


class Told(ClientAlgorithm):
    def start_fit(self, model, optimizers, shares):
        self.model, self.optimizers, self.shares = model, optimizers, shares

    def num_bytes(self, model):
        return 100 * len(model)


@pytest.mark.parametrize(("kind", "shares"), [("examples", [0.375, 0.625]), ("uniform", [0.5, 0.5])])
def test_it_is_told_every_clients_share_though_one_alone_takes_part(kind, shares):
    told = Told()
    strategy = FedAvgStrategy(1, cohort_size=1, seed=0, client_algorithm=told, client_weights=kind)
    trainer = make_trainer(strategy, 1)
    trainer.fit(Automatic(), make_data((12, 20)))
    assert told.shares == shares
    assert told.optimizers == trainer.optimizers


def test_what_it_sends_counts_as_sent(caplog):
    """A weight of eight bytes, and a hundred for it."""
    with caplog.at_level(logging.INFO):
        make_trainer(FedAvgStrategy(1, client_algorithm=Told()), 1).fit(Quadratic(), make_quadratics())
    assert "each client sends 108 B a round and receives 108 B" in [record.message for record in caplog.records]


def test_only_named_parameters_with_a_gradient_are_about_to_step():
    a, b, c = (torch.nn.Parameter(torch.zeros(1)) for _ in range(3))
    names = parameter_names({"a": a, "b": b, "c": c, "buffer": torch.zeros(1)})
    assert sorted(names.values()) == ["a", "b", "c"]
    a.grad, c.grad, other = torch.ones(1), torch.ones(1), torch.nn.Parameter(torch.zeros(1))
    other.grad = torch.ones(1)
    stepped = about_to_step(torch.optim.SGD([a, b, other]), names)
    assert list(stepped) == ["a"]
    assert gradients_of([a, b])[0] is a.grad
    assert len(gradients_of([a, b])) == 1


def test_another_algorithms_state_is_refused_by_what_it_holds():
    ClientAlgorithm().load_state_dict({})
    with pytest.raises(MisconfigurationException, match="ClientAlgorithm"):
        ClientAlgorithm().load_state_dict({"server": {}, "clients": {}})


class Raw(Manual):
    """Steps past Lightning."""

    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers(use_pl_optimizer=False)
        optimizer.zero_grad()
        self.manual_backward(nn.functional.cross_entropy(self.net(batch[0]), batch[1]))
        optimizer.step()


@pytest.mark.parametrize("options", [{"client_algorithm": Told()}, {"client_schedule": Constant()}])
def test_steps_that_it_cannot_see_are_warned_of(options):
    with pytest.warns(UserWarning, match="optimizers"):
        make_trainer(FedAvgStrategy(1, seed=0, **options), 1).fit(Raw(), make_data())
    make_trainer(FedAvgStrategy(1, seed=0), 1).fit(Raw(), make_data())
