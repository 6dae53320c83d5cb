"""Contents of optimizers, wherever they hold them: read, put back and averaged over clients.

`Optimizer.state` is one place of several. Optimizers count in their `param_groups` (`step`, `k`, `weight_sum`, `d`),
keep attributes, and wrap other optimizers (SAM, Lookahead) whose states are theirs. Hyperparameters are something else:
what schedules and modules set in `param_groups` goes on from round to round. What an optimizer's own steps change there
is its state.
"""

import copy
import math
from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

from fedgen.federated.client_state.exchange import parameters_of
from fedgen.federated.client_state.python_state import GENERATORS, MISSING, read, write
from fedgen.federated.client_state.state_values import is_plain
from fedgen.federated.lightning.lightning_internals import KEPT_IN_OPTIMIZERS, version_of
from fedgen.io.tensor_files import bytes_of, kind_of, tensors_in
from fedgen.io.torch_files import leaves
from fedgen.ranks import Ranks

# what torch's optimizers and those here keep for each number of a parameter
_LIKE_PARAMETER = frozenset(
    {"exp_avg", "exp_avg_sq", "max_exp_avg_sq", "exp_inf", "momentum_buffer", "square_avg", "grad_avg"}
    | {"acc_delta", "sum", "prev", "step_size", "m", "v"}
)
# what schedulers and named parameters add to a group: a checkpoint of training without them has none
_ADDED = ("initial_lr", "param_names")
_ROUNDING = 1e-12  # of learning rates: LinearLR's way to 0 may end a little below


def check_optimizer_state(optimizer: Optimizer, state: Any) -> None:
    groups = optimizer.state_dict()["param_groups"]
    found: Any = state.get("param_groups") if isinstance(state, Mapping) else None
    if not _is_list(found, len(groups)) or "state" not in state:
        raise ValueError(f"an optimizer's state is not that of one with {len(groups)} groups of parameters")
    for own, given in zip(groups, found):
        for name, value in own.items():
            other: Any = given.get(name) if isinstance(given, Mapping) else None
            is_added = name in _ADDED and other is None
            may_lack = other is None and isinstance(value, bool) and _maker(optimizer) == "torch"
            if not (is_added or may_lack or _is_alike(name, value, other)):
                raise ValueError(
                    f"an optimizer's {name} is {str(other)[:40]!r}, where the model's is {str(value)[:40]!r}"
                )
    check_slots(optimizer, state["state"])


def _is_alike(name: str, own: Any, other: Any) -> bool:
    """Whether a setting of a parameter group is of the kind of the optimizer's own."""
    if name == "params":
        return _is_list(other, len(own)) and all(type(one) is int for one in other) and list(other) == own
    if _is_number(own):
        return _is_number(other) and not is_nan(other) and (name not in ("lr", "initial_lr") or other >= -_ROUNDING)
    if isinstance(own, list | tuple):
        return _is_list(other, len(own)) and all(
            _is_number(b) and not is_nan(b) for a, b in zip(own, other) if _is_number(a)
        )
    return not isinstance(own, bool) or isinstance(other, bool)


def check_slots(optimizer: Optimizer, slots: Any) -> None:
    parameters, known = parameters_of(optimizer), _maker(optimizer) in ("torch", "fedgen")
    if not isinstance(slots, Mapping) or not all(
        (type(key) is int and 0 <= key < len(parameters)) or (not known and isinstance(key, str)) for key in slots
    ):
        raise ValueError(f"what an optimizer keeps is not by the place of one of its {len(parameters)} parameters")
    for place, found in slots.items():
        slot: Any = {place: found} if isinstance(place, str) else found
        if not isinstance(slot, Mapping):
            raise ValueError(f"what an optimizer keeps of parameter {place} is {type(slot).__name__}, not by name")
        for name, value in slot.items():
            if any(map(is_nan, leaves(value))) or (known and not _fits(name, value, parameters[place])):
                raise ValueError(f"an optimizer's {name} of parameter {place} is not of its shape or kind, or is NaN")
    first = 0
    for group in optimizer.param_groups if known else ():
        first, places = first + len(group["params"]), range(first, first + len(group["params"]))
        names = {frozenset(slots[i].keys() & (_LIKE_PARAMETER | {"step"})) for i in places if slots.get(i)}
        if len(names) > 1:
            odd = sorted(frozenset.union(*names) - frozenset.intersection(*names))
            raise ValueError(f"an optimizer keeps {odd[0]} of some parameters and not of others")


def _maker(optimizer: Any) -> str:
    return type(optimizer).__module__.partition(".")[0]


