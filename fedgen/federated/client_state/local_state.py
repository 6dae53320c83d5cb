"""The optimizers, schedulers and grad scaler that a client starts a turn with, and what is kept of them."""

import copy
import math
import sys
from collections.abc import Mapping, Sequence, Set
from typing import Any, Literal

import numpy as np
import torch
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from torch import Tensor
from torch.optim import Optimizer

from fedgen.federated.client_state.optimizer_state import Contents, MeanContents, OptimizerContents, copied, mean_bytes
from fedgen.federated.client_state.python_state import MISSING, Attributes, Keyed, PythonState
from fedgen.federated.client_state.state_values import is_plain, same_nested
from fedgen.federated.lightning.lightning_internals import forget_stages
from fedgen.io.files import in_bytes
from fedgen.io.tensor_files import bytes_of, tensors_in
from fedgen.ranks import Ranks

OptimizerState = Literal["reset", "keep", "average"]
Settings = list[Any]  # hyperparameters by optimizer and group, values of what continues by path, the scaler's state


def plain_part(value: Any) -> Any:
    """Return what of a scheduler's state a file can hold without objects: not what it is bound to or calls."""
    if type(value) is dict:
        return {key: part for key, one in value.items() if (part := plain_part(one)) is not MISSING}
    if type(value) in (list, tuple):  # of functions a scheduler's own state holds None
        return type(value)(None if part is MISSING else part for part in map(plain_part, value))
    if isinstance(value, np.generic):
        return value.item()
    is_plain_kind = isinstance(value, (Mapping, Set, Tensor))  # MultiStepLR has a Counter
    return value if is_plain_kind or not (callable(value) or hasattr(value, "__dict__")) else MISSING


class Continuing(PythonState):
    """A snapshot of the plain values of learning-rate schedules and quasi-random generators, by place and dotted path:
    each turn begins with those at the round's beginning, and those of the last completed turn stay."""

    def __init__(self, objects: Sequence[Any]) -> None:
        super().__init__([Attributes(str(place), one) for place, one in enumerate(objects)])

    def plain_values(self) -> dict[str, Any]:
        """Return the snapshot's plain values: numbers and texts one by one, lists and tensors as a whole."""
        single = [c for node in self.nodes if isinstance(node, Keyed) for c in node.children()]
        found = {path: value for _, path, value in single if isinstance(value, (int, float, str, type(None)))}
        whole = {node.path: node.contents for node in self.nodes if not isinstance(node, Keyed)}
        return found | {path: copied(value) for path, value in whole.items() if is_plain(value)}

    def check(self, values: Mapping[str, Any]) -> None:
        for path, value in values.items():
            if (place := self.find(path)) is None or not _alike(place[0].before(place[1]), value):
                raise ValueError(f"{path[:80]!r} of a schedule or quasi-random generator is not like the server's")

    def write(self, values: Mapping[str, Any]) -> None:
        """Write copies of values by path as they are; those without a place are left out."""
        for path, value in values.items():
            if (place := self.find(path)) is not None:
                place[0].write(place[1], copied(value))


def _alike(own: Any, value: Any) -> bool:
    if isinstance(own, Tensor):
        return isinstance(value, Tensor) and (own.shape, own.dtype) == (value.shape, value.dtype)
    if isinstance(own, (list, tuple)):
        return isinstance(value, (list, tuple)) and len(own) == len(value) and all(map(_alike, own, value))
    if isinstance(own, (int, float)) and not isinstance(own, bool):
        return isinstance(value, (int, float)) and math.isfinite(value)
    return type(own) is type(value)


