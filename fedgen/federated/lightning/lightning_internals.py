"""Private names of Lightning 2.6 and torch 2.11 to 2.14, which `fedgen.federated` uses in this file alone."""

import os
from collections.abc import Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cache, wraps
from operator import attrgetter
from typing import Any

import torch
from lightning.fabric.utilities import registry
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loops.loop import _Loop
from lightning.pytorch.trainer import call
from lightning.pytorch.trainer import trainer as trainer_module
from lightning.pytorch.trainer.connectors.logger_connector.result import _ResultMetric, _Sync
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.lazy import LazyModuleMixin
from torch.utils._python_dispatch import TorchDispatchMode

from fedgen.pytorch_lightning_alias import OTHER, REMEDY

# what torch and Lightning keep in every module: hooks, registrations, and links to trainer and logs
KEPT_IN_MODULES = frozenset(vars(LightningModule())) | {"_forward_module", "_compiled_call_impl", "_compiler_ctx"}
# what torch keeps in every optimizer beside its state, and schedulers and wrappers of steps leave there
KEPT_IN_OPTIMIZERS = frozenset(vars(torch.optim.SGD([torch.zeros(1)], lr=0.1))) | {"_opt_called"}
# the dictionaries of a module for what hangs in it, read by `vars`, and its set of names of non-persistent buffers
PARAMETERS, BUFFERS, CHILDREN, UNSAVED = "_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"
REGISTRIES = (PARAMETERS, BUFFERS, CHILDREN)
TensorCalls = TorchDispatchMode  # a block that sees each of torch's calls in it, those of backward passes too
# attributes, read and set by `vars`: of a module the hook that `log` takes itself to be called in, which Lightning sets
# around each hook that it calls; of a closure the result of its last call, and what it clears gradients by
HOOK_NAME, RESULT, ZEROING = "_current_fx_name", "_result", "_zero_grad_fn"
STEP_ARGUMENTS = "_build_kwargs"  # method of the loop: those that it passes to `training_step`
call_module_hook = call._call_lightning_module_hook  # as Lightning's loops: profiled, and with its name known to `log`
optimizers_of = attrgetter("strategy._lightning_optimizers")  # of a trainer, as Lightning hands them to a module
training_loader = attrgetter("fit_loop._combined_loader")  # of a trainer, with its limits; None until it is made
# values logged in training, by their keys, with sums and weights that a trainer's `callback_metrics` lacks
trained_values = attrgetter("fit_loop.epoch_loop._results")
version_of = attrgetter("_version")  # the number of times that a tensor has been changed in place
end_process = os._exit  # without Python's own end, which waits for other threads
NormBase = _NormBase  # BatchNorm and InstanceNorm of any dimension, lazy ones too: torch has no public name for it


# ---- the Trainer ----


def explain_other_lightning() -> None:
    """Make Lightning's error of a module that derives from `pytorch_lightning`'s classes name the remedy."""
    given = trainer_module._maybe_unwrap_optimized
    if hasattr(given, "explains"):
        return

    @wraps(given)
    def explained(model: Any) -> Any:
        try:
            return given(model)
        except TypeError as error:
            if not any(base.__module__.split(".")[0] == OTHER for base in type(model).__mro__):
                raise
            raise TypeError(
                f"{error}; {type(model).__qualname__} derives from {OTHER}, whose classes are not those of the Trainer:"
                f" {REMEDY}"
            ) from error

    explained.explains = True  # type: ignore[attr-defined]
    trainer_module._maybe_unwrap_optimized = explained


def look_for_plugins_once() -> None:
    """Search the installed packages for those that offer callbacks once for all Trainers of this process."""
    if not hasattr(registry.entry_points, "cache_info"):
        registry.entry_points = cache(registry.entry_points)


def checkpoint_of(trainer: Trainer) -> dict[str, Any]:
    """Return the whole checkpoint of the present state; `Trainer.save_checkpoint` only writes it to a file."""
    return trainer._checkpoint_connector.dump_checkpoint(weights_only=False)


def handler_before_fit(trainer: Trainer, signum: int) -> Any:
    """Return the handler of a signal that Lightning has replaced for the time of fitting; None if it has not."""
    return trainer._signal_connector._original_handlers.get(signum)


def broadcast_sigterm(trainer: Trainer, exchanges: bool) -> None:
    """Let the first process broadcast before each batch whether it has received SIGTERM, or leave that out."""
    own = vars(trainer.fit_loop.epoch_loop)
    own.pop("_broadcast_sigterm_tensor", None)
    if not exchanges:
        own["_broadcast_sigterm_tensor"] = lambda: None


def validation_interval(trainer: Trainer) -> Any:
    """Return the batches, share of an epoch, or time, after which training stops for validation."""
    return getattr(trainer, "_val_check_time_interval", None) or trainer.val_check_interval  # not in every Lightning


