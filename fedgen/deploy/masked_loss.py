"""A client's answer to a loss at the server, for SecAgg+ to mask."""

from collections.abc import Mapping
from typing import Any

from fedgen.deploy.asked_clients import MASKED
from fedgen.deploy.masked_answers import Scale, encode
from fedgen.deploy.messages import LossQuestion, unpack
from fedgen.deploy.secure import Masked
from fedgen.deploy.station import Station


def masked_answer(station: Station, told: Mapping[str, Any]) -> Masked:
    """The client's answer as a summand.

    Args:
        station: the client.
        told: what `MaskedClients` sent.

    Raises:
        ValueError: if it cannot answer: it has no part in the sum.
    """
    question: LossQuestion = unpack(LossQuestion, {}, told[MASKED])
    return Masked(encode(station.answer(question), Scale(**told["scale"])), b"", 1)
