"""Places of a module's state that `state_dict` does not hold: attributes of its parts, non-persistent buffers."""

import inspect
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from types import CodeType, FunctionType
from typing import Any

from lightning.pytorch import LightningModule
from torch import Tensor, nn

from fedgen.federated.client_state.python_state import (
    MISSING,
    Attributes,
    Change,
    Node,
    PythonState,
    vars_of_class,
)
from fedgen.federated.client_state.state_values import in_the_form_of
from fedgen.federated.lightning.lightning_internals import KEPT_IN_MODULES, buffers_in, unsaved_buffers

# hooks after whose calls a module's lists are whole: lists that these read are outputs of an epoch, not state
_EPOCH_HOOKS = ("on_train_epoch_end", "on_train_epoch_start", "on_train_end", "on_round_end")

Place = tuple[Node, Any]  # what holds a value and its key there; None for all that the node holds


class UnsavedBuffers(Node):
    """The buffers of a module that `state_dict` does not hold: non-persistent ones, and those that are None so far."""

    def note(self) -> None:
        unsaved = unsaved_buffers(self.holder)
        self.empty = {name for name, value in buffers_in(self.holder).items() if value is None} - unsaved
        self._names = sorted(unsaved | self.empty)
        self.contents = self.now()

    def now(self) -> dict[str, Any]:
        """The present buffers by name."""
        buffers = buffers_in(self.holder)
        return {name: buffers.get(name) for name in self._names}

    def is_same(self) -> bool:
        return all(buffers_in(self.holder).get(name, MISSING) is value for name, value in self.contents.items())

    def restore(self) -> None:
        buffers_in(self.holder).update(self.contents)

    def changes(self) -> Iterator[Change]:
        for name, before in self.contents.items():
            if (after := buffers_in(self.holder).get(name)) is not before:
                yield Change(f"{self.path}.{name}" if self.path else name, self, name, before, after)

    def children(self) -> Iterator[tuple[Any, str, Any]]:
        return ((n, f"{self.path}.{n}" if self.path else n, value) for n, value in self.contents.items())

    def write(self, key: Any, value: Any) -> None:
        buffers_in(self.holder)[key] = value


def attributes_of(prefix: str, part: nn.Module) -> Attributes:
    """A module's own attributes, but for what torch and Lightning keep there and what its class looks after itself."""
    beginnings = tuple(own for kind in type(part).__mro__ for own in vars(kind).get("own_turn_state", ()))
    return Attributes(prefix, part, KEPT_IN_MODULES, beginnings)


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


def by_identity(objects: Iterable[Any]) -> dict[int, Any]:
    """Return objects by their identity, which holds as long as the dictionary keeps them."""
    return {id(one): one for one in objects}


def saved_tensors(module: nn.Module) -> list[Tensor]:
    """The module's own parameters and buffers that `state_dict` saves."""
    return [value for value in module.state_dict(keep_vars=True).values() if isinstance(value, Tensor)]


def no_parameters(path: str, value: Any) -> bool:
    """Whether a value is neither a parameter nor a module."""
    return not isinstance(value, (nn.Parameter, nn.Module))


class Places:
    """Places of the values of a snapshot, by their dotted paths.

    Args:
        state: the snapshot.
    """

    def __init__(self, state: PythonState) -> None:
        self._state = state

    @cached_property
    def _all(self) -> dict[str, Place]:
        """Places of everything by path, of containers themselves, too."""
        found: dict[str, Place] = {node.path: (node, None) for node in self._state.nodes}
        for node in self._state.nodes:
            for key, path, value in node.children():
                if not isinstance(value, Tensor):
                    found.setdefault(path, (node, key))
        return found

    def find(self, path: str) -> Place | None:
        """Return where a value stands, or would stand if its holder had it: its class may hold the first value."""
        return self._all[path] if path in self._all else self.attribute(path)

    def attribute(self, path: str) -> Place | None:
        """Return where an attribute stands, or would stand if its holder had it; None without a holder, and for what
        is no state of it.
        """
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
