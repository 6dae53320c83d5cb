"""Clients' agreement on a masked sum: each helps to unmask only what all whose numbers are in it were asked for alike.

SecAgg+ hides a summand from a server that says the same to everybody. One that says to all clients but one to round
their numbers to nothing, or to one half of them that a client is there and to the other that it is not, has that client
alone in the sum. So a client takes no settings that let a server do this, notes what it is asked for, and tells every
other client the hash of it, under the key that the two share in this exchange. It gives no share of a mask before it
has read the same of everybody whose numbers are in the sum.

Nothing here sees nodes that a server makes up: they have keys of their own and agree to anything.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cryptography.fernet import InvalidToken
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.secure_aggregation.crypto.symmetric_encryption import decrypt, encrypt
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, RECORD_KEY_STATE, Key

from fedgen.flower.client.policy import RefusedError
from fedgen.flower.wire.serialization import Writer
from fedgen.io.tensor_files import hash_tensors

STEPS = 1 << 22  # of the whole numbers that an entry is rounded to
RANGE_OF_MASKS = 1 << 32
MOST = RANGE_OF_MASKS // STEPS - 1  # clients whose sums do not wrap around
NOTE = "fedgen-sum"  # the record of what a client is asked for, beside the masks and as lasting
SETTINGS = "fedgen-settings"
FROM, SEALED = "fedgen-from", "fedgen-agreed"  # in messages: whose seals, or for whom, and the seals


@dataclass(frozen=True)
class AskedSum:
    """The sum that a client gave numbers for: its name or "", clients by node, whether all, and a hash of it."""

    what: str
    names: Mapping[int, str]
    whole: bool
    common: str


def hash_of(value: Any) -> str:
    """A hash of plain values and tensors, the same at every client that was sent them."""
    writer = Writer()
    text = json.dumps(writer.write(value), separators=(",", ":"))
    return hash_tensors([(str(place), tensor) for place, tensor in enumerate(writer.tensors)], text)


def check_settings(asked: Mapping[str, Any], state: RecordDict) -> None:
    """Refuses settings of an exchange under which one client's numbers could be told apart, and keeps the others."""
    # with shares of more than half of the clients, no two groups of them can be told different things of one: both its
    # secrets together need more shares than there are
    state.config_records.pop(NOTE, None)
    clients, most = asked.get(Key.SAMPLE_NUMBER), asked.get(Key.MAX_WEIGHT)
    if type(clients) is not int or not 2 <= clients <= MOST:
        raise RefusedError(f"a masked sum is over 2 to {MOST} clients, and this one is said to be over {clients!r}")
    threshold = asked.get(Key.THRESHOLD)
    if type(threshold) is not int or not clients < 2 * threshold <= 2 * clients:
        raise RefusedError(
            f"a masked sum of {clients} clients is unmasked by more than half of them, and this one by {threshold!r}"
        )
    steps = {Key.CLIPPING_RANGE: 1.0, Key.TARGET_RANGE: STEPS, Key.MOD_RANGE: RANGE_OF_MASKS}
    for name, value in {Key.SHARE_NUMBER: clients, **steps}.items():
        if asked.get(name) != value:
            raise RefusedError(f"a masked sum has {name}={value}, and this one {asked.get(name)!r}")
    if type(most) is not float or not 0 < most < math.inf:
        raise RefusedError(f"a masked sum has a largest weight, and this one {most!r}")
    settings = {name: asked[name] for name in sorted((Key.SAMPLE_NUMBER, Key.THRESHOLD, Key.MAX_WEIGHT))}
    state.config_records[SETTINGS] = ConfigRecord(settings)


def note_sum(state: RecordDict, made: AskedSum) -> None:
    """Keeps what a client gives its numbers for, as long as the masks."""
    nodes, names = list(made.names), list(made.names.values())
    state.config_records[NOTE] = ConfigRecord(
        {"what": made.what, "nodes": nodes, "names": names, "whole": made.whole, "common": made.common}
    )


