"""Gives parameters without shapes (`nn.LazyLinear` and the like) shapes before training, the same on all ranks."""

import copy
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature
from torch import nn
from torch.nn.parameter import UninitializedBuffer, is_lazy

from fedgen.clients.turn import Turn
from fedgen.federated.lightning.checks import refuse_batch
from fedgen.federated.lightning.lightning_internals import finish, is_unfinished, training_batches
from fedgen.seeds import isolated, seed_all

Inputs = dict[str, tuple[tuple[Any, ...], dict[str, Any]]]  # a lazy module's arguments by its name


class _AllSeen(BaseException):
    """Ends a trial step when every lazy module has had its input; a BaseException, as modules may catch others."""


def materialise(trainer: Trainer, seed: int) -> None:
    """Give uninitialised parameters and buffers their shapes and first values, if the module has any."""
    module = trainer.lightning_module
    # a checkpoint may have given lazy modules their tensors
    unfinished = [name for name, part in module.named_modules() if is_unfinished(part)]
    unknown = _uninitialised(module)
    if not unfinished and not unknown:
        return
    with isolated():
        seed_all(seed, "lazy")
        trial, inputs = _try_step(trainer, module, unknown, unfinished)
        seed_all(seed, "lazy")
        for name, (args, kwargs) in inputs.items():
            finish(module.get_submodule(name), args, kwargs)
        found = dict([*trial.named_parameters(), *trial.named_buffers()])
        for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
            if is_lazy(tensor) and name in found and not is_lazy(found[name]):  # shaped by the module's own code
                tensor.materialize(found[name].shape, device=found[name].device, dtype=found[name].dtype)
                tensor.detach().copy_(found[name].detach())
    if left := _uninitialised(module):
        raise _failure(left, "which the first client's first batch does not reach")


def _uninitialised(module: nn.Module) -> list[str]:
    return [name for name, tensor in [*module.named_parameters(), *module.named_buffers()] if is_lazy(tensor)]


def _failure(names: list[str], why: str) -> MisconfigurationException:
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return MisconfigurationException(
        f"{names[0]}{more} is uninitialised (nn.Lazy...), {why}, so that its shape is not known when the first round"
        " starts; give it its shape in the module's constructor, or run a forward pass in `configure_model`"
    )


def _try_step(
    trainer: Trainer, module: LightningModule, unknown: list[str], unfinished: list[str]
) -> tuple[LightningModule, Inputs]:
    """Return a copy of the module that has taken one step, and the inputs of its lazy modules."""
    names, strategy = unknown or unfinished, trainer.strategy
    turn = next(iter(training_batches(trainer)))
    if not isinstance(turn, Turn):
        refuse_batch(turn)
    batch = turn.trial_batch
    if batch is None:
        raise _failure(names, "and the form of the clients' examples is not known here")
    batch = strategy.batch_to_device(strategy.precision_plugin.convert_input(batch))
    inputs: Inputs = {}
    stops = all(name.rpartition(".")[0] in unfinished for name in unknown)  # the others need the whole step
    try:
        trial = _copy_for_trial(trainer, module)
        with _recording(trial, unfinished, inputs, stops):
            counted = is_param_in_hook_signature(trial.training_step, "batch_idx", min_args=2)
            with strategy.precision_plugin.train_step_context(), torch.enable_grad():
                trial.training_step(*((batch, 0) if counted else (batch,)))
    except _AllSeen:
        pass
    except Exception as error:
        why = f"and a trial step of a copy of the module raised {type(error).__name__}: {error}"
        raise _failure(names, why) from error
    return trial, inputs


def _copy_for_trial(trainer: Trainer, module: LightningModule) -> LightningModule:
    """Return a copy that reads the trainer, logs nothing, and has optimizers whose steps do nothing."""
    strategy = trainer.strategy
    schedulers = [config.scheduler for config in strategy.lr_scheduler_configs]
    # buffers without a shape cannot be copied; parameters can
    lazy = [buffer for buffer in module.buffers() if is_lazy(buffer)]
    memo = {id(one): UninitializedBuffer(device=one.device, dtype=one.dtype) for one in lazy}  # type: ignore[call-arg]
    trial, optimizers, schedulers = copy.deepcopy((module, strategy.optimizers, schedulers), memo)
    trial.trainer = trainer

    def only(found: list[Any]) -> Any:
        return found[0] if len(found) == 1 else found

    for optimizer in optimizers:
        optimizer.step = lambda closure=None: None if closure is None else closure()
    silent = ("log", "log_dict", "toggle_optimizer", "untoggle_optimizer")
    instead = {
        **dict.fromkeys(silent, lambda *args, **options: None),
        "optimizers": lambda use_pl_optimizer=True: only(optimizers),
        "lr_schedulers": lambda: only(schedulers) if schedulers else None,
        "manual_backward": lambda loss, *args, **options: loss.backward(*args, **options),
    }
    for name, function in instead.items():
        object.__setattr__(trial, name, function)
    return trial


@contextmanager
def _recording(trial: nn.Module, unfinished: list[str], inputs: Inputs, stops: bool) -> Iterator[None]:
    """Record the arguments of the lazy modules at their first call, in the order of these."""

    def record(name: str, part: nn.Module, args: Any, kwargs: Any) -> None:
        inputs.setdefault(name, (args, kwargs))

    def stop(part: nn.Module, args: Any, output: Any) -> None:
        if stops and inputs.keys() == set(unfinished):
            raise _AllSeen

    with ExitStack() as hooks:
        for name in unfinished:
            part = trial.get_submodule(name)
            hooks.enter_context(part.register_forward_pre_hook(partial(record, name), prepend=True, with_kwargs=True))
            hooks.enter_context(part.register_forward_hook(stop))
        yield
