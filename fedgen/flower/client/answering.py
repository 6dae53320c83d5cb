"""A client's side of a loss at the server: it answers questions about its images by its own copy of the loss."""

import copy
from pathlib import Path
from typing import Literal

import torch
from lightning.pytorch import LightningModule
from torch import Tensor

from fedgen.clients.client import Client
from fedgen.embeddings import Embedding, FeatureCache, embed
from fedgen.flower.wire.messages import LossQuestion
from fedgen.io.files import read_json, write_json
from fedgen.io.hashing import hash_tensors
from fedgen.losses import DistributedLoss, EmbeddedLoss, MMD2Loss, OneMessageLoss
from fedgen.losses.distributed.distributed import PRECISIONS, ScoringClient
from fedgen.losses.distributed.summaries import SummarisingClient
from fedgen.scores import KernelReference
from fedgen.scores.kernel.mmd import check_means
from fedgen.statistics.statistic_messages import Message, MessageError

NAMES = {str(dtype).removeprefix("torch."): dtype for dtype in PRECISIONS}


class Answering(LightningModule):
    """A client's part of a `DistributedFineTuning` whose turns are all the server's: the objective, to answer by.

    Args:
        objective: of the fine-tuning.
        form: "exact" or "message".
    """

    def __init__(self, objective: EmbeddedLoss, form: Literal["exact", "message"] = "exact") -> None:
        super().__init__()
        kind = DistributedLoss if form == "exact" else OneMessageLoss
        objective.replace_losses(lambda loss: loss if isinstance(loss, kind) else kind(loss))
        self.objective = objective

    def answer(self, question: LossQuestion, client: Client, cache: Path, device: torch.device) -> Message:
        """The client's answer, in float64.

        Args:
            question: the server's.
            client: this one.
            cache: folder that keeps its features.
            device: where to compute.

        Raises:
            ValueError: if its embedding is not the server's, or its images do not do for the loss.
        """
        loss, embedding = self._named(question)
        images = client.train_examples.inputs
        features = embed(embedding, images, device=device, cache=FeatureCache(cache))
        made = client_of(loss, features, question.weight, cache).to(device)
        found: Message = made(Message.from_bytes(question.question))
        return found

    def _named(self, question: LossQuestion) -> tuple[DistributedLoss | OneMessageLoss, Embedding]:
        for loss, embedding in zip(self.objective.losses, self.objective.embeddings):
            assert isinstance(embedding, Embedding)
            if embedding.name == question.embedding and embedding.fingerprint() == question.fingerprint:
                assert isinstance(loss, DistributedLoss | OneMessageLoss)
                return loss, embedding
        raise ValueError(f"embedding {question.embedding} is another one here; install the same release and weights")


def client_of(
    loss: DistributedLoss | OneMessageLoss, features: Tensor, weight: float, cache: Path
) -> ScoringClient | SummarisingClient:
    """The loss's client of these features [n, D]; MMD^2's mean kernel within them is worked out once, and kept.

    Args:
        loss: of the server.
        features: of the client's images.
        weight: the client's.
        cache: folder of what is kept: a message is a process of its own, and that mean takes n^2 D multiplications.
    """
    if not isinstance(loss, DistributedLoss) or not isinstance(loss.loss, MMD2Loss) or not loss.loss.constant:
        return loss.client_of(features, weight)
    check_means([features], loss.loss.estimator)
    bare = copy.deepcopy(loss.loss)
    bare.constant = False
    made = DistributedLoss(bare).client_of(features, weight)
    path = cache / f"within-{hash_tensors([('features', features)], f'{bare.kernel} {bare.estimator}')}.json"
    try:
        within = float(read_json(path))
    except (FileNotFoundError, ValueError, TypeError):  # damaged ones are written anew
        within = KernelReference.from_features([features], bare.kernel, bare.estimator).within_pool
        write_json(path, within)
    assert isinstance(made.loss, MMD2Loss)
    made.loss.set_constant(within)
    return made


def sent_in(precision: str) -> torch.dtype:
    """The type of numbers of that name.

    Raises:
        MessageError: for another one.
    """
    if precision not in NAMES:
        raise MessageError(f"precision {precision!r}: numbers travel as {' or '.join(NAMES)}")
    return NAMES[precision]