def noted(state: RecordDict) -> AskedSum | None:
    """Return what the client has given its numbers for in this exchange; None if it has not."""
    record: Any = state.config_records.get(NOTE)
    if record is None:
        return None
    names = dict(zip(record["nodes"], record["names"], strict=True))
    return AskedSum(record["what"], names, record["whole"], record["common"])


def seal(reply: Message, state: RecordDict) -> None:
    """Puts beside masked numbers, for each other client of the exchange, what was asked for."""
    made = noted(state)
    if made is None:
        return
    keys, own = _keys(state), _own(state)
    record = reply.content.config_records[RECORD_KEY_CONFIGS]
    record[FROM] = list(keys)
    record[SEALED] = [encrypt(key, _words(own, other, made, state)) for other, key in keys.items()]


def check_unmasking(asked: Mapping[str, Any], state: RecordDict) -> tuple[AskedSum, list[int]]:
    """Return what is summed over which nodes; refuses fewer than two, or what others were asked for otherwise."""
    made, own = noted(state), _own(state)
    if made is None:
        raise RefusedError("this client has given no numbers for a sum that is to be unmasked")
    there, gone = ([int(node) for node in asked[name]] for name in (Key.ACTIVE_NODE_ID_LIST, Key.DEAD_NODE_ID_LIST))
    if len({*there, *gone}) != len(there) + len(gone):
        raise RefusedError("a client is said to be in a masked sum twice, or to have left it and to be in it")
    if len(there) < 2 or own not in there:
        raise RefusedError("a masked sum of fewer than two clients, or without this one, would show one")
    if made.names and (unknown := sorted({*there, *gone} - made.names.keys())):
        raise RefusedError(
            f"the sum of {made.what} is over node {unknown[0]}, which nobody named when it was asked for"
        )
    if made.whole and (missing := made.names.keys() - set(there)):
        names = ", ".join(sorted(made.names[node] for node in missing))
        raise RefusedError(f"{made.what} is summed over all clients or none, and {names} would be missing")
    _check_seals(asked, state, made, [node for node in there if node != own])
    return made, there


def _check_seals(asked: Mapping[str, Any], state: RecordDict, made: AskedSum, others: Iterable[int]) -> None:
    keys, own = _keys(state), _own(state)
    told, seals = asked.get(FROM), asked.get(SEALED)
    if not isinstance(told, list) or not isinstance(seals, list) or len(told) != len(seals):
        raise RefusedError("the server does not pass on what other clients were asked for: install one release")
    found = dict(zip(told, seals, strict=True))
    for node in others:
        try:
            words = decrypt(keys[node], found[node])
        except (KeyError, TypeError, ValueError, InvalidToken) as error:
            raise RefusedError(f"node {node} does not say what it was asked for, and its numbers are in the sum") from (
                error
            )
        if words != _words(node, own, made, state):
            raise RefusedError(f"node {node} was asked for something else than this client, and the sum would show it")


def _words(source: int, other: int, made: AskedSum, state: RecordDict) -> bytes:
    settings = state.config_records[SETTINGS]
    names = sorted(made.names.items())
    return json.dumps(["fedgen sum", source, other, made.what, made.whole, names, made.common, dict(settings)]).encode()


def _own(state: RecordDict) -> int:
    return int(state.config_records[RECORD_KEY_STATE]["nid"])  # type: ignore[arg-type]


def _keys(state: RecordDict) -> dict[int, bytes]:
    """The keys that the client shares with each other one of the exchange, as Flower's mod keeps them."""
    kept: Any = state.config_records[RECORD_KEY_STATE]
    return dict(zip(kept["ss2_dict:K"], kept["ss2_dict:V"], strict=True))


def seals_in(record: Mapping[str, Any]) -> Sequence[int]:
    """Return for whom a client's reply has seals; ValueError if they are none."""
    told, seals = record.get(FROM, []), record.get(SEALED, [])
    if not isinstance(told, list) or not isinstance(seals, list) or not len(set(told)) == len(told) == len(seals):
        raise ValueError("what it was asked for is not sealed for each other client")
    if not all(type(node) is int for node in told) or not all(isinstance(one, bytes) for one in seals):
        raise ValueError("what it was asked for is sealed for no nodes, or by no bytes")
    return told
