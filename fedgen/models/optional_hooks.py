"""What modules and data modules of one's own may define for the kit, with the default of each: all is optional.

A module derives from none of these classes: it is enough that it has an attribute or method of the name.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol, cast


class FederatedModule(Protocol):
    """A LightningModule under federated averaging.

    Attributes:
        server_optimizers: places, in `configure_optimizers`, of optimizers that step at the server alone.
        server_only: beginnings of names of tensors that clients elsewhere are never sent.
        fingerprints: of frozen networks inside the module, by name, which clients elsewhere must have too.
        on_turn_start: called with the turn before a client trains.
        on_turn_end: called after it with whether the turn counts; what it changes is sent too.
        on_round_end: called with the communication interval once the module holds the server's new weights.
    """

    server_optimizers: Sequence[int] = ()
    server_only: Iterable[str] = ()
    fingerprints: Mapping[str, str] = MappingProxyType({})
    on_turn_start: Callable[[Any], object] | None = None
    on_turn_end: Callable[[bool], object] | None = None
    on_round_end: Callable[[int], object] | None = None


class FederatedData(Protocol):
    """A data module whose batches are clients' turns.

    Attributes:
        clients: who they are, each with `name` and the positions `train`; None if it cannot say.
    """

    clients: Sequence[Any] | None = None


class _Defaulted:
    """An object's attributes, and a protocol's where it has none of the name."""

    def __init__(self, found: object, protocol: type) -> None:
        self._found, self._protocol = found, protocol

    def __getattr__(self, name: str) -> Any:
        return getattr(self._found, name, getattr(self._protocol, name))


def of_module(module: object) -> FederatedModule:
    """Return a module's optional attributes, each its own or the default."""
    return cast(FederatedModule, _Defaulted(module, FederatedModule))


def of_data(data: object) -> FederatedData:
    """Return a data module's optional attributes, each its own or the default; `data` may be None."""
    return cast(FederatedData, _Defaulted(data, FederatedData))


def data_of(trainer: object) -> FederatedData:
    """Return the optional attributes of a trainer's data module, which may have none or be without one."""
    return of_data(getattr(trainer, "datamodule", None))
