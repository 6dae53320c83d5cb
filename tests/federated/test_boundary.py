"""Steps that are none are not passed on."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule

from fedgen.federated import ClientAlgorithm
from fedgen.federated.local_training import RoundBoundary


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
