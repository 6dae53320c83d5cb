"""Checks of clients' replies to a stage of Flower's SecAgg+: its workflow takes them for what they should be.

What a client encrypts for others, masks or shares of a secret is not seen here: numbers of the right form are believed.
"""

import io
from collections import Counter
from collections.abc import Hashable, Mapping
from functools import cache
from typing import Any

from flwr.app import Message
from flwr.common.secure_aggregation.crypto.symmetric_encryption import generate_shared_key
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key, Stage
from flwr.compat.common import recorddict_compat as compat
from flwr.supercore.primitives.asymmetric import bytes_to_public_key, generate_key_pairs

from fedgen.federated.left_out import LONGEST_REASON, shorten
from fedgen.flower.secure_aggregation.agreement import seals_in
from fedgen.io.archives import read_header
from fedgen.statistics.statistic_messages import MessageError

REST = "fedgen"  # what clients tell in the open beside their masked numbers


def unusable(sent: Mapping[int, Message], replies: Mapping[int, Message]) -> dict[int, str]:
    """Return why replies of one stage cannot be used, by node.

    Args:
        sent: what each node was sent.
        replies: those that came, without errors.
    """
    found, forms = {}, {}
    stage = ""
    for node, reply in replies.items():
        asked = sent[node].content.config_records[RECORD_KEY_CONFIGS]
        stage = str(asked[Key.STAGE])
        try:
            forms[node] = _CHECKS[stage](asked, reply, node)
        except Exception as error:  # whatever is wrong with it, it is the client's
            found[node] = str(error) if isinstance(error, MessageError) else repr(error)
    found |= _alike_keys(forms) if stage == Stage.SETUP else _odd(forms)
    return {
        node: f"its reply to the stage {stage!r} of secure aggregation is unusable: {shorten(why, LONGEST_REASON)}"
        for node, why in found.items()
    }


def _keys(asked: Mapping[str, Any], reply: Message, node: int) -> Hashable:
    """The public keys: others cannot mask with what is none."""
    keys = [_part(reply, name) for name in (Key.PUBLIC_KEY_1, Key.PUBLIC_KEY_2)]
    for key in keys:
        generate_shared_key(_own_key(), bytes_to_public_key(key))
    return tuple(keys)


def _shares(asked: Mapping[str, Any], reply: Message, node: int) -> Hashable:
    """Nothing; there must be a share for every other client."""
    _listed(
        reply,
        Key.CIPHERTEXT_LIST,
        Key.DESTINATION_LIST,
        [int(one) for one in asked if one not in (Key.STAGE, str(node))],
    )
    return None


def _masked(asked: Mapping[str, Any], reply: Message, node: int) -> Hashable:
    """The arrays' types and shapes, and for how many others it has sealed what it was asked for."""
    rest = compat.recorddict_to_fitres(reply.content, keep_input=True).metrics[REST]
    if not isinstance(rest, bytes):
        raise MessageError(f"what it tells in the open is a {type(rest).__name__}")
    headers = [
        read_header(io.BytesIO(data), len(data), "of masked numbers") for data in _part(reply, Key.MASKED_PARAMETERS)
    ]
    if any(header.dtype.kind not in "iu" for header in headers):
        raise MessageError("its masked numbers are not whole")
    seals = seals_in(reply.content.config_records[RECORD_KEY_CONFIGS])
    return (len(seals), *((header.dtype, header.shape) for header in headers))


def _unmasking(asked: Mapping[str, Any], reply: Message, node: int) -> Hashable:
    """The lengths of the shares, one of every client."""
    nodes = [*asked[Key.ACTIVE_NODE_ID_LIST], *asked[Key.DEAD_NODE_ID_LIST]]
    return tuple(sorted(_listed(reply, Key.SHARE_LIST, Key.NODE_ID_LIST, nodes)))


_CHECKS = {
    Stage.SETUP: _keys,
    Stage.SHARE_KEYS: _shares,
    Stage.COLLECT_MASKED_VECTORS: _masked,
    Stage.UNMASK: _unmasking,
}


def _part(reply: Message, name: str) -> Any:
    record = reply.content.config_records.get(RECORD_KEY_CONFIGS)
    if record is None or name not in record:
        raise MessageError(f"it lacks {name!r}")
    return record[name]


def _listed(reply: Message, name: str, of: str, nodes: list[int]) -> list[tuple[int, int]]:
    """Return by node the length of what the reply has for it, which must be bytes; and of these nodes alone."""
    parts, told = _part(reply, name), _part(reply, of)
    if not isinstance(parts, list) or not isinstance(told, list) or len(parts) != len(told):
        raise MessageError(f"its {name!r} and {of!r} are no lists of one length")
    if Counter(told) != Counter(nodes) or not all(isinstance(part, bytes) for part in parts):
        raise MessageError(f"its {name!r} are not bytes for each of the clients that it was asked about")
    return [(one, len(part)) for one, part in zip(told, parts, strict=True)]


def _alike_keys(keys: Mapping[int, Any]) -> dict[int, str]:
    """Clients refuse to mask where two keys are one."""
    counts = Counter(key for own in keys.values() for key in own)
    return {node: "its keys are not its own" for node, own in keys.items() if any(counts[key] > 1 for key in own)}


def _odd(forms: Mapping[int, Hashable]) -> dict[int, str]:
    """Those whose form fewest have, if there are several; of two clients both: nobody knows which of them is right."""
    counts = Counter(forms.values())
    if len(counts) < 2:
        return {}
    usual, most = counts.most_common(1)[0]
    tied = list(counts.values()).count(most) > 1
    return {node: "its form differs from the others'" for node, form in forms.items() if tied or form != usual}


@cache
def _own_key() -> Any:
    return generate_key_pairs()[0]
