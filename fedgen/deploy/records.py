"""Our messages as Flower's records: weights as arrays, so that Flower's own mods see them, the rest as bytes."""

from collections.abc import Mapping
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from torch import Tensor

from fedgen.deploy.messages import Answer, Said, pack, unpack
from fedgen.statistics.messages import MessageError

WEIGHTS, REST, METRICS, EXAMPLES = "weights", "fedgen", "metrics", "num-examples"
_NARROW = torch.bfloat16  # NumPy has none: it travels as float32, which holds its values
_DTYPES = "dtypes"


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
        weights: Mapping[str, Tensor] = message.content.array_records[WEIGHTS].to_torch_state_dict()
        config = message.content.config_records[REST]
        narrow, rest = config[_DTYPES], config["rest"]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise MessageError(f"no fedgen message: {error!r}") from error
    if not isinstance(rest, bytes) or not isinstance(narrow, list):
        raise MessageError("no fedgen message: its parts are of other types")
    weights = {name: tensor.to(_NARROW) if name in narrow else tensor for name, tensor in weights.items()}
    return unpack(kind, weights, rest)


def reason_of(message: Message) -> str:
    """The last line of the error that Flower reports in a message's place."""
    return message.error.reason.strip().splitlines()[-1] if message.error.reason else "unknown error"
