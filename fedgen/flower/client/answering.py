"""A client's side of a loss at the server: it answers questions about its images by its own copy of the loss."""

import copy
import math
from pathlib import Path
from typing import Literal

import torch
from lightning.pytorch import LightningModule
from torch import Tensor

from fedgen.clients.client import Client
from fedgen.embeddings import Embedding, FeatureCache, embed
from fedgen.flower.wire.messages import LossQuestion
from fedgen.io.files import read_json, write_json
from fedgen.io.tensor_files import hash_tensors
from fedgen.losses import DistributedLoss, EmbeddedLoss, MMD2Loss, OneMessageLoss
from fedgen.losses.distributed import ScoringClient
from fedgen.losses.feature_loss import PRECISIONS
from fedgen.losses.one_message import SummarisingClient
from fedgen.scores import KernelReference
from fedgen.scores.kernel.mmd import check_means
from fedgen.statistics.statistic_messages import Message, MessageError

NAMES = {str(dtype).removeprefix("torch."): dtype for dtype in PRECISIONS}


class Answering(LightningModule):
    """A client's part of a `DistributedFineTuning` whose turns are all the server's: the objective, to answer by.

    Args:
        objective: of the fine-tuning.
        form: "exact" or "message".
        batch: generated images that a question is about at most, as the fine-tuning has them.
    """

    def __init__(self, objective: EmbeddedLoss, form: Literal["exact", "message"] = "exact", batch: int = 64) -> None:
        super().__init__()
        kind = DistributedLoss if form == "exact" else OneMessageLoss
        objective.replace_losses(lambda loss: loss if isinstance(loss, kind) else kind(loss))
        self.objective, self.batch = objective, batch

    def answer(self, question: LossQuestion, client: Client, cache: Path, device: torch.device) -> Message:
        """The client's answer, in float64.

        Args:
            question: the server's.
            client: this one.
            cache: folder that keeps its features.
            device: where to compute.

        Raises:
            ValueError: if its embedding is not the server's, its images do not do for the loss, or the recipe's loss
                asks no such question.
        """
        loss, embedding = self._named(question)
        asked = Message.from_bytes(question.question)
        self._check_asked(loss, asked, question.weight)
        images = client.train_examples.inputs
        features = embed(embedding, images, device=device, cache=FeatureCache(cache))
        made = client_of(loss, features, question.weight, cache).to(device)
        found: Message = made(asked)
        return found

    def _check_asked(self, loss: DistributedLoss | OneMessageLoss, asked: Message, weight: float) -> None:
        """Raises MessageError for what this recipe's loss does not ask: each number more of an answer tells more."""
        if not 0 <= weight < math.inf:
            raise MessageError(f"an answer weighs a number from 0, and this one {weight:g}")
        if isinstance(loss, OneMessageLoss):
            fits, most = loss.summary.asks(asked), str(loss.summary)
        else:
            fits = asked.kind == "features" and len(asked.tensors["features"]) <= self.batch
            most = f"features of {self.batch} images at most (batch)"
        if not fits:
            sizes = {name: list(tensor.shape) for name, tensor in asked.tensors.items()}
            raise MessageError(f"the recipe's loss asks for {most}, and not for {asked.kind!r} of {sizes}")

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
    """The loss's client of these features [n, D]; MMD^2's mean kernel within them is worked out once, and kept."""
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
    """The type of numbers of that name."""
    if precision not in NAMES:
        raise MessageError(f"precision {precision!r}: numbers travel as {' or '.join(NAMES)}")
    return NAMES[precision]
