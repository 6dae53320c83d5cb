"""Snapshots of Python state: what hangs in objects, containers and tensors, restored in place.

`copy.deepcopy` of a module would copy its weights too, and put other objects in the places of those that closures and
callbacks know. Here every container that can be reached is noted once with its shallow contents; putting these back
restores the whole graph, and what compares equal costs one comparison of references.
"""

import enum
import io
import random
import re
import threading
import types
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from operator import is_
from pathlib import PurePath
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedgen.federated.client_state.state_values import (
    equal,
    read_tensor,
    same_array,
    same_tensor,
    write_array,
    write_elements,
    write_tensor,
)

GENERATORS = (torch.Generator, random.Random, np.random.Generator, np.random.RandomState)
MOST_SEEDS = 2**32  # of NumPy's RandomState, which takes no larger ones


def read_generator(generator: Any) -> Any:
    """The state of a generator, which further draws do not change."""
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, random.Random):
        return generator.getstate()
    if isinstance(generator, np.random.RandomState):
        return generator.get_state(legacy=False)
    return generator.bit_generator.state


def write_generator(generator: Any, state: Any) -> None:
    """Puts a state of `read_generator` back."""
    if isinstance(generator, random.Random):
        generator.setstate(state)
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    else:
        generator.set_state(state)


def same_generator(generator: Any, state: Any) -> bool:
    """Whether a generator is in a state of `read_generator`."""
    return _same(read_generator(generator), state)


def seed_generator(generator: Any, seed: int) -> None:
    """Seeds a generator anew."""
    if isinstance(generator, torch.Generator):
        generator.manual_seed(seed)
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = type(generator.bit_generator)(seed).state
    else:
        generator.seed(seed % MOST_SEEDS if isinstance(generator, np.random.RandomState) else seed)


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):  # of NumPy's generators, with arrays in it for all kinds but PCG64
        return one.keys() == other.keys() and all(_same(value, other[name]) for name, value in one.items())
    return bool(np.array_equal(one, other)) if isinstance(one, np.ndarray) else one == other


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

MISSING = object()


@dataclass
class Change:
    """One place whose contents changed.

    Args:
        path: dotted, from the module.
        container: the node that holds it.
        key: within the container; None for a tensor's or array's own values.
        before: the value in the snapshot.
        after: the present value.
    """

    path: str
    container: "Node"
    key: Any
    before: Any
    after: Any


class Node:
    """A container, tensor or generator with its contents at the snapshot.

    Args:
        path: dotted, from the module.
        holder: the object itself.
    """

    contents: Any
    empty: Collection[Any] = ()  # keys of buffers that are None, and of `state_dict` once they are filled

    def __init__(self, path: str, holder: Any) -> None:
        self.path, self.holder = path, holder
        self.note()

    def note(self) -> None:
        """Takes the present contents."""
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

    def now(self) -> Mapping[Any, Any]:
        """The present contents."""
        raise NotImplementedError

    def note(self) -> None:
        self.contents = dict(self.now())

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
        name = str(key) if isinstance(key, (str, int, float, bool)) else type(key).__name__  # tensors print at length
        return f"{self.path}.{name}" if self.path else name


class Attributes(Keyed):
    """The attributes of a module or object, but for some.

    Args:
        path: dotted, from the module.
        holder: the object itself.
        without: names that are left out.
        beginnings: of names that are left out.
    """

    def __init__(
        self, path: str, holder: Any, without: frozenset[str] = frozenset(), beginnings: tuple[str, ...] = ()
    ) -> None:
        self._without, self._beginnings = without, beginnings
        super().__init__(path, holder)

    def note(self) -> None:
        super().note()
        self._names = frozenset(vars(self.holder))

    def is_left_out(self, key: str) -> bool:
        """Whether an attribute of this name is none of the state."""
        return key in self._without or (bool(self._beginnings) and key.startswith(self._beginnings))

    def now(self) -> Mapping[Any, Any]:
        own = vars(self.holder)
        return {key: value for key, value in own.items() if not self.is_left_out(key)} if self._without else own

    def is_same(self) -> bool:
        own, known = vars(self.holder), self.contents
        if not all(own.get(key, MISSING) is value for key, value in known.items()):
            return False
        # the comparison of names is quick and settles most; only those left out may come and go
        return own.keys() == self._names or all(key in known or self.is_left_out(key) for key in own)

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

    def now(self) -> Mapping[Any, Any]:
        # Python's own, which a class has or inherits or does not have at all
        names = [n for kind in type(self.holder).__mro__ for n in _names(getattr(kind, "__slots__", ()))]
        return {n: getattr(self.holder, n) for n in names if n[:2] != "__" and hasattr(self.holder, n)}

    def restore(self) -> None:
        for name, value in self.contents.items():
            object.__setattr__(self.holder, name, value)

    def write(self, key: Any, value: Any) -> None:
        object.__setattr__(self.holder, key, value)


class _Mapping(Keyed):
    def now(self) -> Mapping[Any, Any]:
        return self.holder

    def restore(self) -> None:
        self.holder.clear()
        self.holder.update(self.contents)

    def write(self, key: Any, value: Any) -> None:
        self.holder[key] = value


class _Sequence(Node):
    """A list or a deque."""

    def note(self) -> None:
        self.contents = tuple(self.holder)

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

    def note(self) -> None:
        self.contents = tuple(self.holder)

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

    def note(self) -> None:
        self.contents = self._reads(self.holder)

    def is_same(self) -> bool:
        return bool(self._equals(self.holder, self.contents))

    def restore(self) -> None:
        self._writes(self.holder, self.contents)

    def changes(self) -> Iterator[Change]:
        if not self.is_same():
            yield Change(self.path, self, None, self.contents, self._reads(self.holder))

    def write(self, key: Any, value: Any) -> None:
        self._writes(self.holder, value)


class RandomState(_Whole):
    """The state of a random generator."""


class PythonState:
    """A snapshot of everything mutable that can be reached from some roots, tensors and generators among it.

    Args:
        roots: nodes to begin with, such as the attributes of modules.
        enter: asked with the path and value of everything on the way whether to look into it and to note it.
    """

    def __init__(self, roots: list[Node], enter: Callable[[str, Any], bool]) -> None:
        self.nodes: list[Node] = []
        self.opaque: dict[str, str] = {}  # what cannot be looked into: the type's name by path
        self._seen: set[int] = set()
        self._count = 0  # of what was found, looked into already or not
        self._enter = enter
        left = deque(roots)
        while left:
            node = left.popleft()
            self.nodes.append(node)
            for _, path, value in node.children():
                if self._is_new(path, value) and (found := self._node(path, value)) is not None:
                    left.append(found)

    def _is_new(self, path: str, value: Any) -> bool:
        if isinstance(value, _SIMPLE) or id(value) in self._seen or not self._enter(path, value):
            return False
        self._seen.add(id(value))
        return True

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

    def changed(self) -> list[Node]:
        """The nodes whose contents are not what they were."""
        return [node for node in self.nodes if not node.is_same()]


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
