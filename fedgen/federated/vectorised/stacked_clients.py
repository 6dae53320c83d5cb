"""Clients whose turns are taken at once: their weights, buffers, optimizers and random streams, one row or one each."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.optim import SGD, Adam, AdamW, Optimizer

from fedgen.clients.turn import Turn
from fedgen.data.optional_attributes import optional
from fedgen.federated.client_state.exchange import copy_tensors, parameters_of
from fedgen.federated.lightning.lightning_internals import TensorCalls, note_step, version_of
from fedgen.federated.round import Round
from fedgen.io.tensor_files import bytes_of, tensors_in
from fedgen.models.optional_hooks import Drawn, FunctionalStep, ModulePart
from fedgen.seeds import derive, isolated

State = Mapping[Any, Mapping[str, Any]]  # parameter -> name -> value, as in torch.optim.Optimizer.state


class WithTensors(nn.Module):
    """A step's loss as a function of a module's tensors."""

    def __init__(self, module: nn.Module, buffers: Sequence[str] = ()) -> None:
        super().__init__()
        self.module, self._buffer_names = module, buffers

    def forward(
        self, step: FunctionalStep, batch: Any, drawn: Drawn
    ) -> tuple[Tensor, Mapping[str, Tensor], dict[str, Tensor]]:
        """The loss, what is noted, and the buffers as they are afterwards."""
        loss, noted = step.loss(batch, drawn)
        return loss, noted, {name: attrgetter(name)(self.module) for name in self._buffer_names}

    def run(self, step: FunctionalStep, tensors: Mapping[str, Tensor], batch: Any, drawn: Drawn) -> Any:
        """Return what `forward` does with these tensors in place of the module's own, by its names for them."""
        given = {f"module.{name}": tensor for name, tensor in tensors.items()}
        return torch.func.functional_call(self, given, (step, batch, drawn))


@dataclass
class Setting:
    module: Any
    optimizers: Sequence[Optimizer]
    round: Round
    seed: int
    move: Callable[[Any], Any]
    context: Callable[[], Any]
    clip: Callable[[Tensor], Tensor] | None  # of gradients [clients, numbers]


@dataclass
class Trial:
    """The tensors that a client's steps were found to move and to need."""

    stepped: dict[int, dict[int, str]] = field(default_factory=dict)
    changed: list[str] = field(default_factory=list)
    num_bytes: int = 0
    stepped_bytes: int = 0


def try_steps(setting: Setting, steps: Sequence[FunctionalStep], batch: Any) -> Trial:
    """Take one client's losses and gradients, without a step; module and random numbers are left as they were."""
    module = setting.module
    names = {id(p): name for name, p in module.named_parameters()}
    buffers = {name: tensor.detach().clone() for name, tensor in _changeable(module)}
    versions = {name: version_of(tensor) for name, tensor in buffers.items()}
    found, call = Trial(), WithTensors(module)
    for step in steps:
        trained = [p for p in parameters_of(setting.optimizers[step.optimizer]) if p.requires_grad]
        copies = [p.detach().clone().requires_grad_() for p in trained]
        given = {names[id(p)]: copy for p, copy in zip(trained, copies)} | buffers
        with isolated(), torch.enable_grad(), setting.context(), _MadeBytes() as made:
            loss, _, _ = call.run(step, given, batch, step.draw(batch))
            gradients = torch.autograd.grad(loss, copies, allow_unused=True)
        reached = {id(p): names[id(p)] for p, gradient in zip(trained, gradients) if gradient is not None}
        if found.stepped.setdefault(step.optimizer, reached) != reached:
            raise ValueError(f"steps of optimizer {step.optimizer} differ in the parameters that they reach")
        found.num_bytes = max(found.num_bytes, made.num_bytes)
    stepped = set().union(*found.stepped.values())
    found.stepped_bytes = bytes_of(p for p in module.parameters() if id(p) in stepped)
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
    """Sums the bytes of all tensors that are made within the block, except views of others."""

    def __init__(self) -> None:
        super().__init__()
        self.num_bytes = 0

    def __torch_dispatch__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        given = {tensor.untyped_storage().data_ptr() for tensor in tensors_in(list(args))}
        result = function(*args, **(kwargs or {}))
        self.num_bytes += bytes_of(t for t in tensors_in([result]) if t.untyped_storage().data_ptr() not in given)
        return result


