"""Snapshots of Python state: what hangs in modules, objects, containers and tensors, restored in place.

`copy.deepcopy` of a module would copy its weights too, and put other objects in the places of those that closures and
callbacks know. Here every container that can be reached is noted once with its shallow contents; putting these back
restores the whole graph, and what compares equal costs one comparison of references.
"""

import enum
import inspect
import io
import re
import threading
import types
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import is_
from pathlib import PurePath
from types import CodeType, FunctionType
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from fedgen.federated.client_state.state_values import (
    GENERATORS,
    equal,
    in_the_form_of,
    read_generator,
    read_tensor,
    same_array,
    same_generator,
    same_tensor,
    seed_generator,
    write_array,
    write_elements,
    write_generator,
    write_tensor,
)
from fedgen.federated.lightning.lightning_internals import BUFFERS, KEPT_IN_MODULES, UNSAVED

MOST_CONTAINERS = 20_000  # that are looked into; more are not state of a training step but data

_SIMPLE = (
    *(bool, int, float, complex, str, bytes, type(None), type, type(Ellipsis), type(NotImplemented), range, slice),
    *(types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType, types.GenericAlias),
    *(torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format),
    *(enum.Enum, PurePath, re.Pattern, np.generic, np.dtype, weakref.ref, property),
)
_RUNNING = (io.IOBase, threading.Thread, types.GeneratorType, types.CoroutineType)
_FOREIGN = ("lightning", "pytorch_lightning", "lightning_fabric", "torchmetrics", "logging", "concurrent", "asyncio")
_FOREIGN_PARTS = ("torch._", "torch.utils.data", "torch.fx", "torch.jit", "torch.distributed", "multiprocessing")

_UNCHANGING = ("builtins", "_thread", "functools", "operator", "datetime", "decimal", "fractions", "uuid", "zoneinfo")

# hooks after whose calls a module's lists are whole: lists that these read are outputs of an epoch, not state
_EPOCH_HOOKS = ("on_train_epoch_end", "on_train_epoch_start", "on_train_end", "on_round_end")

KEYS = (str, int, float, bool)  # that name what they stand for in a path; tensors print at length
MISSING = object()
Place = tuple["Node", Any]  # what holds a value and its key there; None for all that the node holds


@dataclass
class Change:
    """One place whose contents changed."""

    path: str
    container: "Node"
    key: Any
    before: Any
    after: Any


class Node:
    """A container, tensor or generator with its contents at the snapshot."""

    contents: Any
    empty: Collection[Any] = ()  # keys of buffers that are None, and of `state_dict` once they are filled

    def __init__(self, path: str, holder: Any, contents: Any = MISSING) -> None:
        self.path, self.holder = path, holder
        self.contents = self.now() if contents is MISSING else contents

    def now(self) -> Any:
        """The present contents, in a form that later changes leave alone."""
        raise NotImplementedError

    def is_same(self) -> bool:
        """Whether the contents are what they were, by reference."""
        raise NotImplementedError

    def restore(self) -> None:
        """Puts the contents back."""
        raise NotImplementedError

    def changes(self) -> Iterator[Change]:
        """Return the differences, by value."""
        raise NotImplementedError

    def children(self) -> Iterator[tuple[Any, str, Any]]:
        """The key, path and value of everything in it."""
        return iter(())

    def write(self, key: Any, value: Any) -> None:
        """Puts a value in place of another."""
        raise NotImplementedError


class Keyed(Node):
    """A mapping, or the attributes of an object."""

    def is_same(self) -> bool:
        now = self.now()
        return len(now) == len(self.contents) and all(now.get(k, MISSING) is v for k, v in self.contents.items())

    def changes(self) -> Iterator[Change]:
        now = self.now()
        for key in (*self.contents, *(key for key in now if key not in self.contents)):
            before, after = self.contents.get(key, MISSING), now.get(key, MISSING)
            if before is not after and not equal(before, after):
                yield Change(self._path(key), self, key, before, after)

    def children(self) -> Iterator[tuple[Any, str, Any]]:
        return ((key, self._path(key), value) for key, value in self.contents.items())

    def _path(self, key: Any) -> str:
        name = str(key) if isinstance(key, KEYS) else type(key).__name__
        return f"{self.path}.{name}" if self.path else name


