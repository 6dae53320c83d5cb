"""What a checkpoint holds of a federation beside the server's model and optimizers."""

from collections.abc import Mapping, Sequence
from typing import Any

from lightning.pytorch.utilities.exceptions import MisconfigurationException

from fedgen.federated.exchange import Exchange
from fedgen.federated.memory import ClientMemory

CHECKPOINT_KEY, CHECKPOINT_VERSION = "fedavg", 1


def pack_state(memory: ClientMemory, parts: Mapping[str, Any]) -> dict[str, Any]:
    """Plain types and tensors.

    Args:
        memory: of the clients.
        parts: by name, anything with `state_dict()`.
    """
    states = {name: part.state_dict() for name, part in parts.items()}
    return {"version": CHECKPOINT_VERSION, **memory.state_dict(), **states}


def merge_states(states: Sequence[Mapping[str, Any]], owners: Mapping[int, int]) -> dict[str, Any]:
    """One state of several ranks': what is kept of a client is its own rank's.

    Args:
        states: of `pack_state`, one a rank.
        owners: the rank of each client; clients that are not named have what any rank has of them.
    """
    merged = {**states[0], "local": dict(states[0]["local"]), "algorithm": dict(states[0]["algorithm"])}
    for part, key in (((), "personal"), (("local",), "clients"), (("algorithm",), "clients")):
        found: dict[int, Any] = {}
        for rank, state in enumerate(states):
            kept = (state[part[0]] if part else state).get(key, {})
            found |= {client: value for client, value in kept.items() if owners.get(client, rank) == rank}
        target = merged[part[0]] if part else merged
        if key in target:
            target[key] = found
    return merged


def unpack_state(state: Mapping[str, Any], memory: ClientMemory, parts: Mapping[str, Any], exchange: Exchange) -> None:
    """Restores what `pack_state` packed.

    Raises:
        MisconfigurationException: for a checkpoint of another version, or with other personal tensors.
    """
    if state["version"] != CHECKPOINT_VERSION:
        raise MisconfigurationException(
            f"the checkpoint's federation state has version {state['version']}, this release reads"
            f" {CHECKPOINT_VERSION}; resume it with the release that wrote it"
        )
    memory.load_state_dict(state, exchange)
    for name, part in parts.items():
        part.load_state_dict(state[name])
