"""An optimizer's parameters and states for many clients at once, a row each, stepped as PyTorch steps one client's.

SGD, Adam and AdamW are the formulas of `torch.optim` (their foreach form) on matrices [clients, numbers]: the same to
rounding. Rates and counts of steps are each client's own.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer

from fedgen.federated.client_state.exchange import copy_tensors
from fedgen.federated.lightning.lightning_internals import note_step

State = Mapping[Any, Mapping[str, Any]]  # parameter -> name -> value, as in torch.optim.Optimizer.state


def why_not_stacked(optimizer: Optimizer) -> str | None:
    """Return why an optimizer cannot be stepped for many clients at once; None if it can."""
    if type(optimizer) not in (SGD, Adam, AdamW):
        return f"{type(optimizer).__name__} has no form for many clients, as torch's SGD, Adam and AdamW have"
    if any(group.get("differentiable") or isinstance(group["lr"], Tensor) for group in optimizer.param_groups):
        return f"{type(optimizer).__name__} is differentiable, or its learning rate a tensor"
    return None


class StackedOptimizer:
    """One optimizer's parameters for many clients."""

    def __init__(
        self,
        optimizer: Optimizer,
        names: Mapping[int, str],
        starts: Sequence[Mapping[str, Tensor]],
        states: Sequence[State],
    ) -> None:
        stepped = [[p for p in group["params"] if id(p) in names] for group in optimizer.param_groups]
        self._parameters = [p for parameters in stepped for p in parameters]
        self._names = [names[id(p)] for p in self._parameters]
        self.weights = torch.stack([_row([start[name] for name in self._names]) for start in starts])
        columns = self.weights.split([sum(p.numel() for p in parameters) for parameters in stepped], dim=1)
        kind = _SGDGroup if isinstance(optimizer, SGD) else _AdamGroup
        self._groups = [
            kind(group, parameters, states, own)
            for group, parameters, own in zip(optimizer.param_groups, stepped, columns)
            if parameters
        ]
        self._optimizer = optimizer

    def named(self, weights: Tensor) -> dict[str, Tensor]:
        """The parameters [clients, ...] by name, as views of a matrix of the form of `weights`."""
        pieces = weights.split([p.numel() for p in self._parameters], dim=1)
        return {name: piece.unflatten(1, p.shape) if p.ndim else piece[:, 0]
                for name, piece, p in zip(self._names, pieces, self._parameters)}  # fmt: skip

    @torch.no_grad()
    def step(self, gradients: Tensor, rates: Sequence[float | None], factor: float) -> None:
        columns = gradients.split([group.weights.shape[1] for group in self._groups], dim=1)
        for group, own in zip(self._groups, columns):
            each = [group.settings["lr"] * factor if rate is None else rate for rate in rates]
            group.step(own, torch.tensor(each, dtype=torch.float64, device=own.device)[:, None])

    def load(self, row: int, rate: float | None, states: bool = True) -> None:
        """Put a client's parameters, last rate and, if they are kept, states into the module and its optimizer."""
        copy_tensors(self._parameters, _pieces(self.weights[row], self._parameters))
        note_step(self._optimizer)
        for group in self._groups:
            for parameter, state in zip(group.parameters, group.states(row) if states else []):
                if state:
                    self._optimizer.state[parameter] = state
            if rate is not None:
                group.settings["lr"] = rate


class _Group:
    """A parameter group's states for many clients."""

    SLOTS: ClassVar[
        Mapping[str, str | None]
    ]  # states with a number for each of a parameter's, and the setting that asks for it

    def __init__(
        self, settings: dict[str, Any], parameters: Sequence[Tensor], states: Sequence[State], weights: Tensor
    ) -> None:
        self.settings, self.parameters, self.weights = settings, list(parameters), weights
        known = [[state.get(p, {}) for p in parameters] for state in states]
        self._fresh = torch.tensor([not any(one) for one in known], device=weights.device)[:, None]
        if not all(all(one) or not any(one) for one in known):
            raise ValueError("a client's optimizer knows some of a group's parameters, and others not")
        names = [name for name, asked in self.SLOTS.items() if asked is None or settings[asked]]
        self._slots = {name: self._stacked(name, known) for name in names}

    def _stacked(self, name: str, known: Sequence[Sequence[Mapping[str, Any]]]) -> Tensor:
        stacked = torch.zeros_like(self.weights, memory_format=torch.contiguous_format)
        for row, slots in zip(stacked, known):
            if all(slot.get(name) is not None for slot in slots):
                row.copy_(_row([slot[name] for slot in slots]))
        return stacked

    def _uphill(self, gradients: Tensor, decay: float) -> Tensor:
        """Gradients to be descended by, with those of a penalty decay / 2 |w|^2."""
        gradients = -gradients if self.settings["maximize"] else gradients
        return gradients.add(self.weights, alpha=decay) if decay else gradients

    def states(self, row: int) -> list[dict[str, Any]]:
        pieces = {name: _pieces(stacked[row], self.parameters) for name, stacked in self._slots.items()}
        return [{name: of[i].clone() for name, of in pieces.items()} for i in range(len(self.parameters))]


