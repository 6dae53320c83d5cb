"""Snapshots of Python state: what hangs in modules, objects, containers and tensors, restored in place.

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
from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import is_
from pathlib import PurePath
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fedgen.federated.client_state.state_values import equal, in_the_form_of, same_array, same_nested, same_tensor
from fedgen.federated.lightning.lightning_internals import BUFFERS, KEPT_IN_MODULES, UNSAVED

MOST_CONTAINERS = 20_000  # more are taken for data, not for state of a training step

_SIMPLE = (
    *(bool, int, float, complex, str, bytes, type(None), type, type(Ellipsis), type(NotImplemented), range, slice),
    *(types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType, types.GenericAlias),
    *(torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format),
    *(enum.Enum, PurePath, re.Pattern, np.generic, np.dtype, weakref.ref, property),
)
_RUNNING = (io.IOBase, threading.Thread, types.GeneratorType, types.CoroutineType)
_FOREIGN = ("lightning", "pytorch_lightning", "lightning_fabric", "torchmetrics", "logging", "concurrent", "asyncio")
_FOREIGN_PARTS = ("torch._", "torch.utils.data", "torch.fx", "torch.jit", "torch.distributed", "multiprocessing")
_FUNCTIONS = ("partial", "method-wrapper", "wrapper_descriptor", "cached_property")  # types of other forms of them
_UNCHANGING = ("builtins", "_thread", "functools", "operator", "datetime", "decimal", "fractions", "uuid", "zoneinfo")

GENERATORS = (torch.Generator, random.Random, np.random.Generator, np.random.RandomState)
WHOLE = (Tensor, np.ndarray, set, bytearray, *GENERATORS)  # what is read, put back and compared as a whole
MOST_SEEDS = 2**32  # of NumPy's RandomState, which takes no larger ones

KEYS = (str, int, float, bool)  # that name what they stand for in a path; tensors print at length
MISSING = object()


def read(holder: Any) -> Any:
    """Return the contents of one of `WHOLE`, which later changes and draws leave alone."""
    if isinstance(holder, Tensor):
        return holder.detach().clone()
    if isinstance(holder, np.ndarray):
        return np.copy(holder)
    if isinstance(holder, (set, bytearray)):
        return type(holder)(holder)
    if isinstance(holder, torch.Generator):
        return holder.get_state()
    if isinstance(holder, random.Random):
        return holder.getstate()
    if isinstance(holder, np.random.RandomState):
        return holder.get_state(legacy=False)
    return holder.bit_generator.state


@torch.no_grad()
def write(holder: Any, contents: Any) -> None:
    """Put contents of `read` back in place, whatever form the holder has by now."""
    if isinstance(holder, Tensor):
        if holder.shape == contents.shape and holder.dtype == contents.dtype:
            holder.copy_(contents)
        else:
            holder.data = contents.clone()
    elif isinstance(holder, np.ndarray):
        if holder.shape != contents.shape:  # resized in place
            holder.resize(contents.shape, refcheck=False)
        holder[...] = contents
    elif isinstance(holder, (set, bytearray)):
        holder.clear()
        (holder.extend if isinstance(holder, bytearray) else holder.update)(contents)
    elif isinstance(holder, random.Random):
        holder.setstate(contents)
    elif isinstance(holder, np.random.Generator):
        holder.bit_generator.state = contents
    else:
        holder.set_state(contents)


@dataclass
class Change:
    """One place whose contents changed."""

    path: str
    node: "Node"
    key: Any
    before: Any
    after: Any

    @property
    def was_empty(self) -> bool:
        return self.before is MISSING or self.before is None  # arrays do not compare as a whole


class _Noted:
    """A container, tensor or generator with its contents at the snapshot."""

    empty: Collection[Any] = ()  # keys of buffers that are None, and of `state_dict` once they are filled

    def __init__(self, path: str, holder: Any, contents: Any = MISSING) -> None:
        self.path, self.holder = path, holder
        self.contents = self.now() if contents is MISSING else contents

    def now(self) -> Any:
        """The present contents, in a form that later changes leave alone."""
        return tuple(self.holder)

    def path_of(self, key: Any) -> str:
        name = str(key) if isinstance(key, KEYS) else type(key).__name__
        return f"{self.path}.{name}" if self.path else name

    def children(self) -> Iterator[tuple[Any, str, Any]]:
        """Yield the key, path and value of everything in it."""
        items = self.contents.items() if isinstance(self.contents, dict) else enumerate(self.contents)
        return ((key, self.path_of(key), value) for key, value in items)

    def before(self, key: Any) -> Any:
        """Return the value under a key at the snapshot, all of the contents for None; MISSING if there was none."""
        if key is None:
            return self.contents
        return self.contents.get(key, MISSING) if isinstance(self.contents, dict) else self.contents[key]

    def after(self, key: Any) -> Any:
        now = self.now()
        return (now if isinstance(now, dict) else dict(enumerate(now))).get(key, MISSING)


class Keyed(_Noted):
    """A dictionary, or another mapping that can change."""

    def now(self) -> dict[Any, Any]:
        return dict(self.holder)

    def is_same(self) -> bool:
        """Compare the contents with the snapshot's by reference."""
        now = self.holder if type(self) is Keyed else self.now()  # a plain mapping need not be copied
        return len(now) == len(self.contents) and all(now.get(k, MISSING) is v for k, v in self.contents.items())

    def changes(self) -> Iterator[Change]:
        now = self.now()
        for key in (*self.contents, *(key for key in now if key not in self.contents)):
            was, after = self.contents.get(key, MISSING), now.get(key, MISSING)
            if was is not after and not equal(was, after):
                yield Change(self.path_of(key), self, key, self.before(key), after)

    def restore(self) -> None:
        self.holder.clear()
        self.holder.update(self.contents)

    def write(self, key: Any, value: Any) -> None:
        self.holder[key] = value


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
        return key in self._without or key.startswith(self._beginnings)

    def now(self) -> dict[Any, Any]:
        without, apart = self._without, self._beginnings
        return {k: v for k, v in vars(self.holder).items() if k not in without and not k.startswith(apart)}

    def before(self, key: Any) -> Any:
        """Return the value at the snapshot, or the simple value that the class gave until one was set."""
        if key is None or key in self.contents:
            return super().before(key)
        value = next((vars(base)[key] for base in type(self.holder).__mro__ if key in vars(base)), MISSING)
        return value if isinstance(value, (bool, int, float, str, type(None))) else MISSING

    def restore(self) -> None:
        own = vars(self.holder)
        for key in [key for key in own if key not in self.contents and not self.is_left_out(key)]:
            del own[key]
        own.update(self.contents)

    def write(self, key: Any, value: Any) -> None:
        vars(self.holder)[key] = value