class LocalState:
    """Swaps what optimizers hold, hyperparameters, schedules and the grad scaler in and out of clients' turns."""

    def __init__(
        self,
        optimizers: Sequence[Optimizer],
        schedulers: Sequence[Any],
        scaler: Any,
        mode: OptimizerState,
        wrappers: Sequence[Any] = (),
    ) -> None:
        self.optimizers, self.schedulers, self.scaler, self.mode = list(optimizers), list(schedulers), scaler, mode
        by_optimizer = {id(wrapper.optimizer): wrapper for wrapper in wrappers}
        self.contents = [OptimizerContents(one, by_optimizer.get(id(one))) for one in optimizers]
        self.clients: dict[int, list[Contents]] = {}
        self._means: list[MeanContents] = []
        self._server: list[Contents] = []  # averaged, of the round before
        self._objects = list(schedulers)  # that continue
        if self._objects:
            self._continuing = Continuing(self._objects)
        self._given: dict[str, Any] = {}  # values of a checkpoint or the server, for the round that starts next
        self._before: Settings = []
        self._after: Settings = []
        self._received: dict[str, Any] = {}  # of the last client, where clients are remote
        self._completed: list[int] = []  # clients of this round

    def start_round(self, found: Sequence[Any] | None = None) -> None:
        self._objects = self._objects if found is None else [*self.schedulers, *found]
        self._received = {}
        if self._objects or self._given:
            self._continuing = Continuing(self._objects)
        if self._given:
            self._continuing.write(self._given)
            self._given, self._continuing = {}, Continuing(self._objects)
        self._before = self._read_settings()
        self._after, self._completed = [], []
        self._means = [MeanContents() for _ in self.optimizers]
        if self.mode == "average":
            self._server = self._read_all()

    def kept(self, client: int) -> list[Contents] | None:
        return self._server if self.mode == "average" else self.clients.get(client)

    def start_turn(self, client: int) -> None:
        if self._objects:
            self._continuing.restore()
        self._write_settings(self._before)
        kept = self.kept(client)
        for i, contents in enumerate(self.contents):
            if kept:
                contents.write(kept[i])  # copies, which steps change: a turn that fails leaves them as they were
            else:
                contents.renew()
            if contents.has_modes:
                contents.allow_modes(True)
                contents.switch("train")

    def forget_states(self) -> None:
        """Begin what a turn trains as a client's own model does: without optimizer states."""
        for contents in self.contents:
            contents.renew()
            if contents.has_modes:
                contents.switch("train")

    def settle(self) -> None:
        """End the training of a turn, before what the client sends is looked at."""
        for contents in self.contents:
            if contents.has_modes:
                contents.switch("eval")
                contents.allow_modes(False)

    def end_turn(self, client: int, weight: float) -> None:
        self._after = self._read_settings()
        self._completed.append(client)
        if self.mode == "keep":
            first = not self.clients
            self.clients[client] = self._read_all()
            if first:
                size = in_bytes(self.num_bytes(client))
                rank_zero_info(f"optimizer_state='keep' holds {size} of optimizer state for every client")
        elif self.mode == "average":
            for mean, contents in zip(self._means, self.contents):
                mean.add(contents.read(), weight)

    def end_round(self, dropped: bool = False) -> None:
        """Leaves the optimizers with the server's state, of before the round if it is dropped."""
        if self._objects:
            self._continuing.restore()
        self._write_settings(self._before if dropped or not self._after else self._after)
        if self._objects and not dropped:
            self._continuing.write(self._after[1] if self._after else self._received)
        for i, contents in enumerate(self.contents):
            if contents.has_modes:
                contents.allow_modes(False)
            if self.mode == "average":
                contents.write(self._server[i] if dropped else self._means[i].contents)
            else:
                contents.renew()

    def release(self) -> None:
        for contents in self.contents:
            contents.release()

    def _read_all(self) -> list[Contents]:
        return [contents.read() for contents in self.contents]

    def _read_settings(self) -> Settings:
        scaler = copy.copy(self.scaler.state_dict()) if self.scaler is not None else None
        found = [change for node in self._continuing.changed() for change in node.changes()] if self._objects else []
        changes = {change.path: copied(change.after) for change in found if is_plain(change.after)}
        return [[contents.hyperparameters for contents in self.contents], changes, scaler]

    def _write_settings(self, settings: Settings) -> None:
        for contents, groups in zip(self.contents, settings[0]):
            contents.hyperparameters = groups
        if settings[2]:
            self.scaler.load_state_dict(settings[2])
            forget_stages(self.scaler)

    def local_summary(self) -> tuple[int, Settings]:
        """Return this rank's last client, and the settings that it left."""
        return (self._completed[-1] if self._completed else -1), self._after

    def merge_summaries(self, summaries: Sequence[tuple[int, Settings]]) -> None:
        """Takes every rank's summary; before `end_round`, where not all clients were left out."""
        self._after = max(summaries, key=lambda one: one[0])[1]

    def merge(self, ranks: Ranks, device: torch.device) -> None:
        """Averages states over the ranks' clients; before `end_round`, where not all were left out."""
        if ranks.size > 1 and self.mode == "average":
            first = self._completed[0] if self._completed else sys.maxsize
            for contents, mean in zip(self.contents, self._means):
                mean.merge(ranks, device, contents.parameters, first)

    def merge_continuing(self, ranks: Ranks) -> None:
        """Take the last client's values of what the module keeps, from clients whose turns are not in this job."""
        if len(self._objects) > len(self.schedulers):
            last = self._completed[-1] if self._completed else -1
            found = ranks.gather((last, self._of_module(self._after[1]) if self._after else {}))
            self._received = max(found, key=lambda one: one[0])[1]
            self._continuing.check(self._received)

    def _of_module(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of objects that the module keeps, which configured schedulers are not."""
        return {path: v for path, v in values.items() if int(path.split(".")[0]) >= len(self.schedulers)}

    def server_state(self) -> dict[str, Any]:
        """Return what the present round's turns begin with, also the remote ones."""
        hyperparameters, _, scaler = self._before
        continuing = self._continuing.plain_values() if self._objects else {}
        return {"settings": [hyperparameters, continuing, scaler], "states": self._server}

    def load_server_state(self, state: Mapping[str, Any]) -> None:
        """Takes what `server_state` gave at the server; before the round starts."""
        hyperparameters, self._given, scaler = state["settings"]
        self._write_settings([hyperparameters, {}, scaler])
        for contents, averaged in zip(self.contents, state["states"]):
            contents.write(contents.checked(averaged))

    @property
    def moved(self) -> bool:
        """Whether the last turn left other hyperparameters or schedules than it began with."""
        if not self._after:
            return False
        pairs = [pair for groups in zip(self._before[0], self._after[0]) for pair in zip(*groups)]
        return bool(self._after[1]) or not all(same_nested({n: old[n] for n in new}, new) for old, new in pairs)

    def num_bytes(self, client: int) -> int:
        return bytes_of(tensors_in(self.clients.get(client, [])))

    @property
    def _averaged(self) -> list[Contents]:
        return self._read_all() if self.mode == "average" else []

    @property
    def names_sent(self) -> list[str]:
        """The names of the optimizers' values that clients send, such as "Adam.exp_avg"."""
        found = zip(self.optimizers, self._averaged)
        return sorted({f"{type(o).__name__}.{name}" for o, held in found for slots in held.values() for name in slots})

    @property
    def bytes_sent(self) -> int:
        """The bytes that a client sends in a round for optimizers that are averaged, as large as they are now."""
        return sum(map(mean_bytes, self._averaged))

    @property
    def continued(self) -> dict[str, Any]:
        """The values of the module's schedules and quasi-random generators that the round's last turn changed."""
        values = self._of_module(self._after[1]) if self._after else self._received
        places = {path: path.split(".", 1) for path in values}
        return {f"{type(self._objects[int(place)]).__name__}.{rest}": values[p] for p, (place, rest) in places.items()}

    @property
    def bytes_received(self) -> int:
        """The bytes that a client receives with the state that its optimizers and schedules begin with."""
        return bytes_of(tensors_in([self._averaged, self.server_state()["settings"]]))

    def state_dict(self) -> dict[str, Any]:
        """Kept contents, averaged ones beside `state`, and what continues: a checkpoint of optimizers lacks them."""
        beside = [{key: v for key, v in one.items() if isinstance(key, str)} for one in self._averaged]
        found = self._of_module(Continuing(self._objects).plain_values())
        state: dict[str, Any] = {"clients": {client: list(own) for client, own in self.clients.items()}}
        state |= {"averaged": beside} if any(beside) else {}
        return state | ({"continuing": found} if found else {})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        sizes = [len(contents.parameters) for contents in self.contents]
        for client, own in state["clients"].items():
            fits = isinstance(own, list) and len(own) == len(sizes) and all(isinstance(one, Mapping) for one in own)
            if not fits or not all(one.has_places(held) for one, held in zip(self.contents, own)):
                raise MisconfigurationException(
                    f"the checkpoint keeps the state of other optimizers for client {client} than the model's"
                    f" {len(sizes)} of {sizes} parameters; resume with the same model and optimizers"
                )
        self.clients = {
            int(client): [contents.checked(one) for contents, one in zip(self.contents, own)]
            for client, own in state["clients"].items()
        }
        for contents, beside in zip(self.contents, state.get("averaged", [])):
            contents.write(contents.read() | contents.checked(beside))
        self._given = dict(state.get("continuing", {}))
