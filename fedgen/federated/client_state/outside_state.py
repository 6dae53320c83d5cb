"""State of a module that `state_dict` does not hold: non-persistent buffers, Python numbers and lists, pools of images,
optimizers of a custom kind. Every turn starts from the server's, and nothing of it passes from client to client."""

import copy
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import is_
from types import CodeType, FunctionType
from typing import Any

import numpy as np
import torch
from lightning.fabric.utilities import move_data_to_device
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.quasirandom import SobolEngine

from fedgen.federated.client_state.exchange import ACCUMULATING, Rule, Rules, with_ancestors
from fedgen.federated.client_state.python_state import GENERATORS, MISSING, PLAIN, Attributes, Change, PythonState
from fedgen.federated.client_state.state_values import as_number, has_floats, is_plain
from fedgen.federated.lightning.lightning_internals import PARAMETERS
from fedgen.io.tensor_files import tensors_in
from fedgen.seeds import derive

_QUASI_RANDOM = ("Sobol", "Halton")  # of scipy.stats, which takes long to import
# hooks after whose calls a module's lists are whole: lists that these read are outputs of an epoch, not state
_EPOCH_HOOKS = ("on_train_epoch_end", "on_train_epoch_start", "on_train_end", "on_round_end")


def continues(value: Any) -> bool:
    """Whether an object goes on from round to round, wherever the module keeps it."""
    return isinstance(value, (LRScheduler, ReduceLROnPlateau, SobolEngine)) or any(
        kind.__name__ in _QUASI_RANDOM and kind.__module__.startswith("scipy.stats") for kind in type(value).__mro__
    )


class OutsideValues:
    """The weighted sums and largest values over a round's clients, by dotted path."""

    def __init__(self) -> None:
        self.largest: dict[str, Any] = {}
        self.shrunk: set[str] = set()  # values that fell, so that they are not counters
        self.weight = 0.0
        self.given: dict[str, Any] = {}
        self.sums: dict[str, tuple[Any, float]] = {}  # weighted sum, total weight
        self._forms: dict[str, tuple[list[int], torch.dtype]] = {}  # of tensors

    def add(self, path: str, value: Any, weight: float) -> None:
        if isinstance(value, Tensor):
            self._agree(path, (list(value.shape), value.dtype))
        self.given[path] = value = as_number(value)
        total, seen = self.sums.get(path, (0.0, 0.0))
        self.sums[path] = (total + weight * value, seen + weight)

    def raise_to(self, path: str, before: Any, after: Any) -> None:
        """Takes a client's value where the largest counts."""
        if isinstance(after, Tensor):
            self._agree(path, (list(after.shape), after.dtype))
        self._raise(path, self.largest.get(path, before), after)

    def _raise(self, path: str, one: Any, other: Any) -> None:
        self.largest[path] = torch.maximum(one, other.to(one)) if isinstance(one, Tensor) else max(one, other)

    def _agree(self, path: str, form: tuple[list[int], torch.dtype]) -> None:
        if (known := self._forms.setdefault(path, form)[0]) != form[0]:
            raise MisconfigurationException(
                f"clients give {path} the shapes {known} and {form[0]}, which cannot be combined: let it have one"
                f" shape, or declare FedAvgStrategy(rules={{{path!r}: 'personal'}}) or 'server'"
            )

    @property
    def counters(self) -> dict[str, Any]:
        """The largest values of what never fell."""
        return {path: value for path, value in self.largest.items() if path not in self.shrunk}

    def means(self, server: PythonState) -> dict[str, Any]:
        """The means, in double precision where the server has a value."""
        found = {}
        for path, (total, seen) in self.sums.items():
            rest, before = self.weight - seen, server.value(path)
            if rest and before is not None:
                total, seen = total + rest * as_number(before), self.weight
            found[path] = total / seen
            if before is None and path in self._forms:  # a tensor that turns have made
                found[path] = found[path].to(self._forms[path][1])
        return found

    def local_summary(self) -> dict[str, Any]:
        return {
            **move_data_to_device({"sums": self.sums, "largest": self.largest}, "cpu"),
            "shrunk": sorted(self.shrunk),
            "weight": self.weight,
            "forms": self._forms,
        }

    def merge_summaries(self, summaries: Sequence[Mapping[str, Any]]) -> None:
        self.sums, self.largest, self.shrunk = {}, {}, set()
        for one in summaries:
            for path, form in one["forms"].items():
                self._agree(path, form)
            for path, (total, seen) in one["sums"].items():
                before, weight = self.sums.get(path, (0.0, 0.0))
                self.sums[path] = (before + total, weight + seen)
            for path, value in one["largest"].items():
                self._raise(path, value, self.largest.get(path, value))
            self.shrunk |= set(one["shrunk"])
        self.weight = sum(one["weight"] for one in summaries)