class _Slots(Keyed):
    """The slots of an object that has no dictionary."""

    def now(self) -> dict[Any, Any]:
        # Python's own, which a class has or inherits or does not have at all; one name may stand for a tuple of it
        slots = [getattr(kind, "__slots__", ()) for kind in type(self.holder).__mro__]
        names = [name for own in slots for name in ((own,) if isinstance(own, str) else own)]
        return {n: getattr(self.holder, n) for n in names if n[:2] != "__" and hasattr(self.holder, n)}

    def restore(self) -> None:
        for name, value in self.contents.items():
            self.write(name, value)

    def write(self, key: Any, value: Any) -> None:
        object.__setattr__(self.holder, key, value)


class UnsavedBuffers(Keyed):
    """The buffers of a module that `state_dict` does not hold: non-persistent ones, and those that are None so far."""

    def __init__(self, path: str, holder: dict[str, Tensor | None], unsaved: set[str]) -> None:
        self.empty = {name for name, value in holder.items() if value is None} - unsaved
        self._names = sorted(unsaved | self.empty)
        super().__init__(path, holder)

    def now(self) -> dict[str, Any]:
        return {name: self.holder.get(name) for name in self._names}

    def is_same(self) -> bool:
        return all(self.holder.get(name, MISSING) is value for name, value in self.contents.items())

    def changes(self) -> Iterator[Change]:  # by reference
        for name, before in self.contents.items():
            if (after := self.holder.get(name)) is not before:
                yield Change(self.path_of(name), self, name, before, after)

    def restore(self) -> None:
        self.holder.update(self.contents)