class Attributes(Keyed):
    """The attributes of a module or object, but for some."""

    def __init__(
        self,
        path: str,
        holder: Any,
        without: frozenset[str] = frozenset(),
        beginnings: tuple[str, ...] = (),
        contents: Any = MISSING,
    ) -> None:
        self._without, self._beginnings = without, beginnings
        super().__init__(path, holder, contents)

    def is_left_out(self, key: str) -> bool:
        """Whether an attribute of this name is none of the state."""
        return key in self._without or key.startswith(self._beginnings)

    def now(self) -> dict[Any, Any]:
        without, apart = self._without, self._beginnings
        return {k: v for k, v in vars(self.holder).items() if k not in without and not k.startswith(apart)}

    def restore(self) -> None:
        own = vars(self.holder)
        for key in [key for key in own if key not in self.contents and not self.is_left_out(key)]:
            del own[key]
        own.update(self.contents)

    def changes(self) -> Iterator[Change]:
        for change in super().changes():
            if change.before is MISSING:  # until it was set the class's value was read
                change.before = vars_of_class(type(self.holder), change.key)
            yield change

    def write(self, key: Any, value: Any) -> None:
        vars(self.holder)[key] = value


class _Slots(Keyed):
    """The slots of an object that has no dictionary."""

    def now(self) -> dict[Any, Any]:
        # Python's own, which a class has or inherits or does not have at all
        names = [n for kind in type(self.holder).__mro__ for n in _names(getattr(kind, "__slots__", ()))]
        return {n: getattr(self.holder, n) for n in names if n[:2] != "__" and hasattr(self.holder, n)}

    def restore(self) -> None:
        for name, value in self.contents.items():
            object.__setattr__(self.holder, name, value)

    def write(self, key: Any, value: Any) -> None:
        object.__setattr__(self.holder, key, value)


class _Mapping(Keyed):
    """A dictionary, or another mapping that can change."""

    def is_same(self) -> bool:
        now = self.holder
        return len(now) == len(self.contents) and all(now.get(k, MISSING) is v for k, v in self.contents.items())

    def now(self) -> dict[Any, Any]:
        return dict(self.holder)

    def restore(self) -> None:
        self.holder.clear()
        self.holder.update(self.contents)

    def write(self, key: Any, value: Any) -> None:
        self.holder[key] = value


class _Sequence(Node):
    """A list or a deque."""

    def now(self) -> tuple[Any, ...]:
        return tuple(self.holder)

    def is_same(self) -> bool:
        return len(self.holder) == len(self.contents) and all(map(is_, self.holder, self.contents))

    def restore(self) -> None:
        self.holder.clear()
        self.holder.extend(self.contents)

    def changes(self) -> Iterator[Change]:
        if len(self.holder) != len(self.contents):
            yield Change(self.path, self, None, self.contents, tuple(self.holder))
            return
        for place, (before, after) in enumerate(zip(self.contents, self.holder)):
            if before is not after and not equal(before, after):
                yield Change(f"{self.path}.{place}", self, place, before, after)

    def children(self) -> Iterator[tuple[Any, str, Any]]:
        return ((place, f"{self.path}.{place}", value) for place, value in enumerate(self.contents))

    def write(self, key: Any, value: Any) -> None:
        if key is None:
            self.holder.clear()
            self.holder.extend(value)
        else:
            self.holder[key] = value


class _Constant(Node):
    """A tuple, which cannot change, with contents that can."""

    def now(self) -> tuple[Any, ...]:
        return tuple(self.holder)

    def is_same(self) -> bool:
        return True

    def restore(self) -> None:
        """Restore nothing: nothing can have changed."""

    def changes(self) -> Iterator[Change]:
        return iter(())

    def children(self) -> Iterator[tuple[Any, str, Any]]:
        return ((place, f"{self.path}.{place}", value) for place, value in enumerate(self.contents))


