"""Every learning-rate schedule of torch, by the step and by the epoch, and others as people bind and keep them."""

import math
from collections.abc import Callable
from functools import partial
from types import MethodType
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim import lr_scheduler as torch_schedules
from torch.optim.swa_utils import SWALR

from tests.foreign.optimizers import RATE, Maker, Probe, of_torch

SET_BY_SCHEDULES = (
    "lr",
    "swa_lr",
    "initial_lr",
    "max_lr",
    "min_lr",
    "momentum",
    "base_momentum",
    "max_momentum",
    "betas",
)


class Scheduled(Probe):
    """A probe with a schedule.

    Args:
        optimizer: makes the optimizer.
        schedule: makes the schedule of it and the module.
        interval: "step" or "epoch", as Lightning moves it; "attribute" for one that the module keeps and moves.
    """

    def __init__(self, optimizer: Maker, schedule: Callable[[Optimizer, "Scheduled"], Any], interval: str) -> None:
        super().__init__(optimizer)
        self._schedule, self._interval, self.own_schedule = schedule, interval, None
        self.batches = 0

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        self.batches += 1
        self.log("loss", loss, on_epoch=True, on_step=False)
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = self._optimizer(self.net)
        if self._interval == "attribute":
            if self.own_schedule is None:  # made once: it goes on while optimizers are made anew
                self.own_schedule = self._schedule(optimizer, self)
            return optimizer
        schedule = {"scheduler": self._schedule(optimizer, self), "interval": self._interval, "monitor": "loss"}
        return {"optimizer": optimizer, "lr_scheduler": schedule}

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self.own_schedule is not None:
            self.own_schedule.step()


class Falling:
    """A factor that falls each time it is asked for, and knows the module."""

    def __init__(self, module: Any) -> None:
        self.module, self.factor = module, 1.0

    def __call__(self, step: int) -> float:
        self.factor *= 0.9
        return self.factor / (1 + self.module.batches)


def _static_rate(get_lr: Callable[[], list[float]], group: int, rate: float) -> list[float]:
    rates = get_lr()
    rates[group] = rate
    return rates


def with_static_rate(optimizer: Optimizer, module: Any) -> Any:
    """A schedule of which one group has a rate that stays, as solo-learn binds it."""
    schedule = torch_schedules.ExponentialLR(optimizer, 0.8)
    schedule.get_lr = partial(_static_rate, get_lr=schedule.get_lr, group=0, rate=RATE / 2)  # type: ignore[method-assign]
    return schedule


def with_own_method(optimizer: Optimizer, module: Any) -> Any:
    """A schedule with a function bound to it in place of its method."""
    schedule = torch_schedules.StepLR(optimizer, 2)

    def get_lr(self: Any) -> list[float]:
        return [rate / (1 + self.last_epoch) for rate in self.base_lrs]

    schedule.get_lr = MethodType(get_lr, schedule)  # type: ignore[method-assign]
    return schedule


def one_after_another(optimizer: Optimizer, module: Any) -> Any:
    """A warm-up, then a cosine."""
    parts = [torch_schedules.LinearLR(optimizer, 0.1, total_iters=3), torch_schedules.CosineAnnealingLR(optimizer, 9)]
    return torch_schedules.SequentialLR(optimizer, parts, milestones=[3])


def _factor(step: int) -> float:
    return math.exp(-step / 5)


MADE: dict[str, Callable[[Optimizer, Any], Any]] = {
    "LambdaLR": lambda optimizer, _: torch_schedules.LambdaLR(optimizer, _factor),
    "LambdaLR of an object that holds the module": lambda optimizer, module: torch_schedules.LambdaLR(
        optimizer, Falling(module)
    ),
    "LambdaLR of a partial": lambda optimizer, _: torch_schedules.LambdaLR(optimizer, partial(pow, 0.9)),
    "MultiplicativeLR": lambda optimizer, _: torch_schedules.MultiplicativeLR(optimizer, lambda _: 0.9),
    "StepLR": lambda optimizer, _: torch_schedules.StepLR(optimizer, 2),
    "MultiStepLR": lambda optimizer, _: torch_schedules.MultiStepLR(optimizer, [1, 4, 8]),
    "ConstantLR": lambda optimizer, _: torch_schedules.ConstantLR(optimizer, 0.3, total_iters=4),
    "LinearLR": lambda optimizer, _: torch_schedules.LinearLR(optimizer, 0.1, total_iters=8),
    "ExponentialLR": lambda optimizer, _: torch_schedules.ExponentialLR(optimizer, 0.8),
    "SequentialLR": one_after_another,
    "PolynomialLR": lambda optimizer, _: torch_schedules.PolynomialLR(optimizer, 12),
    "CosineAnnealingLR": lambda optimizer, _: torch_schedules.CosineAnnealingLR(optimizer, 7),
    "ChainedScheduler": lambda optimizer, _: torch_schedules.ChainedScheduler(
        [torch_schedules.ExponentialLR(optimizer, 0.9), torch_schedules.LinearLR(optimizer, 0.2, total_iters=5)]
    ),
    "CyclicLR": lambda optimizer, _: torch_schedules.CyclicLR(
        optimizer, RATE / 10, RATE, 3, cycle_momentum="momentum" in optimizer.defaults
    ),
    "CosineAnnealingWarmRestarts": lambda optimizer, _: torch_schedules.CosineAnnealingWarmRestarts(optimizer, 4),
    "OneCycleLR": lambda optimizer, _: torch_schedules.OneCycleLR(optimizer, RATE, total_steps=30),
    "ReduceLROnPlateau": lambda optimizer, _: torch_schedules.ReduceLROnPlateau(optimizer, patience=0, threshold=0.1),
    "SWALR": lambda optimizer, _: SWALR(optimizer, RATE / 10, anneal_epochs=6),
    "ExponentialLR with a static rate (solo-learn)": with_static_rate,
    "StepLR with a function bound to it": with_own_method,
}
OPTIMIZERS = {"SGD": of_torch(torch.optim.SGD, momentum=0.9), "Adam": of_torch(torch.optim.Adam)}