class _Sequence(_Noted):
    """A list or a deque."""

    def is_same(self) -> bool:
        return len(self.holder) == len(self.contents) and all(map(is_, self.holder, self.contents))

    def changes(self) -> Iterator[Change]:
        if len(self.holder) != len(self.contents):
            yield Change(self.path, self, None, self.contents, tuple(self.holder))
            return
        for place, (before, after) in enumerate(zip(self.contents, self.holder)):
            if before is not after and not equal(before, after):
                yield Change(self.path_of(place), self, place, before, after)

    def restore(self) -> None:
        self.write(None, self.contents)

    def write(self, key: Any, value: Any) -> None:
        if key is None:
            self.holder.clear()
            self.holder.extend(value)
        else:
            self.holder[key] = value


class _Constant(_Sequence):
    """A tuple, which cannot change, with contents that can."""

    def is_same(self) -> bool:
        return True


class _Whole(_Noted):
    """Something whose contents are read, compared and put back as a whole."""

    def now(self) -> Any:
        return read(self.holder)

    def children(self) -> Iterator[tuple[Any, str, Any]]:
        return iter(())

    def is_same(self) -> bool:
        if isinstance(self.holder, Tensor):
            return same_tensor(self.holder, self.contents)
        if isinstance(self.holder, np.ndarray):
            return same_array(self.holder, self.contents)
        now = read(self.holder) if isinstance(self.holder, GENERATORS) else self.holder
        return same_nested(now, self.contents) if isinstance(now, (Tensor, dict)) else bool(now == self.contents)

    def changes(self) -> Iterator[Change]:
        if not self.is_same():
            yield Change(self.path, self, None, self.contents, self.now())

    def restore(self) -> None:
        write(self.holder, self.contents)

    def seed(self, seed: int) -> None:
        generator = self.holder
        if isinstance(generator, torch.Generator):
            generator.manual_seed(seed)
        elif isinstance(generator, np.random.Generator):
            generator.bit_generator.state = type(generator.bit_generator)(seed).state
        else:
            generator.seed(seed % MOST_SEEDS if isinstance(generator, np.random.RandomState) else seed)

    def write(self, key: Any, value: Any) -> None:
        write(self.holder, value)


ISOLATED = nn.Module, nn.Parameter, Optimizer  # otherwise, so that a snapshot does not enter them
Node = Keyed | _Sequence | _Whole
Place = tuple[Node, Any]  # what holds a value and its key there; None for all that the node holds
PLAIN: dict[type, type[Keyed | _Sequence]] = {dict: Keyed, list: _Sequence, tuple: _Constant}


