"""Optional hooks that modules, data modules and strategies of one's own may define for the kit, with the default of
each.

All is optional, and none derives from these classes: it is enough to have an attribute or method of the name.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol, cast

from torch import Tensor


class FederatedModule(Protocol):
    """A LightningModule under federated averaging.

    Attributes:
        server_optimizers: places, in `configure_optimizers`, of optimizers that step at the server alone.
        server_only: beginnings of names of tensors that clients elsewhere are never sent.
        unexchanged: beginnings of names of tensors that the model looks after itself.
        fingerprints: of frozen networks inside the module, by name, which clients elsewhere must have too.
        generator_trained_by: "clients" or "server".
        optimised_on: embeddings that the training looks at; scores in them prove little.
        on_turn_start: called with the turn before a client trains.
        on_turn_end: called after it with whether the turn counts; what it changes is sent too.
        on_round_end: called with the communication interval once the module holds the server's new weights.
    """

    server_optimizers: Sequence[int] = ()
    server_only: Iterable[str] = ()
    unexchanged: Iterable[str] = ()
    fingerprints: Mapping[str, str] = MappingProxyType({})
    generator_trained_by: str = "clients"
    optimised_on: Sequence[str] = ()
    on_turn_start: Callable[[Any], object] | None = None
    on_turn_end: Callable[[bool], object] | None = None
    on_round_end: Callable[[int], object] | None = None


class ModulePart(Protocol):
    """A part of a module: a loss, a moving average, a queue.

    Attributes:
        exchanged: True as other tensors are, False if the part looks after its own, "personal" if clients keep them.
        shares_images: whether it looks at clients' images elsewhere than in their own turns.
    """

    exchanged: bool | str = True
    shares_images: bool = False


class FederatedData(Protocol):
    """A data module whose batches are clients' turns.

    Attributes:
        clients: who they are, each with `name` and the positions `train`; None if it cannot say.
        image_shape: channels, height and width; None for what is no image, or not known.
        batch_size: of the clients; None if it is not known.
        label_counts: gives the labels of all clients elsewhere, int64 [classes].
        is_one_client: whether this process is one client of a deployment.
        give_references: gives a loss what it needs to know of clients elsewhere.
        take_metrics: gives what clients elsewhere logged since the last call.
        left_out: clients elsewhere that did not answer.
    """

    clients: Sequence[Any] | None = None
    image_shape: tuple[int, ...] | None = None
    batch_size: int | None = None
    label_counts: Callable[[], Tensor] | None = None
    is_one_client: bool = False
    give_references: Callable[[Any, Any], object] | None = None
    take_metrics: Callable[[], Mapping[str, float]] = dict
    left_out: Sequence[Mapping[str, Any]] = ()


class TurnTakingStrategy(Protocol):
    """A strategy that trains clients in turns; Lightning's own have none of this.

    Attributes:
        calls_round_end: whether it calls modules' `on_turn_start`, `on_turn_end` and `on_round_end`.
        client_iteration: of the client that trains, since training began; None elsewhere.
        communication_interval: local iterations a turn; None elsewhere.
        personal: shell patterns of tensors that stay with clients.
        in_round: whether the model is not the server's.
        local_only: whether nothing is exchanged.
        bytes_masked: sent by a client in a round under secure aggregation; None without.
        report: who was left out or remarked on.
    """

    calls_round_end: bool = False
    client_iteration: int | None = None
    communication_interval: int | None = None
    personal: Sequence[str] = ()
    in_round: bool = False
    local_only: bool = False
    bytes_masked: int | None = None
    report: Sequence[Mapping[str, Any]] = ()


class _Defaulted:
    """An object's attributes, and a protocol's where it has none of the name."""

    def __init__(self, found: object, protocol: type) -> None:
        self._found, self._protocol = found, protocol

    def __getattr__(self, name: str) -> Any:
        return getattr(self._found, name, getattr(self._protocol, name))


def of_module(module: object) -> FederatedModule:
    """Return a module's optional attributes, each its own or the default."""
    return cast(FederatedModule, _Defaulted(module, FederatedModule))


def of_part(part: object) -> ModulePart:
    """Return the optional attributes of a part of a module, each its own or the default."""
    return cast(ModulePart, _Defaulted(part, ModulePart))


def of_data(data: object) -> FederatedData:
    """Return a data module's optional attributes, each its own or the default; `data` may be None."""
    return cast(FederatedData, _Defaulted(data, FederatedData))


def data_module_of(trainer: object) -> Any:
    """Return a trainer's data module; None if it was given loaders."""
    return getattr(trainer, "datamodule", None)  # which Lightning sets where there is one


def data_of(trainer: object) -> FederatedData:
    """Return the optional attributes of a trainer's data module, which may have none or be without one."""
    return of_data(data_module_of(trainer))


def of_strategy(strategy: object) -> TurnTakingStrategy:
    """Return a strategy's optional attributes, each its own or the default."""
    return cast(TurnTakingStrategy, _Defaulted(strategy, TurnTakingStrategy))
