"""Places of a module's state that `state_dict` does not hold: attributes of its parts, non-persistent buffers."""

import inspect
from collections.abc import Iterator, Sequence
from types import CodeType, FunctionType
from typing import Any

from lightning.pytorch import LightningModule
from torch import Tensor, nn

from fedgen.federated.client_state.python_state import Attributes, Change, Node

# hooks after whose calls a module's lists are whole: lists that these read are outputs of an epoch, not state
_EPOCH_HOOKS = ("on_train_epoch_end", "on_train_epoch_start", "on_train_end", "on_round_end")

# what torch and Lightning keep in every module: hooks, registrations, and links to trainer and logs
_INTERNAL = frozenset(vars(LightningModule())) | {"_forward_module", "_compiled_call_impl", "_compiler_ctx"}


class NonPersistentBuffers(Node):
    """The non-persistent buffers of a module."""

    def note(self) -> None:
        self.contents = self.now()

    def now(self) -> dict[str, Any]:
        """The present buffers by name."""
        buffers = self.holder._buffers
        return {name: buffers.get(name) for name in sorted(self.holder._non_persistent_buffers_set)}

    def is_same(self) -> bool:
        return all(self.holder._buffers.get(name) is value for name, value in self.contents.items())

    def restore(self) -> None:
        self.holder._buffers.update(self.contents)

    def changes(self) -> Iterator[Change]:
        for name, before in self.contents.items():
            if (after := self.holder._buffers.get(name)) is not before:
                yield Change(f"{self.path}.{name}" if self.path else name, self, name, before, after)

    def children(self) -> Iterator[tuple[Any, str, Any]]:
        return ((n, f"{self.path}.{n}" if self.path else n, value) for n, value in self.contents.items())

    def write(self, key: Any, value: Any) -> None:
        self.holder._buffers[key] = value


def attributes_of(prefix: str, part: nn.Module) -> Attributes:
    """A module's own attributes, but for what torch and Lightning keep there and what its class looks after itself."""
    beginnings = tuple(own for kind in type(part).__mro__ for own in vars(kind).get("own_turn_state", ()))
    return Attributes(prefix, part, _INTERNAL, beginnings)


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


def owned_by(module: nn.Module, foreign: Sequence[Any]) -> dict[int, Any]:
    """Return what is not a module's outside state, by identity: its parts and saved tensors, and foreign objects."""
    owned = [*module.modules(), *saved_tensors(module), *foreign]
    return {id(one): one for one in owned}


def saved_tensors(module: nn.Module) -> list[Tensor]:
    """The module's own parameters and buffers that `state_dict` saves."""
    return [value for value in module.state_dict(keep_vars=True).values() if isinstance(value, Tensor)]


def no_parameters(path: str, value: Any) -> bool:
    """Whether a value is neither a parameter nor a module."""
    return not isinstance(value, (nn.Parameter, nn.Module))