def _fits(name: Any, value: Any, parameter: Tensor) -> bool:
    if name == "step":
        return _is_number(value) and bool(value >= 0)
    if name not in _LIKE_PARAMETER or (name == "momentum_buffer" and value is None):
        return True
    return isinstance(value, Tensor) and value.shape == parameter.shape and kind_of(value) == kind_of(parameter)


def _is_number(value: Any) -> bool:
    """A number that torch can take, or a tensor of one; no truth value."""
    if isinstance(value, Tensor):
        return value.numel() == 1 and kind_of(value)[1:] == (False, False)
    return isinstance(value, float) or (type(value) is int and value.bit_length() < 64)


def is_nan(value: Any) -> bool:
    return bool(value.isnan().any()) if isinstance(value, Tensor) else isinstance(value, float) and math.isnan(value)


def _is_list(value: Any, length: int) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str) and len(value) == length


# Values by name, of a parameter's place in the optimizer, or of "path of a wrapped optimizer/kind/place"
Key = int | str
Contents = dict[Key, dict[str, Any]]
STATE, GROUPS, ATTRIBUTES = "state", "groups", "attributes"  # kinds
LOOSE = ""  # the name of a value in `state` that is not a dictionary
ATOMS = frozenset({bool, int, float, str, type(None)})  # types of values that are their own copies