class _Whole(Node):
    """Something whose contents are read, compared and put back as a whole."""

    def __init__(self, path: str, holder: Any, read: Callable, write: Callable, equal: Callable) -> None:
        self._reads, self._writes, self._equals = read, write, equal
        super().__init__(path, holder)

    def now(self) -> Any:
        return self._reads(self.holder)

    def is_same(self) -> bool:
        return bool(self._equals(self.holder, self.contents))

    def restore(self) -> None:
        self._writes(self.holder, self.contents)

    def changes(self) -> Iterator[Change]:
        if not self.is_same():
            yield Change(self.path, self, None, self.contents, self.now())

    def write(self, key: Any, value: Any) -> None:
        self._writes(self.holder, value)


class RandomState(_Whole):
    """The state of a random generator."""


class UnsavedBuffers(Node):
    """The buffers of a module that `state_dict` does not hold: non-persistent ones, and those that are None so far."""

    def __init__(self, path: str, holder: nn.Module) -> None:
        self.buffers, unsaved = vars(holder)[BUFFERS], vars(holder)[UNSAVED]
        self.empty = {name for name, value in self.buffers.items() if value is None} - unsaved
        self._names = sorted(unsaved | self.empty)
        super().__init__(path, holder)

    def now(self) -> dict[str, Any]:
        return {name: self.buffers.get(name) for name in self._names}

    def is_same(self) -> bool:
        return all(self.buffers.get(name, MISSING) is value for name, value in self.contents.items())

    def restore(self) -> None:
        self.buffers.update(self.contents)

    def changes(self) -> Iterator[Change]:
        for name, before in self.contents.items():
            if (after := self.buffers.get(name)) is not before:
                yield Change(f"{self.path}.{name}" if self.path else name, self, name, before, after)

    def children(self) -> Iterator[tuple[Any, str, Any]]:
        return ((n, f"{self.path}.{n}" if self.path else n, value) for n, value in self.contents.items())

    def write(self, key: Any, value: Any) -> None:
        self.buffers[key] = value


Part = tuple[str, nn.Module, dict[str, Any], frozenset[str], tuple[str, ...]]  # contents, all names, beginnings


def _read_parts(parts: Sequence[tuple[str, nn.Module]]) -> tuple[list[Part], deque[tuple[str, Any]], list[Node]]:
    """Return modules' own attributes, these by path, and the nodes of buffers that `state_dict` does not hold."""
    found: list[Part] = []
    values, unsaved = deque[tuple[str, Any]](), list[Node]()
    beginnings: dict[type, tuple[str, ...]] = {}
    for path, part in parts:
        own, kind, before = vars(part), type(part), f"{path}." if path else ""
        if kind not in beginnings:
            beginnings[kind] = tuple(one for base in kind.__mro__ for one in vars(base).get("own_turn_state", ()))
        apart = beginnings[kind]
        contents = {k: v for k, v in own.items() if k not in KEPT_IN_MODULES and not k.startswith(apart)}
        found.append((path, part, contents, frozenset(own), apart))
        values.extend((before + key, value) for key, value in contents.items())
        if own[UNSAVED] or any(value is None for value in own[BUFFERS].values()):
            unsaved.append(UnsavedBuffers(path, part))
    values.extend((path, value) for node in unsaved for _, path, value in node.children())
    return found, values, unsaved


PLAIN: dict[type, type[Node]] = {dict: _Mapping, list: _Sequence, tuple: _Constant}  # containers and their nodes