class PythonState:
    """A snapshot of everything mutable that can be reached from some roots, tensors and generators among it."""

    def __init__(
        self,
        roots: Sequence[Node],
        enter: Callable[[str, Any], bool] = lambda path, value: not isinstance(value, ISOLATED),
        parts: Sequence[tuple[str, nn.Module]] = (),
        owned: Collection[int] = (),
        asks_all: bool = True,
    ) -> None:
        self.opaque: dict[str, str] = {}  # what cannot be looked into: the type's name by path
        self._count = 0
        self._nodes: list[Node] = list(roots)
        # modules with their own attributes, the names of all of these, and prefixes of names that are not state
        self._parts: list[tuple[str, nn.Module, dict[str, Any], frozenset[str], tuple[str, ...]]] = []
        self._containers: dict[type, list[tuple[str, Any, Any]]] = {kind: [] for kind in PLAIN}
        left = self._read_parts(parts)
        left.extend((path, value) for node in self._nodes for _, path, value in node.children())
        seen: set[int] = set()
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

    def _read_parts(self, parts: Sequence[tuple[str, nn.Module]]) -> deque[tuple[str, Any]]:
        """Note modules' own attributes and unsaved buffers; return the attributes by path."""
        values = deque[tuple[str, Any]]()
        beginnings: dict[type, tuple[str, ...]] = {}
        for path, part in parts:
            own, kind, before = vars(part), type(part), f"{path}." if path else ""
            if kind not in beginnings:
                beginnings[kind] = tuple(one for base in kind.__mro__ for one in vars(base).get("own_turn_state", ()))
            apart = beginnings[kind]
            contents = {k: v for k, v in own.items() if k not in KEPT_IN_MODULES and not k.startswith(apart)}
            self._parts.append((path, part, contents, frozenset(own), apart))
            values.extend((before + key, value) for key, value in contents.items())
            if own[UNSAVED] or any(value is None for value in own[BUFFERS].values()):
                self._nodes.append(UnsavedBuffers(path, own[BUFFERS], own[UNSAVED]))
        return values

    def _node(self, path: str, value: Any) -> Node | None:
        if self._count >= MOST_CONTAINERS:
            self.opaque.setdefault(path.split(".")[0], f"more than {MOST_CONTAINERS} objects")
            return None
        self._count += 1
        if isinstance(value, WHOLE):
            return _Whole(path, value)
        if isinstance(value, MutableMapping):
            return Keyed(path, value)
        if isinstance(value, (list, deque)):
            return _Sequence(path, value)
        if isinstance(value, (tuple, frozenset)):
            return _Constant(path, value)
        return self._object(path, value)

    def _object(self, path: str, value: Any) -> Node | None:
        kind, module = type(value), type(value).__module__ or ""
        if module.split(".")[0] in _FOREIGN or module.startswith(_FOREIGN_PARTS) or kind.__name__ in _FUNCTIONS:
            return None
        if isinstance(value, _RUNNING) or (isinstance(value, Iterator) and not hasattr(value, "__dict__")):
            self.opaque[path] = f"{module}.{kind.__qualname__}"
        elif hasattr(value, "__dict__"):
            return Attributes(path, value)
        elif any(hasattr(base, "__slots__") for base in kind.__mro__[:-1]):
            return _Slots(path, value)
        elif module not in _UNCHANGING and not hasattr(kind, "__members__"):  # as pybind11's enumerations have
            self.opaque[path] = f"{module}.{kind.__qualname__}"
        return None

    @cached_property
    def nodes(self) -> list[Node]:
        parts = [Attributes(path, part, KEPT_IN_MODULES, apart, own) for path, part, own, _, apart in self._parts]
        plain = [kind(*one) for plain, kind in PLAIN.items() for one in self._containers[plain]]
        return [*parts, *plain, *self._nodes]

    @property
    def random(self) -> list[_Whole]:
        return [node for node in self._nodes if isinstance(node, _Whole) and isinstance(node.holder, GENERATORS)]

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
                found.append(Keyed(path, holder, contents))
        return found + [node for node in self._nodes if not node.is_same()]

    def restore(self) -> None:
        for node in self.changed():
            node.restore()

    @cached_property
    def _places(self) -> dict[str, Place]:
        """Places of everything that can be written, of containers themselves, too."""
        nodes = [node for node in self.nodes if not isinstance(node, _Constant)]
        found: dict[str, Place] = {node.path: (node, None) for node in nodes}
        for node in nodes:
            for key, path, value in node.children():
                if not isinstance(value, Tensor):
                    found.setdefault(path, (node, key))
        return found

    def find(self, path: str) -> Place | None:
        """Return where a value stands, or would stand if its holder had it: its class may hold the first value."""
        return self._places[path] if path in self._places else self.attribute(path)

    def attribute(self, path: str) -> Place | None:
        parent, _, key = path.rpartition(".")
        nodes = (node for node in self.nodes if node.path == parent and isinstance(node, Attributes))
        return next(((node, key) for node in nodes if not node.is_left_out(key)), None)

    def value(self, path: str) -> Any:
        node, key = self._places.get(path, (None, None))
        return None if node is None else node.before(key)

    def fills(self, path: str) -> bool:
        """Return whether a value is one for a buffer that was None."""
        place = self.find(path)
        return place is not None and place[1] in place[0].empty

    def write(self, values: Mapping[str, Any]) -> None:
        """Write values by path, in the form of those of the snapshot; those without a place are left out."""
        for path, value in values.items():
            if (place := self.find(path)) is not None:
                node, key = place
                node.write(key, in_the_form_of(node.before(key), value))