class OutsideState:
    """Isolates turns in what a module holds beside its saved tensors."""

    def __init__(self, module: nn.Module, rules: Rules, foreign: Iterable[Any] = (), seed: int = 0) -> None:
        self.rules, self._has_rules, self._module, self._seed = rules, bool(rules), module, seed
        self._foreign = [*foreign]
        self._gathered_names = {name for hook in _EPOCH_HOOKS for name in _names_in_hook(type(module), hook)}
        self.personal: dict[int, dict[str, Any]] = {}
        self.found: dict[str, str] = {}
        self.remedies: dict[str, Rule] = {}
        self.opaque: dict[str, str] = {}
        self.exchanges = True
        self.continuing: list[Any] = []  # schedulers and quasi-random generators, which go on from turn to turn
        self._values: dict[str, Any] = {}  # of a checkpoint or server, for the round that starts next
        self._check: Callable[[], None] | None = None
        self.server_values: dict[str, Any] = {}
        self._clear_round()

    def _clear_round(self) -> None:
        self.round_values = OutsideValues()
        self._gathered: dict[str, tuple[Change, list[Any]]] = {}

    def begin_with(self, values: Mapping[str, Any], check: Callable[[], None] | None = None) -> None:
        """Has the round that starts next begin with other values of the server's, once they are checked."""
        self._values, self._check = dict(values), check

    def start_round(self) -> None:
        """Takes the present state as the server's."""
        self._clear_round()
        modules, parts = list(self._module.modules()), list(self._parts())
        self._saved = [v for v in self._module.state_dict(keep_vars=True).values() if isinstance(v, Tensor)]
        # what is not the module's outside state: its parts and saved tensors, and foreign objects
        self._owned = {id(one): one for one in (*modules, *self._saved, *self._foreign)}
        self._storages = {t.untyped_storage().data_ptr() for t in self._saved if t.layout is torch.strided} - {0}
        self._metrics = [part for part in modules if isinstance(part, ACCUMULATING)]
        self.continuing = []
        self.state = PythonState((), self._enter, parts, self._owned, self._has_rules)
        self.opaque |= self.state.opaque
        self._kept_apart = [  # of the rule "personal"
            (node, key, path)
            for node in (self.state.nodes if self._has_rules else ())
            for key, path, _ in node.children()
            if self.rules.rule_of([path]) == "personal"
        ]
        self._random = self.state.random
        values, check, self._values, self._check = self._values, self._check, {}, None
        if check is not None:
            check()
        if values:
            self.state.write(values)
            self.start_round()

    def _parts(self) -> Iterator[tuple[str, nn.Module]]:
        """The registered modules whose Python state turns are isolated in."""
        alone: list[str] = []
        for prefix, part in self._module.named_modules():
            if alone and prefix.startswith(tuple(alone)):
                continue
            # its own, or the default of `ModulePart`
            if isinstance(part, ACCUMULATING) or getattr(part, "exchanged", True) is not True:
                alone.append(f"{prefix}.")
                continue
            yield prefix, part

    def _enter(self, path: str, value: Any) -> bool:
        if self._has_rules and self.rules.rule_of([path]) == "personal":
            return False
        if isinstance(value, Tensor) and value.layout is torch.strided:
            # a view of a parameter or saved buffer is isolated with it
            return value.untyped_storage().data_ptr() not in self._storages
        if isinstance(value, ACCUMULATING):
            self._metrics.append(value)  # held in a list or dictionary, so that the module does not know it
            return False
        if type(value) in PLAIN:
            return True
        if self.exchanges and continues(value):
            self.continuing.append(value)
            return False
        return not (type(value).__module__ or "").startswith("fedgen.")

    def start_turn(self, round: int, client: int) -> None:
        """Gives a client what it keeps, and seeds random generators; the rest is the server's already."""
        for generator in self._random:
            if self.rules.rule_of([generator.path]) != "server":
                generator.seed(derive(self._seed, "state", generator.path, round, client))
        if self._kept_apart or client in self.personal:
            self._give_kept(client)
        if self._metrics:
            self._metrics_before = PythonState([Attributes("", metric) for metric in self._metrics])

    def _give_kept(self, client: int) -> None:
        kept = self.personal.get(client, {})
        for node, key, path in self._kept_apart:
            node.write(key, self._copy(kept.get(path, node.contents[key])))
        for path in kept.keys() - {path for *_, path in self._kept_apart}:  # what the server has not
            if (place := self.state.attribute(path)) is not None:
                place[0].write(place[1], self._copy(kept[path]))

    @contextmanager
    def seen_by(self, client: int) -> Iterator[None]:
        """Puts in place what a client keeps; what the block makes of the state is put back. For use between rounds."""
        self.start_round()
        self._give_kept(client)
        try:
            yield
        finally:
            self.drop_round()

    def end_turn(self, client: int, weight: float, completed: bool) -> None:
        """Takes what a turn made of the state and puts the server's back."""
        changed = self.state.changed()
        if completed:
            changes = [change for node in changed for change in node.changes()]
            self.round_values.weight += weight
            if changes or self._kept_apart:
                self._keep(client, changes)
                self._take(changes, weight)
        elif self._metrics:
            self._metrics_before.restore()
        for node in changed:
            node.restore()
        for node, key, _ in self._kept_apart:
            node.write(key, node.contents[key])

    def _keep(self, client: int, changes: Sequence[Change]) -> None:
        """Keeps what the rule "personal" says of the client's, also what its turn has made or taken away."""
        present = {path: node.after(key) for node, key, path in self._kept_apart}
        present |= {c.path: c.after for c in changes if self.rules.rule_of([c.path]) == "personal"}
        if present:
            self.personal[client] = {path: value for path, value in present.items() if value is not MISSING}

    def _take(self, changes: Sequence[Change], weight: float) -> None:
        for change in changes:
            path, rule = change.path, self.rules.rule_of(with_ancestors(change.path))
            is_declared = rule is not None
            if rule is None and change.key in change.node.empty:
                rule = "mean" if has_floats(change.after) else "max"
            if self.rules.rule_of([path]) == "personal":
                self.found[path] = "personal"
            elif isinstance(change.node.holder, GENERATORS):
                self.found[path] = "server" if rule == "server" else "seeded"
            elif rule == "advance":
                raise MisconfigurationException(
                    f"{path} is not an integer tensor and has the rule 'advance'; declare 'max' or 'server'"
                )
            elif rule is None and (added := self._added(change)) is not None:
                self._gathered.setdefault(path, (change, []))[1].extend(added)
                self.found[path] = "gathered"
            elif self.exchanges and (_is_averaged(change) if rule == "mean" else rule is None and _is_float(change)):
                self.round_values.add(path, change.after, weight)
                self.found[path] = "mean" if is_declared else "averaged"
            elif self.exchanges and (rule == "max" or (rule is None and _is_count(change))):
                self._raise_to(change, rule)
            elif rule is None and (change.was_empty or _is_recomputed(change)):
                self.found.setdefault(path, "rebuilt")
            else:
                self._reset(change, rule)

    def _reset(self, change: Change, rule: str | None) -> None:
        self.found[change.path] = "server" if rule == "server" else "reset"
        if not self.exchanges:
            self.remedies[change.path] = "server"
        elif _is_averaged(change) and not _is_count(change):
            self.remedies[change.path] = "mean"

    def _raise_to(self, change: Change, rule: str | None) -> None:
        if rule is None and bool(change.after < change.before):
            self.round_values.shrunk.add(change.path)
            self._reset(change, None)
            return
        self.round_values.raise_to(change.path, change.after if change.was_empty else change.before, change.after)
        self.found.setdefault(change.path, "max")

    def _added(self, change: Change) -> list[Any] | None:
        """Return what a turn has put behind a list that epoch hooks read; None for any other change."""
        if change.path.split(".")[0] not in self._gathered_names or not isinstance(change.after, (list, tuple)):
            return None
        before = () if change.was_empty else change.before
        if not isinstance(before, (list, tuple)) or not all(map(is_, before, change.after)):
            return None
        return list(change.after[len(before) :]) if len(change.after) >= len(before) else None

    def drop_round(self) -> None:
        """Puts the server's state back where a round ends in the middle of a turn."""
        self.state.restore()
        self._clear_round()

    def local_summary(self) -> dict[str, Any]:
        """Return what other ranks do not know of the round; what was gathered stays with its rank, as under DDP."""
        found = {path: word for path, word in self.found.items() if word != "gathered"}
        return {**self.round_values.local_summary(), "found": found, "remedies": self.remedies}

    def merge_summaries(self, summaries: Sequence[Mapping[str, Any]]) -> None:
        self.round_values.merge_summaries(summaries)
        self.found = {path: word for one in reversed(summaries) for path, word in one["found"].items()} | self.found
        self.remedies = {path: rule for one in summaries for path, rule in one["remedies"].items()}

    def end_round(self) -> None:
        """Writes the round's values into the module, which holds the server's state."""
        if not (self.round_values.sums or self.round_values.largest or self._gathered):
            return
        values = self.round_values.counters | self.round_values.means(self.state)
        for path in [path for path in values if self.is_reset_with_others(path)]:
            del values[path]
            self.found[path] = "reset"
        filled = {path for path in values if self.state.fills(path)}
        for path in filled:
            values[path] = values[path].to(self._saved[0].device)
        self.state.write(values)
        for change, items in self._gathered.values():
            change.node.write(change.key, [*(() if change.was_empty else change.before), *items])
        self.server_values |= {path: value for path, value in values.items() if path not in filled}
        self._clear_round()

    def is_reset_with_others(self, path: str) -> bool:
        """Whether an undeclared number lies in an object, not a module, whose tensors or lists are reset."""
        parent = path.rpartition(".")[0]
        below = [other for other in self.found if other.startswith(f"{parent}.")]
        if not parent or any(self.rules.rule_of(with_ancestors(other)) is not None for other in below):
            return False  # who declares something of an object knows it
        if isinstance(next((n.holder for n in self.state.nodes if n.path == parent), None), nn.Module):
            return False
        reset = [other.split(".") for other in below if self.found[other] == "reset"]
        depth, own = parent.count(".") + 1, parent.split(".")
        return any(o[:depth] == own and all(part.isdecimal() for part in o[depth + 1 :]) for o in reset)

    def _copy(self, value: Any) -> Any:
        """A deep copy that shares what is the module's own: its parameters, buffers and parts."""
        memo: dict[int, Any] = dict(self._owned)
        # deepcopy refuses results of a computation
        memo |= {id(t): t.detach().clone() for t in tensors_in(value) if t.grad_fn is not None}
        return copy.deepcopy(value, memo)

    def state_dict(self) -> dict[str, Any]:
        """The server's exchanged values and what clients keep, as far as they are plain values and tensors."""
        return {
            "values": _plain_ones(self.server_values),
            "personal": {client: _plain_ones(own) for client, own in self.personal.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores `state_dict`; values are written when the next round starts."""
        self.begin_with(state["values"])
        self.server_values = dict(state["values"])
        self.personal = {int(client): dict(own) for client, own in state["personal"].items()}

    @property
    def not_in_checkpoints(self) -> list[str]:
        """The paths of what clients keep that no checkpoint can hold without pickling objects."""
        return sorted({path for own in self.personal.values() for path, value in own.items() if not is_plain(value)})


def _names_in_hook(kind: type, hook: str) -> set[str]:
    """Attribute names that a class's own hook mentions."""
    method = getattr(kind, hook, None)
    if method is None or method is getattr(LightningModule, hook, None):
        return set()
    function = inspect.unwrap(method)
    return _names_in(function.__code__) if isinstance(function, FunctionType) else set()


def _names_in(code: CodeType) -> set[str]:
    inner = [_names_in(one) for one in code.co_consts if isinstance(one, CodeType)]  # comprehensions and functions
    return {*code.co_names}.union(*inner)


def _plain_ones(values: Mapping[str, Any]) -> dict[str, Any]:
    return {path: value for path, value in values.items() if is_plain(value)}


def _is_count(change: Change) -> bool:
    before, after = change.before, change.after
    return type(before) is type(after) and isinstance(before, (bool, int, np.integer, np.bool_))


def _is_float(change: Change) -> bool:
    """Whether a turn changed a number that is not an integer, before or after; truth values are not numbers."""
    kinds = [type(value) for value in (change.before, change.after)]
    return all(issubclass(kind, (int, float, np.number)) and kind is not bool for kind in kinds) and any(
        issubclass(kind, (float, np.floating)) for kind in kinds
    )


def _is_averaged(change: Change) -> bool:
    before, after = change.before, change.after
    if change.was_empty:
        before = after
    if isinstance(before, (Tensor, np.ndarray)):
        kind = Tensor if isinstance(before, Tensor) else np.ndarray
        return isinstance(after, kind) and before.shape == after.shape and has_floats(after)
    return isinstance(before, (int, float, np.number)) and isinstance(after, (int, float, np.number))


def _is_recomputed(change: Change) -> bool:
    """Whether an attribute is computed from parameters before each forward pass (old weight and spectral norm)."""
    holder = change.node.holder
    parameters = vars(holder)[PARAMETERS] if isinstance(holder, nn.Module) else ()
    return any(f"{change.key}{ending}" in parameters for ending in ("_orig", "_v"))
