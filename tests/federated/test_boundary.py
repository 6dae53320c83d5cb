"""Trainer settings that would look into a round are refused, and steps that are none are not passed on."""

import math
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from fedgen.federated import ClientAlgorithm, FedAvgStrategy
from fedgen.federated.boundary import RoundBoundary
from tests.federated.modules import Automatic, make_data, make_trainer


@pytest.mark.parametrize("interval", [1, 2, 0.5, "00:00:00:10", timedelta(minutes=1)])
def test_validation_after_turns_or_seconds_is_refused(interval):
    """The integer 1 means after every turn; only the float 1.0 means once a round."""
    trainer = make_trainer(FedAvgStrategy(2), 1, val_check_interval=interval)
    with pytest.raises(MisconfigurationException, match=r"use check_val_every_n_epoch, which counts rounds"):
        trainer.fit(Automatic(), make_data())


@pytest.mark.parametrize("interval", [None, 1.0])
def test_validation_once_a_round_is_allowed(interval):
    make_trainer(FedAvgStrategy(1, seed=0), 1, val_check_interval=interval).fit(Automatic(), make_data())


@pytest.mark.parametrize(("gradient", "heard"), [(1.0, 1), (math.inf, 0)])
def test_client_algorithms_do_not_hear_of_steps_that_the_grad_scaler_skips(gradient, heard):
    class Counting(ClientAlgorithm):
        count = 0

        def before_step(self, optimizer):
            self.count += 1

    scaler, w = torch.amp.GradScaler("cpu"), torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([w], lr=0.1)
    scaler.scale((w * gradient).sum()).backward()
    scaler.unscale_(optimizer)
    strategy: Any = SimpleNamespace(in_turns=True, client_algorithm=Counting())
    trainer: Any = SimpleNamespace(precision_plugin=SimpleNamespace(scaler=scaler))
    RoundBoundary(strategy).on_before_optimizer_step(trainer, LightningModule(), optimizer)
    assert strategy.client_algorithm.count == heard
