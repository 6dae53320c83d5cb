"""The state of a federation in a checkpoint, beside the server's model and optimizers."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

from fedgen.federated.client_state.exchange import Exchange
from fedgen.federated.client_state.memory import ClientMemory
from fedgen.federated.left_out import LeftOut, LeftOutEarlier, RemarkedOn
from fedgen.io.field_types import conforms
from fedgen.io.tensor_files import is_dense, kind_of, tensors_in

CHECKPOINT_KEY, CHECKPOINT_VERSION = "fedavg", 2
OLD_CLOCKS = 1  # before version 0.2, when global_step counted all clients' steps
Models = Mapping[int, Mapping[str, Tensor]]  # tensors by client and name
_PARTS = ("local", "server_optimizer", "algorithm")


def pack_state(memory: ClientMemory, parts: Mapping[str, Any]) -> dict[str, Any]:
    states = {name: part.state_dict() for name, part in parts.items()}
    return {"version": CHECKPOINT_VERSION, **memory.state_dict(), **states}


def merge_states(states: Sequence[Mapping[str, Any]], owners: Mapping[int, int]) -> dict[str, Any]:
    """Return one state of several ranks': what is kept of a client is its own rank's."""
    merged = {**states[0], **{part: dict(states[0][part]) for part in ("local", "algorithm", "outside", "compression")}}
    places = ("", "personal"), ("local", "clients"), ("algorithm", "clients"), ("outside", "personal")
    for part, key in (*places, ("compression", "clients")):
        target = merged[part] if part else merged
        if key in target:
            target[key] = {
                client: value
                for rank, state in enumerate(states)
                for client, value in (state[part] if part else state).get(key, {}).items()
                if owners.get(client, rank) == rank
            }
    return merged


def overlay(personal: Models, models: Models) -> dict[int, Mapping[str, Tensor]]:
    """Return tensors of clients' own models: what clients keep, and over it the models an algorithm trains for them."""
    return {client: {**personal.get(client, {}), **models.get(client, {})} for client in {**personal, **models}}


def own_models(state: Mapping[str, Any]) -> dict[int, Mapping[str, Tensor]]:
    """Tensors of clients' own models in a packed state, by client and name."""
    algorithm = state.get("algorithm", {})
    return overlay(state.get("personal", {}), algorithm["clients"] if algorithm.get("scores_own") else {})


def unpack_state(state: Any, memory: ClientMemory, parts: Mapping[str, Any], exchange: Exchange) -> None:
    check_packed(state, exchange.live, parts)
    memory.load_state_dict(state, exchange)
    for name, part in parts.items():
        try:
            part.load_state_dict(state[name])
        except (LookupError, TypeError, AttributeError, ValueError, RuntimeError) as error:
            raise ValueError(f"its federation state is damaged: {name} ({error!r})") from error


def check_packed(state: Any, tensors: Mapping[str, Any], parts: Iterable[str] = _PARTS) -> None:
    version = state.get("version") if isinstance(state, Mapping) else None
    if type(version) is not int or version not in (OLD_CLOCKS, CHECKPOINT_VERSION):
        raise ValueError(
            f"its federation state has version {version!r}, this release reads {OLD_CLOCKS} and {CHECKPOINT_VERSION};"
            " resume it with the release that wrote it"
        )
    if fault := next(_faults(state, tensors, parts), None):
        raise ValueError(f"its federation state is damaged: {fault}")


_PACKED: dict[str, tuple[Any, str]] = {  # of each part its form, and the fault of another form
    "iterations": (dict[int, int], "iterations are not counts by client"),
    "personal": (dict[int, dict[Any, Any]], "personal tensors are not by client and name"),
    "left_out": (list[LeftOut | LeftOutEarlier], "clients left out are not listed by round, client, name and reason"),
    "remarks": (list[RemarkedOn], "remarks on clients are not listed by round, client, name, reason and kind"),
}


def _faults(state: Mapping[str, Any], tensors: Mapping[str, Any], parts: Iterable[str]) -> Iterator[str]:
    missing = {"iterations", "personal", "left_out", *parts} - state.keys()
    if missing:
        yield f"it lacks {', '.join(sorted(missing))}"
    for name, (form, fault) in _PACKED.items():
        if name in state and not conforms(state[name], form):  # older states have no remarks
            yield fault
    algorithm = state.get("algorithm", {})
    if not isinstance(algorithm, Mapping):
        yield "what a client algorithm keeps has no names"
    elif algorithm.get("scores_own") and not conforms(algorithm.get("clients"), dict[int, dict[Any, Any]]):
        yield "clients' own models are not by client and name"
    for client, slot in own_models(state).items():
        for name, tensor in slot.items():
            own = tensors.get(name, tensor)
            if not isinstance(tensor, Tensor) or tensor.shape != own.shape or kind_of(tensor) != kind_of(own):
                yield f"client {client} has {name} of another shape or kind than the model"
    local = state["local"]
    if not conforms(local.get("clients") if isinstance(local, Mapping) else None, dict[int, Any]):
        yield "what clients' optimizers keep is not by client"
    if not all(is_dense(tensor) and tensor.isfinite().all() for tensor in tensors_in(state)):
        yield "it holds NaN, infinity, or a tensor of more numbers than are stored"