class _SGDGroup(_Group):
    """A group of stochastic gradient descent, as `torch.optim.SGD`."""

    SLOTS: ClassVar[Mapping[str, str | None]] = {"momentum_buffer": "momentum"}

    def step(self, gradients: Tensor, lr: Tensor) -> None:
        """Move the weights down gradients [clients, numbers]; learning rates are float64 [clients, 1]."""
        settings, gradients = self.settings, self._uphill(gradients, self.settings["weight_decay"])
        if momentum := settings["momentum"]:
            buffer = self._slots["momentum_buffer"]
            # the first step's gradient is not dampened
            kept = torch.where(self._fresh, buffer.new_tensor(1.0), buffer.new_tensor(1.0 - settings["dampening"]))
            buffer.mul_(momentum).addcmul_(gradients, kept)
            self._fresh = torch.zeros_like(self._fresh)
            gradients = gradients.add(buffer, alpha=momentum) if settings["nesterov"] else buffer
        self.weights.addcmul_(gradients, lr.to(gradients.dtype), value=-1)


class _AdamGroup(_Group):
    """A group of Adam or AdamW, as `torch.optim.Adam` (Kingma & Ba 2015; Loshchilov & Hutter 2019)."""

    SLOTS: ClassVar[Mapping[str, str | None]] = {"exp_avg": None, "exp_avg_sq": None, "max_exp_avg_sq": "amsgrad"}

    def __init__(
        self, settings: dict[str, Any], parameters: Sequence[Tensor], states: Sequence[State], weights: Tensor
    ) -> None:
        super().__init__(settings, parameters, states, weights)
        counts = [[float(state[p]["step"]) if p in state else 0.0 for p in parameters] for state in states]
        if any(len(set(one)) > 1 for one in counts):
            raise ValueError("a client's optimizer has taken more steps of some of a group's parameters than of others")
        self._steps = torch.tensor([one[0] for one in counts], dtype=torch.float64, device=weights.device)[:, None]
        known = [state[p]["step"] for state in states for p in parameters if p in state]
        self._step_type = known[0].dtype if known else torch.float32

    def step(self, gradients: Tensor, lr: Tensor) -> None:
        """Move the weights down gradients [clients, numbers]; learning rates are float64 [clients, 1]."""
        settings, weights, decay = self.settings, self.weights, self.settings["weight_decay"]
        decoupled = bool(settings.get("decoupled_weight_decay"))
        if decay and decoupled:
            weights.mul_((1 - lr * decay).to(weights.dtype))
        gradients = self._uphill(gradients, 0.0 if decoupled else decay)
        beta1, beta2 = map(float, settings["betas"])
        self._steps += 1
        mean, square = self._slots["exp_avg"], self._slots["exp_avg_sq"]
        mean.lerp_(gradients, 1 - beta1)
        square.mul_(beta2).addcmul_(gradients, gradients, value=1 - beta2)
        if settings["amsgrad"]:
            square = torch.maximum(self._slots["max_exp_avg_sq"], square, out=self._slots["max_exp_avg_sq"])
        size = (lr / (1 - beta1**self._steps)).to(weights.dtype)
        root = (1 - beta2**self._steps).sqrt().to(weights.dtype)
        weights.sub_((mean * size).div_((square.sqrt().div_(root)).add_(settings["eps"])))

    def states(self, row: int) -> list[dict[str, Any]]:
        found = super().states(row)
        on_device = self.settings["capturable"] or self.settings["fused"]
        for state, parameter in zip(found, self.parameters):
            device = parameter.device if on_device else torch.device("cpu")
            state["step"] = self._steps[row, 0].to(device, self._step_type, copy=True)
        return found


def _row(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def _pieces(row: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    return [piece.view(p.shape) for piece, p in zip(row.split([p.numel() for p in parameters]), parameters)]
