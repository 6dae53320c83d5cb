"""Lightning's automatic optimisation of one batch, without the calls that lead nowhere.

Between a batch and its optimizer step Lightning offers a dozen hooks, each with a profiler's context and a line for the
log: 0.3 ms on a slow core, a tenth of a small model's iteration. Where nobody overrides them nothing is lost by leaving
them out, and where somebody does they are all called.
"""

from collections.abc import Callable
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loops.optimization.automatic import Closure, ClosureResult
from lightning.pytorch.plugins.precision import Precision
from lightning.pytorch.profilers import PassThroughProfiler
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch.optim import Optimizer

from fedgen.federated.lightning.boundary import RoundBoundary
from fedgen.federated.lightning.lightning_internals import give_result, set_hook_name
from fedgen.models.optional_hooks import data_module_of

CALLBACK_HOOKS = ("on_before_zero_grad", "on_before_backward", "on_after_backward", "on_before_optimizer_step")
MODULE_HOOKS = (*CALLBACK_HOOKS, "optimizer_zero_grad", "backward", "configure_gradient_clipping", "optimizer_step")
STRATEGY_HOOKS = ("pre_backward", "backward", "post_backward", "post_training_step")
TRANSFER_HOOKS = ("transfer_batch_to_device", "on_after_batch_transfer")


def calls_no_hook(trainer: Trainer) -> bool:
    """Whether nobody overrides what Lightning calls around a step: module, callbacks, strategy, precision, profiler.

    The strategy's own callback does: `quick_step` is told what it does.
    """
    module, strategy = trainer.lightning_module, trainer.strategy
    callbacks = [callback for callback in trainer.callbacks if not isinstance(callback, RoundBoundary)]
    return (
        not any(is_overridden(hook, module) for hook in MODULE_HOOKS)
        and not any(is_overridden(hook, callback) for callback in callbacks for hook in CALLBACK_HOOKS)
        and not any(is_overridden(hook, strategy, DDPStrategy) for hook in STRATEGY_HOOKS)
        and type(strategy.precision_plugin) is Precision
        and type(trainer.profiler) is PassThroughProfiler
        and not trainer.gradient_clip_val
    )


def moves_plainly(trainer: Trainer) -> bool:
    """Whether nobody overrides how a batch gets to its device."""
    data: Any = data_module_of(trainer)
    return type(trainer.strategy.precision_plugin) is Precision and not any(
        is_overridden(hook, trainer.lightning_module) or (data is not None and is_overridden(hook, data))
        for hook in TRANSFER_HOOKS
    )


def quick_step(
    module: LightningModule,
    optimizer: Optimizer,
    closure: Closure,
    training_step: Callable[[], Any],
    before_step: Callable[[Optimizer], None],
) -> Any:
    """Training step, zeroed gradients, backward pass and optimizer step, counted as Lightning counts them."""
    progress = module.trainer.fit_loop.epoch_loop.automatic_optimization.optim_progress.optimizer.zero_grad

    @torch.enable_grad()
    def run() -> Any:
        before = set_hook_name(module, "training_step")
        output = training_step()
        set_hook_name(module, before)
        result = ClosureResult.from_training_step_output(output)
        progress.increment_ready()
        progress.increment_started()
        optimizer.zero_grad()
        progress.increment_completed()
        if result.closure_loss is None:
            closure.warning_cache.warn("a `training_step` returned None: its iteration has no gradient")
        else:
            result.closure_loss.backward()
        before_step(optimizer)
        give_result(closure, result)
        return result.loss

    return optimizer.step(run)
