"""Our messages as Flower's records, sent and received: weights as arrays, so that Flower's own mods see them, the rest
as bytes.
"""

import io
import time
from collections.abc import Hashable, Iterator, Mapping
from typing import Any, TypedDict, TypeVar, cast

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from fedgen.federated.left_out import LONGEST_REASON, shorten
from fedgen.flower.wire.messages import Answer, Said, pack, unpack
from fedgen.io.field_types import fault
from fedgen.io.files import read_header
from fedgen.progress import track
from fedgen.statistics.statistic_messages import MessageError

WEIGHTS, REST, METRICS, EXAMPLES = "weights", "fedgen", "metrics", "num-examples"
LOOK, LONGEST_LOOK = 0.005, 0.1  # seconds between looks for replies: after one has come, and at most
_NARROW = torch.bfloat16  # NumPy has none: it travels as float32, which holds its values
_DTYPES = "dtypes"
Key = TypeVar("Key", bound=Hashable)


class _Rest(TypedDict):
    """The part beside the weights; `dtypes` are the names of those that are narrower than they travel."""

    rest: bytes
    dtypes: list[str]


def to_records(message: Said, arrays: ArrayRecord | None = None) -> RecordDict:
    """The message as Flower's records; `arrays` are its weights where another message's record has them already."""
    weights, rest = pack(message)
    narrow = [name for name, tensor in weights.items() if tensor.dtype == _NARROW]
    sent = arrays or ArrayRecord({n: tensor.float() if n in narrow else tensor for n, tensor in weights.items()})
    records = RecordDict({WEIGHTS: sent, REST: ConfigRecord({"rest": rest, _DTYPES: narrow})})
    if isinstance(message, Answer):
        records[METRICS] = MetricRecord({EXAMPLES: message.examples})
    return records


def from_records(kind: type[Any], message: Message) -> Any:
    """The message of that kind in Flower's; MessageError if Flower reports an error, or it is damaged or another's."""
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
    """The tensor in an array of Flower's; ValueError if it has not the numbers that it promises."""
    read_header(io.BytesIO(array.data), len(array.data), name)
    return torch.from_numpy(array.numpy())


def reason_of(message: Message) -> str:
    """The last line, shortened, of the error that Flower reports in a message's place."""
    lines = (message.error.reason or "").strip().splitlines()
    return shorten(lines[-1], LONGEST_REASON) if lines else "unknown error"


class Silence(str):
    """The reason why nothing came from a client."""

    @classmethod
    def within(cls, deadline: float | None) -> "Silence":
        """It is there, and did not answer in so many seconds, if there was a deadline."""
        return cls(f"it did not answer within {deadline:g} seconds" if deadline else "no answer")


def replies_to(
    grid: Grid, messages: Mapping[Key, Message], deadline: float | None, description: str
) -> Iterator[tuple[Key, Message]]:
    """Each reply with its message's name, until the deadline; of a node that has gone Flower's own error."""
    start = time.monotonic()
    pushed = list(grid.push_messages(list(messages.values())))
    waiting = {identity: key for identity, key in zip(pushed, messages) if identity}
    for reply in track(_pulled(grid, waiting, start, deadline), description, len(messages), "clients"):
        if (key := waiting.pop(reply.metadata.reply_to_message_id, None)) is not None:
            yield key, reply


def _pulled(grid: Grid, waiting: Mapping[str, object], start: float, deadline: float | None) -> Iterator[Message]:
    pause = LOOK
    while waiting:
        found = list(grid.pull_messages(list(waiting)))
        yield from found
        pause = LOOK if found else min(1.5 * pause, LONGEST_LOOK)
        if deadline is not None and time.monotonic() - start > deadline:
            return
        if waiting:
            time.sleep(pause)
