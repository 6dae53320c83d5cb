"""The optimizers, schedulers and grad scaler that a client starts a turn with, and what is kept of them."""

import copy
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from torch import Tensor
from torch.optim import Optimizer

from fedgen.federated.client_state.optimizer_states import check_slots
from fedgen.federated.lightning.lightning_internals import forget_stages
from fedgen.io.files import in_bytes
from fedgen.ranks import Ranks

OptimizerState = Literal["reset", "keep", "average"]
State = dict[Any, dict[str, Any]]  # parameter -> name -> value, as in torch.optim.Optimizer.state


def _copy_state(state: State) -> State:
    # deep where it is no tensor: L-BFGS keeps its history in lists, which it changes in place
    def copied(value: Any) -> Any:
        return value.clone() if isinstance(value, Tensor) else copy.deepcopy(value)

    return {p: {name: copied(value) for name, value in slots.items()} for p, slots in state.items()}


def _copy_value(value: Any) -> Any:
    # copy.copy of a tensor shares its memory, and schedulers fill tensor learning rates in place
    return value.clone() if isinstance(value, Tensor) else copy.copy(value)


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) or isinstance(other, Tensor):
        return isinstance(one, Tensor) and isinstance(other, Tensor) and torch.equal(one, other)
    if isinstance(one, Mapping):
        return isinstance(other, Mapping) and one.keys() == other.keys() and all(_same(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple):
        return isinstance(other, list | tuple) and len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)


class _MeanState:
    """The weighted running mean of optimizer states; counters, flags and lists keep the first client's."""

    def __init__(self) -> None:
        self.state: State = {}
        self._weights: dict[tuple[int, str], float] = {}

    def add(self, state: State, weight: float) -> None:
        for parameter, slots in state.items():
            mean = self.state.setdefault(parameter, {})
            for name, value in slots.items():
                key = (id(parameter), name)
                total = self._weights[key] = self._weights.get(key, 0.0) + weight
                if name not in mean:
                    mean[name] = value.clone() if isinstance(value, Tensor) else copy.deepcopy(value)
                elif _is_averaged(value) and _is_averaged(mean[name]):  # L-BFGS keeps a number as either kind
                    mean[name].lerp_(value, weight / total)

    def merge(self, ranks: Ranks, device: torch.device, parameters: Sequence[Tensor], first: int) -> None:
        """The mean over all ranks' clients.

        Args:
            ranks: the processes.
            device: through which tensors are exchanged.
            parameters: the optimizer's, in its order: a parameter's name on every rank.
            first: number of this rank's first client in the mean.
        """
        own = {(i, n): v for i, p in enumerate(parameters) for n, v in self.state.get(p, {}).items()}
        averaged = {key: value for key, value in own.items() if _is_averaged(value)}
        weights = {(i, n): self._weights[id(parameters[i]), n] for i, n in averaged}
        sums = ranks.add_named({key: value * weights[key] for key, value in averaged.items()}, device)
        totals = ranks.add_named({key: torch.tensor(w, dtype=torch.float64) for key, w in weights.items()}, device)
        means = {key: total / float(totals[key]) for key, total in sums.items()}
        beside = [key for key, value in averaged.items() if value.device != parameters[key[0]].device]  # step counts
        rest = {key: _told(value) for key, value in own.items() if key not in averaged}
        for _, theirs, others in sorted(ranks.gather((first, beside, rest)), key=lambda one: -one[0]):
            beside, rest = [*beside, *theirs], {**rest, **others}  # in the end the first client's
        placed = {key: mean.to("cpu" if key in beside else parameters[key[0]].device) for key, mean in means.items()}
        self.state = {}
        for (i, name), value in {**placed, **rest}.items():
            self.state.setdefault(parameters[i], {})[name] = value


def _told(value: Any) -> Any:
    return value.cpu() if isinstance(value, Tensor) else copy.deepcopy(value)


def _is_averaged(value: Any) -> bool:
    return isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex())


