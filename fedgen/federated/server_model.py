"""The server's model: which of a module's tensors travel, and how a round's combined tensors become its new weights."""

import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch import Tensor, nn
from torch.optim import Optimizer

from fedgen.federated.aggregators.mean import Aggregator, ClientWeights, weight_of, wide
from fedgen.federated.algorithms.algorithm import ClientAlgorithm
from fedgen.federated.client_state.exchange import Exchange, Rule, Rules, copy_tensors, parameters_of
from fedgen.federated.client_state.local_state import OptimizerState
from fedgen.federated.client_state.memory import ClientMemory
from fedgen.federated.client_state.optimizer_state import check_optimizer_state
from fedgen.federated.compression.compressors import Compressor
from fedgen.federated.lightning.checks import check_counters
from fedgen.federated.lightning.lightning_internals import empty_buffers
from fedgen.federated.schedules import Schedule, check_rates, factor_in, scaled_rates
from fedgen.federated.server_optimizers import as_real
from fedgen.own_code import rank_zero_warn

Summary = tuple[dict[str, list[Tensor]], list[str], int]  # values, names that decreased, number of clients
MASKED_NUMBER = 8  # bytes of an entry under secure aggregation


class Counters:
    """The largest values over a round's clients of tensors such as `num_batches_tracked` or an `initialized` flag."""

    def __init__(self, declared: Collection[str] = (), advancing: Collection[str] = (), robust: bool = False) -> None:
        self._declared, self._advancing, self._robust = declared, advancing, robust
        self._warned: set[str] = set()
        self.seen: set[str] = set()  # names that some turn has raised
        self.start_round()

    def start_round(self) -> None:
        self._values: dict[str, list[Tensor]] = {}  # one where the largest is wanted, else every client's
        self._clients = 0
        self._decreased: list[str] = []

    @torch.no_grad()
    def add(self, tensors: Mapping[str, Tensor], server: Mapping[str, Tensor]) -> None:
        self._clients += 1
        for name, tensor in tensors.items():
            if name in self._advancing or torch.equal(tensor, server[name]):
                continue
            if name not in self._declared and bool((tensor < server[name]).any()):
                self._decreased += [name] if name not in self._decreased else []
            else:
                self.seen.add(name)
                self._keep(name, [tensor.detach().clone()])

    def _keep(self, name: str, values: Sequence[Tensor]) -> None:
        kept = [*self._values.get(name, []), *values]
        self._values[name] = kept if self._robust else [functools.reduce(torch.maximum, kept)]

    def local_summary(self) -> Summary:
        values = {name: [tensor.cpu() for tensor in tensors] for name, tensors in self._values.items()}
        return values, self._decreased, self._clients

    @torch.no_grad()
    def merge_summaries(self, summaries: Sequence[Summary]) -> None:
        self._values = {}
        for found, _, _ in summaries:
            for name, values in found.items():
                self._keep(name, values)
        self._decreased = sorted({name for _, names, _ in summaries for name in names})
        self._clients = sum(clients for *_, clients in summaries)

    @property
    def changed(self) -> list[str]:
        return [name for name in self._values if name not in self._decreased]

    @torch.no_grad()
    def end_round(self, server: Mapping[str, Tensor], interval: int) -> None:
        self.seen = (self.seen | {*self.changed}) - {*self._decreased}
        for name in self.changed:
            values = [value.to(server[name]) for value in self._values[name]]
            if self._robust:
                values += [server[name]] * (self._clients - len(values))  # clients that left it alone
                server[name].copy_(torch.stack(values).sort(dim=0).values[(len(values) - 1) // 2])
            else:
                server[name].copy_(torch.maximum(values[0], server[name]))
        for name in self._advancing:
            server[name].add_(interval)
        for name in self._decreased:
            if name not in self._warned:
                self._warned.add(name)
                rank_zero_warn(
                    f"{name} is an integer tensor that decreased in a client's turn, so it is not a counter: the"
                    " server's value stays. Declare what becomes of it: FedAvgStrategy(rules={"
                    f"{name!r}: 'personal'}}) for a queue's pointer, with its queue; 'max' or 'server' otherwise"
                )


class ServerUpdate:
    """Applies the clients' combined tensors to the server's, through a server optimizer or directly."""

    def __init__(
        self, server: dict[str, Tensor], trained: set[str], create: Callable[[Iterable[Tensor]], Optimizer] | None
    ) -> None:
        self._server, self._trained = server, trained
        self.leaves = {n: nn.Parameter(as_real(t)) for n, t in server.items() if n in trained} if create else {}
        self.optimizer = create(list(self.leaves.values())) if create and self.leaves else None
        self._name = None if self.optimizer is None else type(self.optimizer).__name__

    @torch.no_grad()
    def apply(self, names: Iterable[str], combined: Iterable[Tensor], factor: float = 1.0) -> None:
        """One server step, with the optimizer's learning rate multiplied by a factor."""
        replaced = {}
        for name, value in zip(names, combined):
            if name in self.leaves:
                # in the aggregator's precision: rounding the average to half first would lose small updates
                self.leaves[name].grad = as_real((self._server[name] - value).to(self._server[name].dtype))
            elif name in self._trained and factor != 1:
                replaced[name] = torch.lerp(self._server[name].to(value.dtype), value, factor)
            else:
                replaced[name] = value
        copy_tensors([self._server[name] for name in replaced], replaced.values())
        if self.optimizer is not None:
            with scaled_rates(self.optimizer, factor):
                self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)

    def replace(self, present: "ServerUpdate") -> None:
        """Take over the state of another update's optimizer, if it is of the same parameters."""
        if present.optimizer is None or not present.optimizer.state:
            return
        own, other = ({name: leaf.shape for name, leaf in one.leaves.items()} for one in (self, present))
        if own != other:
            raise MisconfigurationException(
                "parameters were frozen or unfrozen, or tensors got other shapes, between rounds, and the server"
                " optimizer has state for the old set; use server_optimizer=None with layers that thaw or grow"
            )
        self.load_state_dict(present.state_dict())

    def state_dict(self) -> dict[str, Any] | None:
        return None if self.optimizer is None else {"name": self._name, "state": self.optimizer.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        if (saved := None if state is None else state["name"]) != self._name:
            raise MisconfigurationException(
                f"the checkpoint was written with another server optimizer ({saved} there, {self._name} here); resume"
                " with the same `server_optimizer`"
            )
        if self.optimizer is not None and state is not None:
            check_optimizer_state(self.optimizer, state["state"])
            self.optimizer.load_state_dict(state["state"])


@dataclass
class RoundSettings:
    interval: int
    client_weights: ClientWeights
    server_optimizer: Callable[[Iterable[Tensor]], Optimizer] | None
    optimizer_state: OptimizerState
    personal: Sequence[str]
    rules: Mapping[str, Rule]
    aggregator: Aggregator
    client_algorithm: ClientAlgorithm
    client_schedule: Schedule | None
    server_schedule: Schedule | None
    compression: Compressor | None
    fixed: bool = False  # whether what travels is fixed before training, as under secure aggregation

    def weight_of(self, num_examples: int) -> float:
        return weight_of(num_examples, self.client_weights)


class ServerModel:
    """The server's part of a module; made anew where callbacks thaw or freeze layers, or tensors grow."""

    def __init__(
        self, module: nn.Module, optimizers: Sequence[Optimizer], settings: RoundSettings, memory: ClientMemory
    ) -> None:
        self._module, self._optimizers, self._settings, self._memory = module, optimizers, settings, memory
        self.aggregator = settings.aggregator
        self._make(name for slot in memory.personal.values() for name in slot)

    def _make(self, moving: Iterable[str]) -> None:
        module, settings = self._module, self._settings
        self.switches = Switches(module)
        trained = trained_parameters(module, self._optimizers)
        self._trained = set(map(id, trained))
        own: dict[str, Rule] = {n: "personal" for pattern in settings.personal for n in empty_buffers(module, pattern)}
        self.rules = Rules(own | dict(settings.rules), module)
        self.exchange = Exchange(module, trained, settings.personal, self.rules, settings.fixed, moving)
        if settings.aggregator.private or settings.fixed:
            check_counters(self.exchange, module)
        self.trainable = self.exchange.trainable
        self.exchange.beside = settings.client_algorithm.num_bytes(self.trainable)
        if settings.compression is not None:
            self.exchange.compressed = compressed_bytes(settings.compression, self.trainable)
        elif settings.fixed:
            shared = self.exchange.shared.items()
            self.exchange.compressed = {name: MASKED_NUMBER * as_real(tensor).numel() for name, tensor in shared}
        self.exchange.snapshot()
        self._memory.match_personal(self.exchange)
        self.counters = Counters(self.exchange.declared, self.exchange.advancing, settings.aggregator.robust)
        self.update = ServerUpdate(self.exchange.server, self.exchange.trained, settings.server_optimizer)
        if settings.server_schedule is not None:
            check_rates(settings.server_schedule, [self.update.optimizer])

    def renew(self) -> None:
        present = self.update
        self._make(self.exchange.moving)
        self.update.replace(present)

    @property
    def trains_others(self) -> bool:
        """Whether other parameters train than when this was made: callbacks thaw layers between rounds."""
        trained = trained_parameters(self._module, self._optimizers)
        return self.switches.thawed_or_frozen() or set(map(id, trained)) != self._trained

    def start_round(self) -> None:
        if self.trains_others or not self.exchange.still_fits():
            self.renew()
        self.exchange.snapshot()

    def grow(self, names: Sequence[str] | None = None) -> None:
        """Let tensors travel that a turn has changed and that did not before; None looks at the module."""
        exchange, personal = self.exchange, len(self.exchange.personal)
        if grown := exchange.grow(names):
            places = [place for place, name in enumerate(exchange.shared) if name in set(grown)]
            self.aggregator.grow([exchange.server[name] for name in grown], places)
        if len(exchange.personal) > personal:
            self._memory.match_personal(exchange)

    def apply(self, combined: Sequence[Tensor], round: int) -> None:
        """Take a step of the server, and put its new model into the module."""
        schedule = self._settings.server_schedule
        factor = 1.0 if schedule is None else factor_in(schedule, round)
        self.update.apply(list(self.exchange.shared), combined, factor)
        if self.exchange.counters:
            self.counters.end_round(self.exchange.server, self._settings.interval)
        self.exchange.load_server()


def compressed_bytes(compressor: Compressor, parameters: Mapping[str, Tensor]) -> dict[str, int]:
    forms = {name: as_real(wide(tensor)) for name, tensor in parameters.items()}
    return {name: compressor.num_bytes(tuple(form.shape), form.dtype) for name, form in forms.items()}


def trained_parameters(module: nn.Module, optimizers: Iterable[Optimizer]) -> list[Tensor]:
    held = [parameters_of(optimizer) for optimizer in (*optimizers, *_own_optimizers(module))]
    if not held:
        return [parameter for parameter in module.parameters() if parameter.requires_grad]
    found: dict[int, Tensor] = {}
    for parameters in held:
        rests = not any(parameter.requires_grad for parameter in parameters)
        found |= {id(parameter): parameter for parameter in parameters if rests or parameter.requires_grad}
    return list(found.values())


def _own_optimizers(module: nn.Module) -> Iterator[Optimizer]:
    """Return optimizers that are attributes of a module's parts, or in lists and dictionaries there."""
    for part in module.modules():
        for value in vars(part).values():
            if isinstance(value, Optimizer):
                yield value
            elif type(value) in (list, tuple, dict) and value:  # asked in each round, of each attribute
                held = value.values() if type(value) is dict else value
                yield from (one for one in held if isinstance(one, Optimizer))


class Switches:
    """A module's gradients, and its switches: requires_grad of parameters, training modes of submodules."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._parameters, self._modules = list(module.parameters()), list(module.modules())
        self._flags = [p.requires_grad for p in self._parameters]
        self.start_turn()

    def thawed_or_frozen(self) -> bool:
        return self._flags != [p.requires_grad for p in self._module.parameters()]

    def start_turn(self) -> None:
        """Take the present switches as those that `restore` puts back."""
        self._before = [p.requires_grad for p in self._parameters], [m.training for m in self._modules]

    def restore(self) -> None:
        flags, modes = self._before
        for parameter, flag in zip(self._parameters, flags):
            if parameter.requires_grad != flag:
                parameter.requires_grad_(flag)
        for part, mode in zip(self._modules, modes):
            if part.training != mode:
                part.training = mode

    def clear_gradients(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None
