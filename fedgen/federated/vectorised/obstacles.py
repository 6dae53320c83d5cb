"""Reasons for which clients' turns are taken one by one: what steps as functions would not see, or do otherwise."""

from collections.abc import Iterator
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.plugins.precision import DoublePrecision, Precision
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import nn

from fedgen.clients.lazy_turn import LazyTurn
from fedgen.clients.turn import Turn
from fedgen.federated.algorithms.algorithm import ClientAlgorithm
from fedgen.federated.lightning.boundary import RoundBoundary
from fedgen.federated.lightning.lightning_internals import has_step_hooks, is_compiled
from fedgen.federated.lightning.quick_step import CALLBACK_HOOKS, MODULE_HOOKS, STRATEGY_HOOKS
from fedgen.federated.lightning.turn_clock import BATCH_HOOKS, TurnClock
from fedgen.federated.round import Round
from fedgen.federated.start_points import StartPoints
from fedgen.federated.vectorised.stacked_optimizer import why_not_stacked
from fedgen.models.functional_step import overridden_below
from fedgen.models.optional_hooks import of_module

DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
# what a class that gives functional steps stands for, as far as it or a class above it defines it
STOOD_FOR = ("training_step", *MODULE_HOOKS, *BATCH_HOOKS, "manual_backward", "on_turn_start")


def why_one_by_one(trainer: Trainer, round: Round, clock: TurnClock, moves_schedules: bool, turn: Turn) -> str | None:
    """Return why turns cannot be taken at once, in words; None if they can.

    Args:
        trainer: that fits.
        round: whose turns they are.
        clock: of the fit.
        moves_schedules: whether learning rates have schedules by the step.
        turn: one of them.
    """
    module = trainer.lightning_module
    found = [
        _of_module(module),
        _of_parts(module),
        _of_trainer(trainer, clock, moves_schedules),
        _of_algorithm(round.algorithm),
        None if type(round.starts) is StartPoints else "clients start from weights of different rounds",
        *(why_not_stacked(optimizer) for optimizer in trainer.strategy.optimizers),
        "batches are read while turns run" if isinstance(turn, LazyTurn) else None,
    ]
    return next((reason for reason in found if reason is not None), None)


def _of_module(module: LightningModule) -> str | None:
    name = type(module).__name__
    hooks = of_module(module)
    if hooks.functional_steps is None:
        return f"{name} does not give its steps as functions (functional_steps)"
    if hooks.no_functional_steps is not None:
        return hooks.no_functional_steps
    if "training_step" in vars(module):
        return f"somebody has replaced the training_step of the {name}"
    return overridden_below(module, "functional_steps", STOOD_FOR)


def _of_parts(module: LightningModule) -> str | None:
    return next(_faults(module), None)


def _faults(module: LightningModule) -> Iterator[str]:
    for name, part in module.named_modules():
        if isinstance(part, DROPOUTS) and part.p > 0 and part.training:
            yield f"{name} draws within the network (dropout)"
        if is_compiled(part) or "forward" in vars(part):
            yield f"{name or type(part).__name__} is compiled, or its forward is replaced"


def _of_trainer(trainer: Trainer, clock: TurnClock, moves_schedules: bool) -> str | None:
    strategy = trainer.strategy
    if type(strategy.precision_plugin) not in (Precision, DoublePrecision):
        return f"precision={trainer.precision} is for one client at a time"
    if clock.accumulation != 1:
        return f"gradients are accumulated over {clock.accumulation} batches"
    if moves_schedules:
        return "a learning rate has a schedule by the step"
    callbacks: list[Any] = [one for one in trainer.callbacks if not isinstance(one, RoundBoundary)]
    asked = [(one, hook) for one in callbacks for hook in CALLBACK_HOOKS if is_overridden(hook, one)]
    asked += [(strategy, hook) for hook in STRATEGY_HOOKS if is_overridden(hook, strategy, DDPStrategy)]
    if asked:
        return f"{type(asked[0][0]).__name__}.{asked[0][1]} is called at each step"
    hooked = next((one for one in strategy.optimizers if has_step_hooks(one)), None)
    return None if hooked is None else f"{type(hooked).__name__} has hooks around its steps"


def _of_algorithm(algorithm: ClientAlgorithm) -> str | None:
    return None if type(algorithm) is ClientAlgorithm else f"{type(algorithm).__name__} acts on each step"