class LocalState:
    """Swaps optimizer states, hyper-parameters, schedulers and the grad scaler in and out of clients' turns.

    States by mode: `reset` starts every turn without any; `keep` gives a client back what it had after its last turn;
    `average` starts every turn from the weighted mean over the last round's clients. Hyper-parameters (learning rates
    among them), schedulers and scaler start every turn as they were when the round began, and after the round they
    are those of its last completed turn: schedules count rounds, or a single client's iterations, never the cohort's.

    Args:
        optimizers: the raw optimizers (not Lightning's wrappers).
        schedulers: learning-rate schedulers.
        scaler: the fp16 grad scaler, if any.
        mode: "reset", "keep" or "average".
    """

    def __init__(
        self, optimizers: Sequence[Optimizer], schedulers: Sequence[Any], scaler: Any, mode: OptimizerState
    ) -> None:
        self.optimizers, self.schedulers, self.scaler, self.mode = list(optimizers), list(schedulers), scaler, mode
        self.clients: dict[int, list[State]] = {}
        self._means: list[_MeanState] = []
        self._server: list[State] = []  # averaged, of the round before
        self._before: list[Any] = []
        self._after: list[Any] = []
        self._completed: list[int] = []  # clients of this round

    def start_round(self) -> None:
        self._before = self._read_settings()
        self._after, self._completed = [], []
        self._means = [_MeanState() for _ in self.optimizers]
        if self.mode == "average":
            self._server = [dict(optimizer.state) for optimizer in self.optimizers]

    def starting_states(self, client: int) -> list[State]:
        """Return the states, by optimizer, of which a client's turn in the present round begins with copies."""
        if self.mode == "average":
            return self._server
        return self.clients.get(client) or [{} for _ in self.optimizers]

    def start_turn(self, client: int) -> None:
        self._write_settings(self._before)
        for optimizer, state in zip(self.optimizers, self.starting_states(client)):
            # copies, which the steps change in place: a turn that fails leaves what the client had before it
            optimizer.state = defaultdict(dict, _copy_state(state))

    def forget_states(self) -> None:
        """Empties the optimizers' states within a turn."""
        for optimizer in self.optimizers:
            optimizer.state = defaultdict(dict)

    def end_turn(self, client: int, weight: float) -> None:
        self._after = self._read_settings()
        self._completed.append(client)
        states: list[State] = [dict(optimizer.state) for optimizer in self.optimizers]
        if self.mode == "keep":
            first = not self.clients
            self.clients[client] = states
            if first:
                size = in_bytes(self.num_bytes(client))
                rank_zero_info(f"optimizer_state='keep' holds {size} of optimizer state for every client")
        elif self.mode == "average":
            for mean, state in zip(self._means, states):
                mean.add(state, weight)

    def news(self) -> tuple[int, list[Any]]:
        """Return what other ranks do not know of the round: this rank's last client, and the settings that it left."""
        return (self._completed[-1] if self._completed else -1), self._after

    def hear(self, told: Sequence[tuple[int, list[Any]]]) -> None:
        """Takes every rank's `news`; before `end_round`, where not all clients were left out."""
        self._after = max(told, key=lambda one: one[0])[1]

    def merge(self, ranks: Ranks, device: torch.device) -> None:
        """Averages states over the ranks' clients; before `end_round`, where not all were left out.

        Args:
            ranks: the processes.
            device: through which tensors are exchanged.
        """
        if ranks.size > 1 and self.mode == "average":
            first = self._completed[0] if self._completed else sys.maxsize
            for optimizer, mean in zip(self.optimizers, self._means):
                mean.merge(ranks, device, [p for group in optimizer.param_groups for p in group["params"]], first)

    def end_round(self, dropped: bool = False) -> None:
        """Leaves the optimizers with the server's state, of before the round if it is dropped.

        What clients keep of turns that they completed stays with them even then.
        """
        self._write_settings(self._before if dropped or not self._after else self._after)
        for i, optimizer in enumerate(self.optimizers):
            state: State = {}
            if self.mode == "average":
                state = self._server[i] if dropped else self._means[i].state
            optimizer.state = defaultdict(dict, state)

    @property
    def moved(self) -> bool:
        """Whether the last turn left other hyper-parameters or schedulers than it began with."""
        return bool(self._after) and not _same(self._before[:2], self._after[:2])

    def num_bytes(self, client: int) -> int:
        """Memory of one client's kept optimizer states."""
        slots = [s for state in self.clients.get(client, []) for s in state.values()]
        return sum(v.numel() * v.element_size() for s in slots for v in s.values() if isinstance(v, Tensor))

    def _read_settings(self) -> list[Any]:
        groups = [
            [{k: _copy_value(v) for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
            for optimizer in self.optimizers
        ]
        schedulers = [copy.deepcopy(scheduler.state_dict()) for scheduler in self.schedulers]
        return [groups, schedulers, copy.copy(self.scaler.state_dict()) if self.scaler is not None else None]

    def _write_settings(self, settings: Sequence[Any]) -> None:
        groups, schedulers, scaler = settings
        for optimizer, saved in zip(self.optimizers, groups):
            for group, values in zip(optimizer.param_groups, saved):
                group.update({k: _copy_value(v) for k, v in values.items()})
        for scheduler, state in zip(self.schedulers, schedulers):
            scheduler.load_state_dict(copy.deepcopy(state))
        if scaler:
            self.scaler.load_state_dict(scaler)
            forget_stages(self.scaler)

    def server_state(self) -> dict[str, Any]:
        """Return what the present round's turns begin with, wherever they are taken: settings, and states where
        averaged.
        """
        averaged = self.mode == "average"
        states = [self._pack(i, dict(optimizer.state)) for i, optimizer in enumerate(self.optimizers) if averaged]
        return {"settings": self._before, "states": states}

    def load_server_state(self, state: Mapping[str, Any]) -> None:
        """Takes what `server_state` gave elsewhere; before the round starts."""
        self._write_settings(state["settings"])
        for index, packed in enumerate(state["states"]):
            self.optimizers[index].state = defaultdict(dict, self._unpack(index, packed))

    def state_dict(self) -> dict[str, Any]:
        """Kept clients' states by parameter index (the averaged state is in the optimizers and saved with them)."""
        return {"clients": {client: [self._pack(i, s) for i, s in enumerate(v)] for client, v in self.clients.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores `state_dict`.

        Raises:
            MisconfigurationException: if it is of other optimizers.
            ValueError: if it is damaged.
        """
        packed = state["clients"]
        sizes = [sum(len(group["params"]) for group in optimizer.param_groups) for optimizer in self.optimizers]
        for client, states in packed.items():
            fits = len(states) == len(sizes) and all(isinstance(one, Mapping) for one in states)
            if not fits or not all(set(one) <= set(range(size)) for one, size in zip(states, sizes)):
                raise MisconfigurationException(
                    f"the checkpoint keeps the state of other optimizers for client {client} than the model's"
                    f" {len(sizes)} of {sizes} parameters; resume with the same model and optimizers"
                )
            for optimizer, one in zip(self.optimizers, states):
                check_slots(optimizer, one)
        self.clients = {int(c): [self._unpack(i, s) for i, s in enumerate(states)] for c, states in packed.items()}

    def _pack(self, index: int, state: State) -> dict[int, dict[str, Any]]:
        parameters = [p for group in self.optimizers[index].param_groups for p in group["params"]]
        return {i: dict(state[p]) for i, p in enumerate(parameters) if p in state}

    def _unpack(self, index: int, packed: Mapping[int, dict[str, Any]]) -> State:
        """States keyed by parameter; the optimizer's own loader puts tensors on the right device and type."""
        optimizer = self.optimizers[index]
        present = optimizer.state
        optimizer.load_state_dict({"state": dict(packed), "param_groups": optimizer.state_dict()["param_groups"]})
        state, optimizer.state = dict(optimizer.state), present
        return state