class StackedClients:
    """The clients of some turns of a round, trained together; what each of them would be alone, to rounding."""

    def __init__(self, setting: Setting, turns: Sequence[Turn], trial: Trial) -> None:
        self._setting, self.turns = setting, list(turns)
        round, interval = setting.round, setting.round.settings.interval
        self._done = [round.memory.iterations.get(turn.client, 0) for turn in turns]
        named = chain(setting.module.named_parameters(), setting.module.named_buffers())
        shared = {name: tensor.detach() for name, tensor in named}  # the module is at a turn's beginning
        kept, server = [round.memory.personal.get(turn.client, {}) for turn in turns], round.exchange.server
        starts = [shared | {name: own.get(name, server[name]) for name in round.exchange.personal} for own in kept]
        local = round.local
        contents = [local.kept(turn.client) or [one.fresh for one in local.contents] for turn in turns]
        self._optimizers: dict[int, StackedOptimizer] = {}
        for place, names in trial.stepped.items():
            optimizer = setting.optimizers[place]
            own, parameters = round.local.optimizers.index(optimizer), parameters_of(optimizer)
            states = [{p: held[own][i] for i, p in enumerate(parameters) if i in held[own]} for held in contents]
            self._optimizers[place] = StackedOptimizer(optimizer, names, starts, states)
        stepped = {name for names in trial.stepped.values() for name in names.values()}
        fixed = [name for name in round.exchange.personal if name not in stepped]  # which differ, and may not change
        self._buffers = {
            name: torch.stack([start[name] for start in starts]) for name in dict.fromkeys([*trial.changed, *fixed])
        }
        self._changed, self._call = trial.changed, WithTensors(setting.module, trial.changed)
        self._batches = [iter(turn.batches(interval)) for turn in turns]
        self._streams = [ClientStream(setting.seed, turn, round.device) for turn in turns]
        self._noted: dict[str, tuple[dict[str, Tensor], int]] = {}
        self._rates: dict[int, Sequence[float | None]] = {}
        self.steps = 0  # of optimizers, of each client
        self.losses: list[Tensor] = []  # [clients] of the first step, and of the last
        self.last: list[Any] = []  # batches

    def train(self, iterations: Iterator[int]) -> None:
        with torch.enable_grad(), self._setting.context(), sdpa_kernel(SDPBackend.MATH):
            for i in iterations:
                self.last = [self._setting.move(next(batches)) for batches in self._batches]
                self._iterate(i)

    def _iterate(self, i: int) -> None:
        batch = stacked(self.last)
        steps = [self._setting.module.functional_steps(done + i) for done in self._done]
        for alike in zip(*steps, strict=True):
            drawn = stacked([stream.draw(step, one) for stream, step, one in zip(self._streams, alike, self.last)])
            self._step(alike, batch, drawn)

    def _step(self, steps: Sequence[FunctionalStep], batch: Any, drawn: Any) -> None:
        """One step of each client, all of a kind."""
        first, setting = steps[0], self._setting
        weights = {place: optimizer.weights.detach() for place, optimizer in self._optimizers.items()}
        weights[first.optimizer].requires_grad_()
        own = dict(self._buffers)
        for place, optimizer in self._optimizers.items():
            own |= optimizer.named(weights[place])
        losses, noted, changed = torch.vmap(partial(self._call.run, first))(own, batch, drawn)
        (gradients,) = torch.autograd.grad(losses.sum(), weights[first.optimizer])
        gradients = gradients if setting.clip is None else setting.clip(gradients)
        self._rates[first.optimizer] = rates = [step.rate for step in steps]
        self._optimizers[first.optimizer].step(gradients, rates, setting.round.factor)
        self._buffers |= {name: tensor.detach() for name, tensor in changed.items()}
        sums, count = self._noted.get(first.kind, ({}, 0))
        for name, tensor in noted.items():
            value = tensor.detach().to(torch.promote_types(tensor.dtype, torch.float32))
            sums[name] = sums[name].add_(value) if count else value.clone()
        self._noted[first.kind] = sums, count + 1
        self.losses = [*self.losses[:1], losses.detach()]
        self.steps += 1

    @torch.no_grad()
    def load(self, row: int) -> None:
        """Make module, optimizers and random generators what a client's own turn would have left."""
        keeps_states = self._setting.round.local.mode != "reset"
        for place, rates in self._rates.items():  # of optimizers that have stepped; others' states stay as they were
            self._optimizers[place].load(row, rates[row], keeps_states)
        live = [attrgetter(name)(self._setting.module) for name in self._changed]
        copy_tensors(live, [self._buffers[name][row] for name in self._changed])
        self._streams[row].resume()

    def noted(self, row: int) -> list[tuple[dict[str, Tensor], int]]:
        """Return what a client's steps noted, summed, and their number, for each kind of step."""
        return [({name: values[row] for name, values in sums.items()}, steps) for sums, steps in self._noted.values()]


