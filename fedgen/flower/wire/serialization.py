"""Bytes that travel beside weights: safetensors, whose metadata hold plain values in JSON; nothing is unpickled.

Each number that is read was sent: nothing is larger in memory than some thirty times what came. Whether bits flipped on
the way is the transport's to find; what is kept in a file is sealed by a hash.
"""

import json
from typing import Any

from safetensors.torch import load, save
from torch import Tensor

from fedgen.federated.client_state.exchange import all_finite
from fedgen.flower.wire.plain_values import Reader, Writer
from fedgen.io.tensor_files import HASH, is_whole, with_hash
from fedgen.statistics.statistic_messages import MessageError

MOST_TEXT = 2**24  # bytes of JSON
_VALUE = "fedgen"
_LENGTH = 8  # bytes that say how long the header is


def to_bytes(value: Any, sealed: bool = False) -> bytes:
    """Plain types and tensors (in dicts, lists, tuples and sets) as bytes; tensors as on the CPU.

    NumPy's numbers become Python's, and parameters and views tensors of their own.

    Args:
        value: what travels.
        sealed: whether a hash of it all is added, which `from_bytes` compares: for files.

    Raises:
        TypeError: for what does not travel, naming its type.
        ValueError: for a value that is too large, too deep or of too many parts.
    """
    writer = Writer()
    text = json.dumps(writer.write(value), separators=(",", ":"), allow_nan=False)
    if len(text) > MOST_TEXT:
        raise ValueError(f"a message beside its tensors has at most {MOST_TEXT} bytes, and this one {len(text)}")
    tensors, header = _apart(writer.tensors), {_VALUE: text}
    return save(tensors, metadata=with_hash(tensors, header) if sealed else header)


def from_bytes(data: bytes, what: str, sealed: bool = False) -> Any:
    """Read what `to_bytes` was given.

    Args:
        data: the bytes.
        what: they are, for the error.
        sealed: whether they must have a hash.

    Raises:
        MessageError: if they are damaged, hold something else, or NaN or infinity in a tensor.
    """
    if not isinstance(data, bytes):
        raise MessageError(f"{what} cannot be read: it is {type(data).__name__} in place of bytes")
    try:
        text, tensors = _parts(data, sealed)
        value = Reader(tensors).read_all(json.loads(text))
        finite = all_finite(tensors)
    except Exception as error:  # whatever is wrong with them, it is the sender's
        raise MessageError(f"{what} cannot be read ({error or type(error).__name__}, in {len(data)} bytes)") from error
    if not finite:
        raise MessageError(f"{what} holds NaN or infinity")
    return value


def _parts(data: bytes, sealed: bool) -> tuple[str, list[Tensor]]:
    """The JSON and the tensors in order.

    Raises:
        ValueError: for other bytes than `to_bytes` writes, and others for damaged tensors.
    """
    tensors = load(data)
    header = json.loads(data[_LENGTH : _LENGTH + int.from_bytes(data[:_LENGTH], "little")])["__metadata__"]
    if len(text := header[_VALUE]) > MOST_TEXT:
        raise ValueError(f"it has {len(text)} bytes beside its tensors, and at most {MOST_TEXT} are read")
    if (sealed and HASH not in header) or not is_whole(tensors, header):
        raise ValueError("it holds something other than what was written")
    return text, [tensors[str(place)] for place in range(len(tensors))]


def _apart(tensors: list[Tensor]) -> dict[str, Tensor]:
    """The tensors by their places, contiguous, no two in the same memory."""
    found, seen = {}, set()
    for place, tensor in enumerate(tensors):
        own = tensor.contiguous()
        if own.numel() and own.untyped_storage().data_ptr() in seen:
            own = own.clone()
        seen.add(own.untyped_storage().data_ptr())
        found[str(place)] = own
    return found