def forget_training_loader(trainer: Trainer) -> None:
    """Let the fit loop make its loader again, by the limits of now."""
    trainer.fit_loop._combined_loader = None


def training_batches(trainer: Trainer) -> Any:
    """Return a new loader of the training data as the fit loop takes it, before it has made one."""
    return trainer.strategy.process_dataloader(trainer.fit_loop._data_source.dataloader())


def begin_next_epoch(trainer: Trainer) -> None:
    """Let no loop go on in the middle of an epoch; the fit loop's own setter of `restarting` may say True again."""
    _Loop.restarting.fset(trainer.fit_loop, False)


def end_restart(trainer: Trainer) -> None:
    """Let Lightning update ReduceLROnPlateau after the first round of a resumed run."""
    # it takes that epoch's metrics for incomplete, and checkpoints are never written within a round; the loop's own
    # setter would change the loops within
    trainer.fit_loop._restarting = False


def has_seen_all_batches(trainer: Trainer) -> bool:
    """Return True if the present epoch has no batch left: the loop's `done` also counts `max_steps`."""
    return trainer.fit_loop.epoch_loop._num_ready_batches_reached()


def validates_after_batch(trainer: Trainer) -> bool:
    """Return True if validation comes after the present batch."""
    return trainer.fit_loop.epoch_loop._should_check_val_epoch()


def saves_within_epochs(callback: ModelCheckpoint) -> bool:
    """Return True if a callback saves after a number of steps or a time."""
    return bool(callback._every_n_train_steps or callback._train_time_interval)


def hold_checkpoint(callback: ModelCheckpoint, step: int) -> None:
    """Mark a step as saved by a callback."""
    callback._last_global_step_saved = step


def without_process_group(meta: Any) -> Any:
    """Return how a value was logged, without its reduction over processes, which cannot be sent."""
    return replace(meta, _sync=None)


def set_reduced(results: Any, key: str, meta: Any, value: Tensor) -> None:
    """Set a logged value over all processes, in place of Lightning's reduction."""
    if key not in results:
        meta.sync = _Sync(_should=True)
        results[key] = _ResultMetric(meta, is_tensor=True).to(value.device)
    metric = results[key]
    metric.has_reset, metric._computed = False, value
    metric._update_count = max(1, metric._update_count)


def empty_buffers(module: nn.Module, pattern: str) -> list[str]:
    """Return the names, of a shell pattern, of buffers that are None and in `state_dict` once they are filled."""
    empty = [
        f"{prefix}.{name}".lstrip(".")
        for prefix, part in module.named_modules()
        for name in part._buffers.keys() - part._non_persistent_buffers_set
        if part._buffers[name] is None
    ]
    return [name for name in empty if fnmatchcase(name, pattern)]


def is_unfinished(part: nn.Module) -> bool:
    """Return True if a lazy module has not had an input yet."""
    return isinstance(part, LazyModuleMixin) and hasattr(part, "_initialize_hook")


def finish(part: Any, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> None:
    """Give a lazy module its shapes by an input, without a forward pass; its own hook does it before the first."""
    part._infer_parameters(part, arguments, keywords)


def coordinates_and_values(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """Return the dense tensors of a sparse COO tensor, which may be uncoalesced; public methods refuse those."""
    return tensor._indices(), tensor._values()


def is_compiled(part: nn.Module) -> bool:
    """Return True if `part.compile()` has been called."""
    return part._compiled_call_impl is not None


def has_step_hooks(optimizer: torch.optim.Optimizer) -> bool:
    """Return True if an optimizer's steps have hooks of other code than this package's."""
    hooks = [*optimizer._optimizer_step_pre_hooks.values(), *optimizer._optimizer_step_post_hooks.values()]
    return any(not str(hook.__module__).startswith("fedgen.federated.client_state") for hook in hooks)


def note_step(optimizer: torch.optim.Optimizer) -> None:
    """Mark an optimizer as stepped for its schedulers, which warn otherwise, though `step` was not called."""
    optimizer._opt_called = True  # type: ignore[attr-defined]


def will_skip(scaler: Any, optimizer: torch.optim.Optimizer) -> bool:
    """Return True if a gradient scaler will skip an optimizer's step, for gradients that overflowed."""
    found = _stages_of(scaler).get(id(optimizer), {}).get("found_inf_per_device", {})
    return any(bool(overflow) for overflow in found.values())


def forget_stages(scaler: Any) -> None:
    """Let a gradient scaler forget what it has unscaled: a step that raised in between would fail every later one."""
    _stages_of(scaler).clear()


def _stages_of(scaler: Any) -> dict[int, dict[str, Any]]:
    return getattr(scaler, "_per_optimizer_states", {})  # of torch's; a precision plugin may bring another scaler