class OptimizerContents:
    """An optimizer with those that it wraps."""

    def __init__(self, optimizer: Optimizer, wrapper: Any = None) -> None:
        self.optimizer = optimizer
        self._callers = [optimizer] if wrapper is None else [optimizer, wrapper]
        self._members = dict(_members("", optimizer, set()))
        self.has_modes = {"train", "eval"} <= {*dir(type(optimizer))}
        self._is_torchs = len(self._members) == 1 and _maker(optimizer) == "torch"
        self._stepped: set[str] = set()  # names in `param_groups` that steps change
        self._marks: list[tuple[dict[str, Any], dict[str, int]]] = []
        self._handles: list[Any] = []
        self._made: Contents = {}  # groups and attributes, of which `read` leaves out what no step has changed
        made = dict(self._groups_and_attributes(lambda group: group.keys() - {"params"}))
        parameters = {id(parameter): parameter for parameter in parameters_of(optimizer)}  # which stay themselves
        self._made = copied_contents(made, dict(parameters))
        self.fresh = copied_contents(self.read(), dict(parameters))
        self._weights = self._names_of_weights()
        if not self._is_torchs:
            self._watch()

    @property
    def parameters(self) -> list[Tensor]:
        """The optimizer's parameters in its order, those too that callbacks have added."""
        return parameters_of(self.optimizer)

    def _names_of_weights(self) -> set[str]:
        """Return the names in fresh state that are copies of the weights, as of optimizers that keep slow ones."""
        state = [(self.parameters[key], slots) for key, slots in self.fresh.items() if isinstance(key, int)]
        names = set.intersection(*(set(slots) for _, slots in state)) if state else set()
        vary = any(bool((parameter != parameter.flatten()[0]).any()) for parameter, _ in state if parameter.numel())
        return {name for name in names if vary and all(_is_equal(slots[name], own) for own, slots in state)}

    def renew(self) -> None:
        """Make the optimizer what `configure_optimizers` would make of the present weights."""
        self.write(self.fresh)
        for parameter in self.parameters if self._weights else ():
            slots = self.optimizer.state[parameter]
            slots.update({name: parameter.detach().clone() for name in self._weights})

    def switch(self, mode: Literal["train", "eval"]) -> None:
        """Go to the weights that are trained or evaluated, of an optimizer that `has_modes`."""
        optimizer: Any = self.optimizer
        self._mark()
        getattr(type(optimizer), mode)(optimizer)
        self._note()

    def allow_modes(self, allowed: bool) -> None:
        """Let a module's own calls of `train` and `eval` through, or have them do nothing."""
        for caller in self._callers:
            for name in ("train", "eval"):
                vars(caller).pop(name, None)
                if not allowed:
                    vars(caller)[name] = lambda: None

    @property
    def hyperparameters(self) -> list[dict[str, Any]]:
        """The values in each parameter group that no step of the optimizer changes."""
        without = {"params", *self._stepped}
        groups = [{n: v for n, v in group.items() if n not in without} for group in self.optimizer.param_groups]
        for group in groups:
            group.update(_copied_values(group))
        return groups

    @hyperparameters.setter
    def hyperparameters(self, groups: Sequence[Mapping[str, Any]]) -> None:
        for own, saved in zip(self.optimizer.param_groups, groups):
            own.update(saved)
            own.update(_copied_values(saved))

    def _watch(self) -> None:
        """Note what steps change in `param_groups`; a step's closure is the module's, and what it sets is not state."""

        def start(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
            self._mark()
            args = tuple(self._unwatched(one) if callable(one) and one is not args[0] else one for one in args)
            closure = kwargs.get("closure")
            return args, kwargs if closure is None else {**kwargs, "closure": self._unwatched(closure)}

        for member in self._members.values():
            if isinstance(member, Optimizer) and _maker(member) != "torch":  # steps of torch's change nothing there
                self._handles.append(member.register_step_pre_hook(start))
                self._handles.append(member.register_step_post_hook(lambda *_: self._note()))

    def release(self) -> None:
        if self.has_modes:
            self.allow_modes(True)
        for handle in self._handles:
            handle.remove()

    def _unwatched(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        def compute() -> Any:
            self._note()
            result = closure()
            self._mark()
            return result

        return compute

    def _mark(self) -> None:
        """Take each group's values, and how often those that are tensors have been changed in place."""
        groups = self.optimizer.param_groups
        self._marks = [(dict(g), {k: version_of(v) for k, v in g.items() if isinstance(v, Tensor)}) for g in groups]

    def _note(self) -> None:
        for group, (known, versions) in zip(self.optimizer.param_groups, self._marks):
            if len(group) != len(known) or any(group.get(name, MISSING) is not known[name] for name in known):
                names = group.keys() | known.keys()
                self._stepped |= {n for n in names if group.get(n, MISSING) is not known.get(n, MISSING)}
            self._stepped |= {name for name, version in versions.items() if version_of(known[name]) != version}

    def read(self) -> Contents:
        found: Contents = {}
        if self._has_state_alone():
            places = {id(p): i for i, p in enumerate(p for g in self.optimizer.param_groups for p in g["params"])}
            if all(id(key) in places and isinstance(slots, dict) for key, slots in self.optimizer.state.items()):
                return {places[id(key)]: slots for key, slots in self.optimizer.state.items()}
        for path, member in self._members.items():
            places = {id(parameter): place for place, parameter in enumerate(parameters_of(member))}
            for key, slots in vars(member).get("state", {}).items():
                place = places.get(id(key), key)
                name = place if type(place) is int and not path else f"{path}/{STATE}/{place}"
                found[name] = slots if isinstance(slots, dict) else {LOOSE: slots}
        return found | dict(self._groups_and_attributes(self._state_names))

    def _groups_and_attributes(self, names: Callable[[Mapping[str, Any]], set[str]]) -> Iterator[tuple[Key, Any]]:
        for path, member in self._members.items():
            for place, group in enumerate(vars(member).get("param_groups", ())):
                if values := {name: group[name] for name in group.keys() & names(group)}:
                    yield f"{path}/{GROUPS}/{place}", values
            key, values = f"{path}/{ATTRIBUTES}/", {}
            made = self._made.get(key, {})
            for name in _kept(member):
                value = vars(member)[name]
                value = read(value) if isinstance(value, GENERATORS) else value
                if made.get(name, MISSING) is not value:
                    values[name] = value
            if values:
                yield key, values

    def _state_names(self, group: Mapping[str, Any]) -> set[str]:
        """Return the names in a group that are state: of a wrapped optimizer's own groups, all."""
        is_outer = any(group is own for own in self.optimizer.param_groups)
        return self._stepped if is_outer else group.keys() - {"params"}

    def write(self, contents: Contents) -> None:
        """Make the optimizer hold copies of contents, and nothing else."""
        parameters = parameters_of(self.optimizer)
        values = copied_contents(contents, {id(parameter): parameter for parameter in parameters})
        if self._has_state_alone() and all(type(key) is int and LOOSE not in slots for key, slots in values.items()):
            self.optimizer.state.clear()
            self.optimizer.state.update({parameters[key]: slots for key, slots in values.items()})  # type: ignore[index]
            return
        for path, member in self._members.items():
            own, parameters = vars(member), parameters_of(member)
            if isinstance(state := own.get("state"), MutableMapping):
                state.clear()
                for key, slots in values.items():
                    at, kind, place = _parsed(key)
                    if (at, kind) == (path, STATE):
                        slot = slots[LOOSE] if slots.keys() == {LOOSE} else slots
                        state[parameters[int(place)] if place.isdecimal() else place] = slot
            for number, group in enumerate(own.get("param_groups", ())):
                at = f"{path}/{GROUPS}/{number}"
                if any(group is outer for outer in self.optimizer.param_groups):
                    self._stepped |= values.get(at, {}).keys()
                self._restore(group, self._state_names(group), values, at)
            self._restore(own, _kept(member), values, f"{path}/{ATTRIBUTES}/")

    def _has_state_alone(self) -> bool:
        """Whether nothing but `state` changes by steps, as in torch's own optimizers."""
        return self._is_torchs and vars(self.optimizer).keys() <= KEPT_IN_OPTIMIZERS

    def _restore(self, own: dict[str, Any], names: set[str], contents: Contents, key: Key) -> None:
        """Put the values of these names back to what contents have of them, or what they were made with."""
        made, found = self._made.get(key, {}), contents.get(key, {})
        for name in names | found.keys():
            if name not in found and name not in made:
                own.pop(name, None)
            elif isinstance(own.get(name), GENERATORS):
                write(own[name], found.get(name, made.get(name)))
            elif name in found:
                own[name] = found[name]
            elif own.get(name) is not made[name]:
                own[name] = copied(made[name], {id(one): one for one in self.parameters})

    def checked(self, contents: Any) -> Contents:
        """Return a copy with tensors where the optimizer keeps them; refuse what it cannot hold."""
        if not isinstance(contents, Mapping) or not self.has_places(contents):
            raise ValueError("an optimizer's contents are of places that it does not have")
        check_slots(self.optimizer, {key: slots for key, slots in contents.items() if isinstance(key, int)})
        for key, slots in contents.items():
            if not isinstance(slots, Mapping) or not all(isinstance(name, str) for name in slots):
                raise ValueError(f"an optimizer's contents of {str(key)[:80]!r} are not by name")
            if any(map(is_nan, leaves(slots))):
                raise ValueError(f"an optimizer's {str(key)[:80]!r} holds NaN")
        return {key: self._on_device(key, slots) for key, slots in contents.items()}

    def _on_device(self, key: Key, slots: Mapping[str, Any]) -> dict[str, Any]:
        member = self._members[_parsed(key)[0]]
        own = parameters_of(member)[self.parameter_at(key) or 0]
        group = next(g for g in member.param_groups if any(own is p for p in g["params"]))
        counts_there = group.get("capturable") or group.get("fused")  # else torch counts steps on the CPU
        return {
            name: copied(value, device=None if name == "step" and not counts_there else own.device)
            for name, value in slots.items()
        }

    def parameter_at(self, key: Key) -> int | None:
        """Return the place of the parameter whose state is under a key; None for what is of none."""
        _, kind, place = _parsed(key)
        return int(place) if kind == STATE and place.isdecimal() else None

    def has_places(self, keys: Collection[Any]) -> bool:
        """Whether the optimizer, or one that it wraps, has places of all these keys."""
        return all(map(self._has_place, keys))

    def _has_place(self, key: Any) -> bool:
        if not (type(key) is str or (type(key) is int and key >= 0)):
            return False
        path, kind, place = _parsed(key)
        if path not in self._members or kind not in (STATE, GROUPS, ATTRIBUTES):
            return False
        many = len(parameters_of(self._members[path]) if kind == STATE else self._members[path].param_groups)
        return not place.isdecimal() or (len(place) < 10 and int(place) < many)


def _parsed(key: Key) -> tuple[str, str, str]:
    path, kind, place = ["", STATE, str(key)] if isinstance(key, int) else ["", "", *key.rsplit("/", 2)][-3:]
    return path, kind, place


def _members(path: str, value: Any, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """Yield an optimizer and those that it wraps, in attributes or in lists and dictionaries there, by dotted path."""
    seen.add(id(value))
    yield path, value
    for name, held in vars(value).items():
        inner = held.items() if isinstance(held, dict) else enumerate(held) if isinstance(held, list | tuple) else ()
        for key, one in ((name, held), *((f"{name}.{key}", one) for key, one in inner)):
            if hasattr(one, "param_groups") and id(one) not in seen:
                yield from _members(f"{path}.{key}" if path else key, one, seen)


def _kept(member: Any) -> set[str]:
    """The names of an optimizer's attributes that are plain values, or random generators."""
    own = [(name, value) for name, value in vars(member).items() if name not in KEPT_IN_OPTIMIZERS]
    return {name for name, value in own if is_plain(value) or isinstance(value, GENERATORS)}


def _copied_values(group: Mapping[str, Any]) -> dict[str, Any]:
    """Copies of those values of a group that are not their own copies."""
    items = ((n, v, ATOMS.issuperset(map(type, v)) if type(v) is tuple else type(v) in ATOMS) for n, v in group.items())
    return {name: copied(value) for name, value, is_atom in items if not is_atom}


def _is_equal(value: Any, parameter: Tensor) -> bool:
    return isinstance(value, Tensor) and value.shape == parameter.shape and torch.equal(value, parameter.to(value))


def copied(value: Any, memo: dict[int, Any] | None = None, device: torch.device | None = None) -> Any:
    """Return a copy of nested values; what occurs twice in it is one object in the copy, too."""
    memo = {} if memo is None else memo
    if id(value) in memo:
        return memo[id(value)]
    made: Any
    if isinstance(value, Tensor):
        made = value.detach().clone() if device is None else value.detach().to(device, copy=True)
    elif type(value) is dict:
        made = {key: part if type(part) in ATOMS else copied(part, memo, device) for key, part in value.items()}
    elif type(value) in (list, tuple):
        made = type(value)(copied(part, memo, device) for part in value)
    else:
        return copy.deepcopy(value, memo)  # immutable ones are themselves
    memo[id(value)] = made
    return made


def copied_contents(contents: Contents, memo: dict[int, Any]) -> Contents:
    """Return `copied` contents in one call for all slots, most of which are tensors and numbers."""
    found: Contents = {}
    for key, slots in contents.items():
        own = found[key] = {}
        for name, value in slots.items():
            if type(value) is Tensor:
                if id(value) not in memo:
                    memo[id(value)] = value.detach().clone()
                own[name] = memo[id(value)]
            else:
                own[name] = value if type(value) in ATOMS else copied(value, memo)
    return found


class MeanContents:
    """The weighted running mean over clients of an optimizer's floats; all else in it is the first client's."""

    def __init__(self) -> None:
        self.contents: Contents = {}
        self._weights: dict[tuple[Key, str], float] = {}

    def add(self, contents: Contents, weight: float) -> None:
        new: Contents = {}
        for key, slots in contents.items():
            mean = self.contents.get(key, {})
            for name, value in slots.items():
                total = self._weights[key, name] = self._weights.get((key, name), 0.0) + weight
                if name not in mean:
                    new.setdefault(key, {})[name] = value
                elif type(value) is not type(mean[name]):  # L-BFGS keeps a number as either kind
                    continue
                elif isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex()):
                    mean[name].lerp_(value, weight / total)
                elif type(value) is float:
                    mean[name] += (value - mean[name]) * (weight / total)
        for key, slots in copied_contents(new, {}).items():
            self.contents.setdefault(key, {}).update(slots)

    def merge(self, ranks: Ranks, device: torch.device, parameters: Sequence[Tensor], first: int) -> None:
        cpu = torch.device("cpu")
        own = {(key, name): value for key, slots in self.contents.items() for name, value in slots.items()}
        averaged = {at: _as_tensor(value) for at, value in own.items() if _is_averaged(value)}
        sums = ranks.add_named({at: value * self._weights[at] for at, value in averaged.items()}, device)
        weights = {at: torch.tensor(self._weights[at], dtype=torch.float64) for at in averaged}
        totals = ranks.add_named(weights, device)
        means = {at: total / float(totals[at]) for at, total in sums.items()}
        home = {at: parameters[at[0]].device if isinstance(at[0], int) else device for at in means}
        beside = [at for at, value in averaged.items() if value.device != home[at]]  # step counts
        # Python floats, too: whether a mean is one again is seen here
        rest = {at: copied(value, device=cpu) for at, value in own.items() if averaged.get(at) is not value}
        for _, theirs, others in sorted(ranks.gather((first, beside, rest)), key=lambda one: -one[0]):
            beside, rest = [*beside, *theirs], {**rest, **others}  # in the end the first client's
        for at, mean in means.items():
            rest[at] = float(mean) if at in rest else mean.to(cpu if at in beside else home[at])
        self.contents = {}
        for (key, name), value in rest.items():
            self.contents.setdefault(key, {})[name] = value


def mean_bytes(contents: Contents) -> int:
    """The bytes of the tensors that a client sends for `MeanContents.merge`: each mean has a weight beside it."""
    values = [value for slots in contents.values() for value in slots.values()]
    means = [_as_tensor(value) for value in values if _is_averaged(value)]
    rest = [value for value in values if not _is_averaged(value)]
    return bytes_of([*means, *tensors_in(rest)]) + len(means) * torch.float64.itemsize


def _is_averaged(value: Any) -> bool:
    return type(value) is float or (isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex()))


def _as_tensor(value: Any) -> Tensor:
    return value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64)
