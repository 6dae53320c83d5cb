"""Our messages as Flower's records: weights as arrays, so that Flower's own mods see them, the rest as bytes."""

import io
from typing import Any, TypedDict, cast

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from torch import Tensor

from fedgen.federated.left_out import LONGEST_REASON, shorten
from fedgen.flower.wire.messages import Answer, Said, pack, unpack
from fedgen.io.archives import read_header
from fedgen.io.field_types import fault
from fedgen.statistics.statistic_messages import MessageError

WEIGHTS, REST, METRICS, EXAMPLES = "weights", "fedgen", "metrics", "num-examples"
_NARROW = torch.bfloat16  # NumPy has none: it travels as float32, which holds its values
_DTYPES = "dtypes"


class _Rest(TypedDict):
    """The part beside the weights; `dtypes` are the names of those that are narrower than they travel."""

    rest: bytes
    dtypes: list[str]


def to_records(message: Said, arrays: ArrayRecord | None = None) -> RecordDict:
    """The message as Flower's records.

    Args:
        message: what is said.
        arrays: its weights, where another message's record has them already: many clients are sent the same ones.
    """
    weights, rest = pack(message)
    narrow = [name for name, tensor in weights.items() if tensor.dtype == _NARROW]
    sent = arrays or ArrayRecord({n: tensor.float() if n in narrow else tensor for n, tensor in weights.items()})
    records = RecordDict({WEIGHTS: sent, REST: ConfigRecord({"rest": rest, _DTYPES: narrow})})
    if isinstance(message, Answer):
        records[METRICS] = MetricRecord({EXAMPLES: message.examples})
    return records


def from_records(kind: type[Any], message: Message) -> Any:
    """The message of that kind in Flower's.

    Raises:
        MessageError: if Flower reports an error in its place, or it is damaged or another's.
    """
    if message.has_error():
        raise MessageError(reason_of(message))
    try:
        arrays = message.content.array_records[WEIGHTS]
        config = message.content.config_records[REST]
        if wrong := fault(config, _Rest):
            raise TypeError(f"what is beside its weights {wrong}")
        narrow, rest = cast(list[str], config[_DTYPES]), cast(bytes, config["rest"])
        weights = {name: _tensor_of(name, array) for name, array in arrays.items()}
        weights = {name: tensor.to(_NARROW) if name in narrow else tensor for name, tensor in weights.items()}
    except Exception as error:  # whatever it is, it is the sender's
        raise MessageError(f"no fedgen message: {error!r}") from error
    return unpack(kind, weights, rest)


def _tensor_of(name: str, array: Array) -> Tensor:
    """The tensor in an array of Flower's, if it has the numbers that it promises: memory is taken for those there are.

    Raises:
        ValueError: if it has not, and others for what is no array of numbers.
    """
    read_header(io.BytesIO(array.data), len(array.data), name)
    return torch.from_numpy(array.numpy())


def reason_of(message: Message) -> str:
    """The last line, shortened, of the error that Flower reports in a message's place."""
    lines = (message.error.reason or "").strip().splitlines()
    return shorten(lines[-1], LONGEST_REASON) if lines else "unknown error"