class PythonState:
    """A snapshot of everything mutable that can be reached from some roots, tensors and generators among it."""

    def __init__(
        self,
        roots: Sequence[Node],
        enter: Callable[[str, Any], bool],
        parts: Sequence[tuple[str, nn.Module]] = (),
        owned: Collection[int] = (),
        asks_all: bool = True,
    ) -> None:
        self.opaque: dict[str, str] = {}  # what cannot be looked into: the type's name by path
        self._enter, self._count = enter, 0  # of what was found, looked into already or not
        self._parts, left, unsaved = _read_parts(parts)
        self._nodes = [*roots, *unsaved]
        self._containers: dict[type, list[tuple[str, Any, Any]]] = {kind: [] for kind in PLAIN}
        seen: set[int] = set()
        left.extend((path, value) for node in roots for _, path, value in node.children())
        while left:
            path, value = left.popleft()
            kind, place = type(value), id(value)
            if isinstance(value, _SIMPLE) or place in seen or place in owned:
                continue
            if (asks_all or kind not in PLAIN) and not enter(path, value):
                continue
            seen.add(place)
            if kind in PLAIN and self._count < MOST_CONTAINERS:
                self._count += 1
                contents: Any = dict(value) if kind is dict else tuple(value)
                self._containers[kind].append((path, value, contents))
                for key, one in contents.items() if kind is dict else enumerate(contents):
                    left.append((f"{path}.{key if isinstance(key, KEYS) else type(key).__name__}", one))
            elif (node := self._node(path, value)) is not None:
                self._nodes.append(node)
                left.extend((path, value) for _, path, value in node.children())

    @property
    def nodes(self) -> list[Node]:
        """Everything that was noted."""
        parts = [Attributes(path, part, KEPT_IN_MODULES, apart, own) for path, part, own, _, apart in self._parts]
        plain = [kind(*one) for plain, kind in PLAIN.items() for one in self._containers[plain]]
        return [*parts, *plain, *self._nodes]

    @property
    def random(self) -> list["RandomState"]:
        """The random generators."""
        return [node for node in self._nodes if isinstance(node, RandomState)]

    def changed(self) -> list[Node]:
        """The nodes whose contents are not what they were, by reference."""
        found: list[Node] = []
        for path, part, contents, names, apart in self._parts:
            own = vars(part)
            is_same = all(own.get(key, MISSING) is value for key, value in contents.items())
            if is_same and own.keys() != names:  # most have them; only names that are left out may come and go
                new = own.keys() - contents.keys() - KEPT_IN_MODULES
                is_same = all(key.startswith(apart) for key in new)
            if not is_same:
                found.append(Attributes(path, part, KEPT_IN_MODULES, apart, contents))
        for path, holder, contents in self._containers[list]:
            if len(holder) != len(contents) or not all(map(is_, holder, contents)):
                found.append(_Sequence(path, holder, contents))
        for path, holder, contents in self._containers[dict]:
            if len(holder) != len(contents) or not all(holder.get(k, MISSING) is v for k, v in contents.items()):
                found.append(_Mapping(path, holder, contents))
        return found + [node for node in self._nodes if not node.is_same()]

    def _node(self, path: str, value: Any) -> Node | None:
        if self._count >= MOST_CONTAINERS:
            self.opaque.setdefault(path.split(".")[0], f"more than {MOST_CONTAINERS} objects")
            return None
        self._count += 1
        if isinstance(value, Tensor):
            return _Whole(path, value, read_tensor, write_tensor, same_tensor)
        if isinstance(value, np.ndarray):
            return _Whole(path, value, np.copy, write_array, same_array)
        if isinstance(value, GENERATORS):
            return RandomState(path, value, read_generator, write_generator, same_generator)
        if isinstance(value, MutableMapping):
            return _Mapping(path, value)
        if isinstance(value, (list, deque)):
            return _Sequence(path, value)
        if isinstance(value, (set, bytearray)):
            return _Whole(path, value, type(value), write_elements, lambda one, other: one == other)
        if isinstance(value, (tuple, frozenset)):
            return _Constant(path, value)
        return self._object(path, value)

    def _object(self, path: str, value: Any) -> Node | None:
        module = type(value).__module__ or ""
        if module.split(".")[0] in _FOREIGN or module.startswith(_FOREIGN_PARTS) or callable_only(value):
            return None
        if isinstance(value, _RUNNING) or (isinstance(value, Iterator) and not hasattr(value, "__dict__")):
            self.opaque[path] = f"{module}.{type(value).__qualname__}"
            return None
        if hasattr(value, "__dict__"):
            return Attributes(path, value)
        if any(hasattr(kind, "__slots__") for kind in type(value).__mro__[:-1]):
            return _Slots(path, value)
        if module not in _UNCHANGING and not hasattr(type(value), "__members__"):  # as pybind11's enumerations have
            self.opaque[path] = f"{module}.{type(value).__qualname__}"
        return None