class ClientStream:
    """A client's place in the streams of torch's global generators: where its turn begins, and where draws leave it."""

    def __init__(self, seed: int, turn: Turn, device: torch.device) -> None:
        self._generators = [torch.default_generator]
        if device.type == "cuda":
            index = torch.cuda.current_device() if device.index is None else device.index
            self._generators.append(torch.cuda.default_generators[index])
        start = derive(seed, "turn", turn.round, turn.client)
        self._states = [generator.manual_seed(start).get_state() for generator in self._generators]

    def draw(self, step: FunctionalStep, batch: Any) -> Any:
        self.resume()
        drawn = step.draw(batch)
        self._states = [generator.get_state() for generator in self._generators]
        return drawn

    def resume(self) -> None:
        """Put the global generators where the client's draws have left them."""
        for generator, state in zip(self._generators, self._states):
            generator.set_state(state)


def stacked(items: Sequence[Any]) -> Any:
    """Return nested containers of tensors as one of tensors [items, ...]."""
    first = items[0]
    if isinstance(first, Tensor):
        if any(item.shape != first.shape or item.dtype != first.dtype for item in items):
            raise ValueError("clients' batches differ in shape or type")
        return torch.stack(list(items))
    if isinstance(first, Mapping):
        return {key: stacked([item[key] for item in items]) for key in first}
    if isinstance(first, (tuple, list)):
        return [stacked(list(parts)) for parts in zip(*items, strict=True)]
    raise ValueError(f"a batch holds a {type(first).__name__}, where tensors alone can be stacked")


def why_not_stacked(optimizer: Optimizer) -> str | None:
    """Return why an optimizer cannot be stepped for many clients at once; None if it can."""
    if type(optimizer) not in (SGD, Adam, AdamW):
        return f"{type(optimizer).__name__} has no form for many clients, as torch's SGD, Adam and AdamW have"
    if any(group.get("differentiable") or isinstance(group["lr"], Tensor) for group in optimizer.param_groups):
        return f"{type(optimizer).__name__} is differentiable, or its learning rate a tensor"
    return None


class StackedOptimizer:
    """An optimizer's parameters and states for many clients, a row each, stepped as PyTorch steps one client's.

    SGD, Adam and AdamW are the formulas of `torch.optim` (their foreach form) on matrices [clients, numbers]: the same
    to rounding. Rates and counts of steps are each client's own.
    """

    def __init__(
        self, optimizer: Optimizer, names: dict[int, str], starts: Sequence[dict[str, Tensor]], states: Sequence[State]
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

    # states with a number for each of a parameter's, and the setting that asks for it
    SLOTS: ClassVar[Mapping[str, str | None]]

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
