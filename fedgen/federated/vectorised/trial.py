"""One client's steps tried by themselves: what they move, and the memory that they take."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fedgen.data.optional_attributes import optional
from fedgen.federated.client_state.exchange import parameters_of
from fedgen.federated.lightning.lightning_internals import TensorCalls, version_of
from fedgen.io.tensor_files import bytes_of, tensors_in
from fedgen.models.functional_step import Drawn, FunctionalStep
from fedgen.models.optional_hooks import ModulePart
from fedgen.seeds import isolated


class WithTensors(nn.Module):
    """A step's loss as a function of a module's tensors, for `torch.func.functional_call`; names are `PREFIX`ed.

    Args:
        module: whose loss it is.
        buffers: that the loss changes, by name.
    """

    PREFIX = "module."

    def __init__(self, module: nn.Module, buffers: Sequence[str] = ()) -> None:
        super().__init__()
        self.module = module
        split = {name: name.rpartition(".") for name in buffers}
        self._owners = {name: (module.get_submodule(part), own) for name, (part, _, own) in split.items()}

    def forward(
        self, step: FunctionalStep, batch: Any, drawn: Drawn
    ) -> tuple[Tensor, Mapping[str, Tensor], dict[str, Tensor]]:
        """The loss, what is noted, and the buffers as they are afterwards."""
        loss, noted = step.loss(batch, drawn)
        return loss, noted, {name: getattr(part, own) for name, (part, own) in self._owners.items()}


@dataclass
class Trial:
    """The tensors that a client's steps were found to move and to need.

    Args:
        stepped: names of the parameters that gradients reach, by the optimizer's place and the parameter's identity.
        changed: names of buffers that the losses change.
        num_bytes: of all tensors that the largest step made, a bound on what it holds at once.
        stepped_bytes: of the parameters.
    """

    stepped: dict[int, dict[int, str]] = field(default_factory=dict)
    changed: list[str] = field(default_factory=list)
    num_bytes: int = 0
    stepped_bytes: int = 0


def try_steps(
    module: nn.Module, optimizers: Sequence[Optimizer], steps: Sequence[FunctionalStep], batch: Any, context: Any
) -> Trial:
    """Take one client's losses and gradients, without a step; module and random numbers are left as they were.

    Raises:
        ValueError: if steps of one optimizer differ in the parameters that they reach.
    """
    names = {id(p): name for name, p in module.named_parameters()}
    buffers = {name: tensor.detach().clone() for name, tensor in _changeable(module)}
    versions = {name: version_of(tensor) for name, tensor in buffers.items()}
    found, call = Trial(), WithTensors(module)
    for step in steps:
        trained = [p for p in parameters_of(optimizers[step.optimizer]) if p.requires_grad]
        copies = [p.detach().clone().requires_grad_() for p in trained]
        given = {names[id(p)]: copy for p, copy in zip(trained, copies)} | buffers
        with isolated(), torch.enable_grad(), context(), _MadeBytes() as made:
            own = {WithTensors.PREFIX + name: tensor for name, tensor in given.items()}
            loss, _, _ = torch.func.functional_call(call, own, (step, batch, step.draw(batch)))
            gradients = torch.autograd.grad(loss, copies, allow_unused=True)
        reached = {id(p): names[id(p)] for p, gradient in zip(trained, gradients) if gradient is not None}
        if found.stepped.setdefault(step.optimizer, reached) != reached:
            raise ValueError(f"steps of optimizer {step.optimizer} differ in the parameters that they reach")
        found.num_bytes = max(found.num_bytes, made.num_bytes)
    found.stepped_bytes = bytes_of(
        p for p in module.parameters() if any(id(p) in own for own in found.stepped.values())
    )
    # BatchNorm's kernels write without telling the tensor's version; a value may be written again as it was
    found.changed = [
        name
        for name, buffer in _changeable(module)
        if version_of(buffers[name]) != versions[name] or not torch.equal(buffers[name], buffer)
    ]
    return found


def _changeable(module: nn.Module) -> list[tuple[str, Tensor]]:
    """The buffers that a step may change: not those of parts that look after themselves, such as moving averages."""
    alone = tuple(
        f"{name}." for name, part in module.named_modules() if name and optional(part, ModulePart, "exchanged") is False
    )
    return [(name, buffer) for name, buffer in module.named_buffers() if not name.startswith(alone)]


class _MadeBytes(TensorCalls):
    """Sums the bytes of all tensors that are made within the block; views of others are none."""

    def __init__(self) -> None:
        super().__init__()
        self.num_bytes = 0

    def __torch_dispatch__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        given = {tensor.untyped_storage().data_ptr() for tensor in tensors_in(list(args))}
        result = function(*args, **(kwargs or {}))
        made = [tensor for tensor in tensors_in([result]) if tensor.untyped_storage().data_ptr() not in given]
        self.num_bytes += bytes_of(made)
        return result
