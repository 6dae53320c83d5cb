"""A loss at the server is given its clients elsewhere."""

from collections.abc import Callable

import torch
from lightning.pytorch.utilities.rank_zero import rank_zero_info

from fedgen.embeddings import Embedding, embed
from fedgen.flower.app.run_statistics import EPSILON
from fedgen.flower.server.asked_clients import AskedClients, LostClientError, MaskedClients
from fedgen.flower.server.connection import Connection
from fedgen.flower.wire.messages import LossQuestion
from fedgen.losses import DistributedLoss, EmbeddedLoss, OneMessageLoss
from fedgen.losses.distributed import message_weights


def connect(
    objective: EmbeddedLoss,
    connection: Connection,
    counts: list[int],
    classes: tuple[str, ...],
    image_shape: tuple[int, ...],
    device: torch.device,
    note: Callable[[int, str], None],
) -> list[AskedClients]:
    """Gives losses that ask clients those at the other end of a connection; `OneMessageLoss` asks them here and now.

    Args:
        objective: its losses that ask nobody are left alone: clients have them.
        connection: to the clients.
        counts: training images of each.
        classes: the labels' names in the whole federation.
        image_shape: of all images.
        device: of the embeddings.
        note: takes down a client that does not answer, and why.

    Returns:
        The clients of every such loss.

    Raises:
        TooFewAnswersError: if clients with less than the least part of the weight answer what is asked once.
        ValueError: for weights that are not the clients', or where clients tell nothing without noise.
    """
    if connection.statistics.privacy is not None:
        raise ValueError(
            f"{EPSILON} in the run's config: clients tell nothing without noise, and a loss at the server asks for it;"
            " leave it out, or fine-tune in the form 'local'"
        )
    found = []
    kind = MaskedClients if connection.hidden else AskedClients
    for loss, embedding in zip(objective.losses, objective.embeddings):
        if not isinstance(loss, DistributedLoss | OneMessageLoss):
            continue
        assert isinstance(embedding, Embedding)
        dim = embed(embedding, torch.zeros(1, *image_shape, dtype=torch.uint8), device=device).shape[1]
        precision = str(loss.precision).removeprefix("torch.")
        common = LossQuestion(b"", str(embedding.name), embedding.fingerprint(), 0.0, precision, 0, classes)
        weights = message_weights(objective.client_weights, counts)
        once = isinstance(loss, OneMessageLoss)
        clients = kind(connection.transport, common, weights, dim, connection.least, once, note)
        if isinstance(loss, DistributedLoss):
            loss.connect(clients, dim)
        else:
            ask_once(loss, clients)
        found.append(clients)
    return found


def ask_once(loss: OneMessageLoss, clients: AskedClients) -> None:
    """Connects a loss of one message with those clients that answer all of its questions.

    Raises:
        TooFewAnswersError: if those have less than the least part of the weight.
    """
    while True:
        clients.start_again()
        try:
            loss.connect(clients)
        except LostClientError as error:
            rank_zero_info(str(error))
        else:
            return