def vars_of_class(kind: type, name: str) -> Any:
    """A number, text or other simple value that a class gives its objects; MISSING if there is none."""
    value = next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), MISSING)
    return value if isinstance(value, (bool, int, float, str, type(None))) else MISSING


def callable_only(value: Any) -> bool:
    """Whether a value is a function in another form."""
    return type(value).__name__ in ("partial", "method-wrapper", "wrapper_descriptor", "cached_property")


def _names(slots: Any) -> tuple[str, ...]:
    return (slots,) if isinstance(slots, str) else tuple(slots)


def reseed(node: RandomState, seed: int) -> None:
    """Seeds a generator anew."""
    seed_generator(node.holder, seed)


def epoch_lists(module: nn.Module) -> Iterator[str]:
    """Attribute names that the module's own epoch hooks mention."""
    for hook in _EPOCH_HOOKS:
        method = getattr(type(module), hook, None)
        if method is not None and method is not getattr(LightningModule, hook, None):
            function = inspect.unwrap(method)
            if isinstance(function, FunctionType):
                yield from _names_in(function.__code__)


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):  # comprehensions and inner functions
            yield from _names_in(constant)


def saved_tensors(module: nn.Module) -> list[Tensor]:
    """The module's own parameters and buffers that `state_dict` saves."""
    return [value for value in module.state_dict(keep_vars=True).values() if isinstance(value, Tensor)]


def no_parameters(path: str, value: Any) -> bool:
    """Whether a value is neither a parameter nor a module."""
    return not isinstance(value, (nn.Parameter, nn.Module))


class Places:
    """Places of the values of a snapshot, by their dotted paths."""

    def __init__(self, state: PythonState) -> None:
        self._state = state

    @cached_property
    def _all(self) -> dict[str, Place]:
        """Places of everything by path, of containers themselves, too."""
        nodes = self._state.nodes
        found: dict[str, Place] = {node.path: (node, None) for node in nodes if not isinstance(node, _Constant)}
        for node in nodes:
            for key, path, value in node.children():
                if not isinstance(value, Tensor):
                    found.setdefault(path, (node, key))
        return found

    def find(self, path: str) -> Place | None:
        """Return where a value stands, or would stand if its holder had it: its class may hold the first value."""
        return self._all[path] if path in self._all else self.attribute(path)

    def attribute(self, path: str) -> Place | None:
        """Return where an attribute stands, or would stand if its holder had it."""
        parent, _, key = path.rpartition(".")
        nodes = (node for node in self._state.nodes if node.path == parent and isinstance(node, Attributes))
        return next(((node, key) for node in nodes if not node.is_left_out(key)), None)

    def fills(self, path: str) -> bool:
        """Return whether a value is one for a buffer that was None."""
        place = self.find(path)
        return place is not None and place[1] in place[0].empty

    def values(self) -> dict[str, Any]:
        """Return all values at the snapshot, by path."""
        return {path: value_at(node, key, None) for path, (node, key) in self._all.items()}

    def write(self, values: Mapping[str, Any]) -> None:
        """Write values by path, in the form of those of the snapshot; those without a place are left out."""
        for path, value in values.items():
            if (place := self.find(path)) is not None:
                node, key = place
                node.write(key, in_the_form_of(value_at(node, key, value), value))


def value_at(node: Node, key: Any, default: Any) -> Any:
    """Return what a node held at the snapshot under a key; all of it for None."""
    if key is None or not isinstance(node.contents, (dict, tuple)):
        return node.contents
    return node.contents.get(key, default) if isinstance(node.contents, dict) else node.contents[key]


def value_of(place: Place) -> Any:
    """Return what stood in a place at the snapshot, or what the holder's class has there; MISSING if nothing."""
    before = value_at(*place, MISSING)
    return vars_of_class(type(place[0].holder), place[1]) if before is MISSING else before
