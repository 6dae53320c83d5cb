"""A client's answer to a loss at the server, for SecAgg+ to mask."""

from typing import Any

from flwr.app import Message, RecordDict

from fedgen.deploy.asked_clients import MASKED
from fedgen.deploy.masked_answers import Scale, encode
from fedgen.deploy.messages import LossQuestion, unpack
from fedgen.deploy.payload import from_bytes
from fedgen.deploy.secure import Masked, read_instructions, write_summand
from fedgen.deploy.station import Station


def is_loss_question(message: Message) -> bool:
    """Whether what a client is to sum is an answer to a loss, and no turn."""
    return MASKED in _told(message)


def masked_answer(station: Station, message: Message) -> RecordDict:
    """The client's answer as a summand.

    Args:
        station: the client.
        message: of `MaskedClients`.

    Raises:
        ValueError: if it cannot answer: it has no part in the sum.
    """
    told = _told(message)
    question: LossQuestion = unpack(LossQuestion, {}, told[MASKED])
    arrays = encode(station.answer(question), Scale(**told["scale"]))
    return write_summand(Masked(arrays, b"", 1))


def _told(message: Message) -> dict[str, Any]:
    _, rest, _ = read_instructions(message)
    found: dict[str, Any] = from_bytes(rest, "what the server asks")
    return found
