"""A client's answer to a loss at the server, for SecAgg+ to mask."""

from collections.abc import Mapping
from typing import Any

from fedgen.flower.client.client_node import ClientNode
from fedgen.flower.secure_aggregation.masked_answers import Scale, encode
from fedgen.flower.secure_aggregation.secure_mean import Masked
from fedgen.flower.server.asked_clients import MASKED
from fedgen.flower.wire.messages import LossQuestion, unpack


def masked_answer(client_node: ClientNode, told: Mapping[str, Any]) -> Masked:
    """The client's answer as a summand.

    Args:
        client_node: the client.
        told: what `MaskedClients` sent.

    Raises:
        ValueError: if it cannot answer: it has no part in the sum.
    """
    question: LossQuestion = unpack(LossQuestion, {}, told[MASKED])
    return Masked(encode(client_node.answer(question), Scale(**told["scale"])), b"", 1)
