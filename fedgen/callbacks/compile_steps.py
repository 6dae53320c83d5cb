"""A callback that runs a module's networks through `torch.compile` while they train."""

import copy
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from types import FunctionType, MethodType
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import nn

from fedgen.own_code import rank_zero_warn

Backend = str | Callable[..., Any]
_CODES = itertools.count()  # of functions with a code object each


class CompileSteps(Callback):
    """Compiles a module's networks for their training steps: --trainer.callbacks+=fedgen.callbacks.CompileSteps.

    A network is compiled in place at its first step: names in `state_dict`, checkpoints and optimizers do not change.
    Clients' turns load the server's weights into the same tensors, so no client and no round compiles again; a second
    batch size does once, and then all sizes share one program. In eval mode the uncompiled network runs, so it makes
    scores and images. When fitting ends, all of it is undone.

    Results are those of uncompiled steps to rounding, not to the bit. What compiled code cannot do, such as being
    differentiated twice (a gradient penalty), raises in the first step. `docs/compiled-steps.md` has gains and costs.

    Args:
        networks: dotted names of the parts to compile, e.g. ["generator"]; None takes each part of the module that has
            parameters to train. It must be called as a function in training; there is a warning if none is.
        mode: "default"; "reduce-overhead" and "max-autotune" also record CUDA graphs on a GPU, for small networks whose
            kernels the processor launches too slowly.
        dynamic: whether programs are for all shapes from the start; None compiles for the first batch's.
        backend: of `torch.compile`.

    Raises:
        ValueError: when fitting starts: for a part that the module has not, a module without any, and models of fedgen
            that have a setting `compile` of their own if `networks` is None.
        RuntimeError: when fitting starts, if the backend does not work here: no C++ compiler, say.
    """

    def __init__(
        self,
        networks: Sequence[str] | None = None,
        mode: str = "default",
        dynamic: bool | None = None,
        backend: Backend = "inductor",
    ) -> None:
        self.networks = None if networks is None else list(networks)
        self.mode, self.dynamic, self.backend = mode, dynamic, backend
        self._compiled: dict[str, _TrainingForward] = {}
        self._replaced: list[tuple[nn.Module, str, Any]] = []  # attributes, and what was there before, None for nothing
        self._is_checked = False

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        found = _chosen(pl_module, self.networks)
        check_backend(self.backend, trainer.strategy.root_device)
        options = {"mode": self.mode, "dynamic": self.dynamic, "backend": self.backend}
        self._compiled = {name: _TrainingForward(network, options) for name, network in found.items()}
        for name, network in found.items():
            self._replace(network, "forward", self._compiled[name])
        if self.mode in ("reduce-overhead", "max-autotune"):  # which record CUDA graphs
            self._replace(pl_module, "training_step", _marked(pl_module.training_step))
        self._is_checked = False

    def _replace(self, owner: nn.Module, name: str, value: Any) -> None:
        self._replaced.append((owner, name, vars(owner).get(name)))
        vars(owner)[name] = value

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not self._is_checked and not any(compiled.was_called for compiled in self._compiled.values()):
            rank_zero_warn(
                f"CompileSteps changes nothing: no step calls {', '.join(self._compiled)} as a function in training"
                " mode; name parts that steps call so, CompileSteps(networks=[...]), or leave the callback out"
            )
        self._is_checked = True

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        for owner, name, before in reversed(self._replaced):
            vars(owner).pop(name, None)
            if before is not None:
                vars(owner)[name] = before
        self._compiled, self._replaced = {}, []

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self.teardown(trainer, pl_module, "fit")


class _TrainingForward:
    """Stands in for a network's `forward`: compiled in training mode, the network's own in eval mode."""

    def __init__(self, network: nn.Module, options: dict[str, Any]) -> None:
        self._network, self._before = network, vars(network).get("forward")
        self._eager = network.forward
        functools.update_wrapper(self, self._eager)
        self._run = torch.compile(_with_own_code(self._eager), **options)
        self.was_called = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self._network.training:
            return self._eager(*args, **kwargs)
        self.was_called = True
        return self._run(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """A copy of the network computes by its own weights, uncompiled."""
        if self._before is not None:
            return copy.deepcopy(self._before, memo)
        network = memo.get(id(self._network), self._network)
        return MethodType(type(network).forward, network)


def _with_own_code(forward: Callable[..., Any]) -> Callable[..., Any]:
    """The same function with a new code object and name."""

    def run(*args: Any, **kwargs: Any) -> Any:
        return forward(*args, **kwargs)

    name = f"run_{next(_CODES)}"
    return FunctionType(run.__code__.replace(co_name=name), run.__globals__, name, run.__defaults__, run.__closure__)


def _marked(training_step: Callable[..., Any]) -> Callable[..., Any]:
    """A training step that marks its beginning for CUDA graphs: memory of the step before may be written again."""

    @functools.wraps(training_step)
    def step(*args: Any, **kwargs: Any) -> Any:
        torch.compiler.cudagraph_mark_step_begin()
        return training_step(*args, **kwargs)

    return step


def _chosen(module: LightningModule, names: Sequence[str] | None) -> dict[str, nn.Module]:
    trained = dict(_trained_parts(module))
    if names is not None:
        parts = dict(module.named_modules())
        if unknown := [name for name in names if not name or name not in parts]:
            raise ValueError(
                f"networks={list(names)!r}: {type(module).__name__} has no part {unknown[0]!r}; those that train are"
                f" {', '.join(trained) or 'none'}"
            )
        return {name: parts[name] for name in names}
    if isinstance(getattr(module, "compiles", None), bool):  # as `GAN`, `StyleGAN2` and diffusion models have it
        raise ValueError(
            f"{type(module).__name__} has a setting for compiling its steps: use `compile`"
            " (--model.init_args.compile true) instead of CompileSteps, or name parts: CompileSteps(networks=[...])"
        )
    if not trained:
        raise ValueError(
            f"CompileSteps finds no network in {type(module).__name__}: it compiles submodules, not the module's own"
            " parameters; put these into a submodule, self.net = nn.Sequential(...), or leave the callback out"
        )
    return trained


def _trained_parts(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """The outermost parts that have parameters to train and compute something, with their dotted names."""
    for name, part in module.named_children():
        if isinstance(part, (nn.ModuleList, nn.ModuleDict)):  # which compute nothing themselves
            yield from _trained_parts(part, f"{prefix}{name}.")
        elif any(parameter.requires_grad for parameter in part.parameters()):
            yield prefix + name, part


def check_backend(backend: Backend, device: torch.device) -> None:
    try:
        torch.compile(_with_own_code(torch.add), backend=backend)(torch.ones(2, device=device), 1)
    except Exception as error:
        reason = " ".join(str(error).split("\n")[:2]).strip()  # the first line may name the backend alone
        raise RuntimeError(
            f"CompileSteps: torch.compile with backend {backend!r} does not work on {device} ({reason}); on a CPU"
            " 'inductor' needs a C++ compiler (Debian: apt-get install g++), on a GPU Triton; or leave the callback out"
        ) from error


class ChannelsLast(Callback):
    """Trains with channels last in memory: kernels [O, I, H, W] of a module's convolutions, and so their outputs.

    Shapes, names and results are as without, to rounding; on a GPU in half precision convolutions spare two
    transpositions each. Set when fitting starts, and kept: clients' turns copy into the same tensors.
    """

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage != "fit":
            return
        if not any(tensor.ndim == 4 for tensor in pl_module.parameters()):
            rank_zero_warn(f"ChannelsLast changes nothing: {type(pl_module).__name__} has no kernel [O, I, H, W]")
        pl_module.to(memory_format=torch.channels_last)
