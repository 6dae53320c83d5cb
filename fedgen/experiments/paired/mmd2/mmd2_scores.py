"""Measures of `mmd2_finetune`: scores to held-out images, and what the forms (b) and (c) are off from (a)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedgen.clients import FederatedDataModule
from fedgen.data import Examples
from fedgen.embeddings import Embedding, FeatureCache, embed
from fedgen.evaluation.reference import Reference
from fedgen.experiments.engine.image_sources import CACHE
from fedgen.experiments.ranking.truncation.truncated_styles import TruncatedStyles
from fedgen.losses import EmbeddedLoss, MMD2Loss
from fedgen.losses.one_message import Nystrom, Sketches, approximation_errors, local_drift
from fedgen.models.stylegan2.generator import StyleGAN2Generator
from fedgen.scores import frechet_distance
from fedgen.seeds import generator
from fedgen.statistics import Gaussian, summarize

KID_AVG, KID_ALL, FID_SERVER, RECALL, COVERAGE = "kid avg", "kid all", "fid server", "recall", "coverage"
TITLES = {
    KID_AVG: "KID-avg",
    KID_ALL: "KID-all",
    RECALL: "recall",
    COVERAGE: "coverage",
    FID_SERVER: "FID-all to the server's images",
}
SIZES = (Sketches(250), Sketches(1000), Sketches(4000), Nystrom(128), Nystrom(512), Nystrom(2048))
MOVES = (1e-7, 1e-6, 1e-5)  # how far a first step of SGD goes, as a share of the norm of the weights, in the drift
STEPS = 8  # of SGD


@dataclass(frozen=True, eq=False)
class _Side:
    embedding: Embedding
    reference: Reference
    server: Gaussian


class HeldOutScores:
    """KID, recall and coverage to the clients' held-out images, and FID to the server's, in several embeddings.

    Recall and coverage are those of the clients' pool.

    Args:
        data: the clients, whose held-out images were trained on by nobody.
        public: images that the network was trained on.
        embeddings: in which to score.

    Attributes:
        floor: what the clients' training images score in a generator's place; their "fid server" is that of a generator
            that has gone over to the clients altogether.
    """

    def __init__(self, data: FederatedDataModule, public: Examples, embeddings: Sequence[Embedding]) -> None:
        self._sides = []
        for embedding in embeddings:
            features = embed(embedding, data.examples.inputs, description=f"embedding clients with {embedding.name}")
            reference = Reference([features[client.held_out] for client in data.clients], ["kid", "recall", "coverage"])
            text = f"embedding {public.name} with {embedding.name}"
            theirs = summarize(embed(embedding, public.inputs, description=text, cache=FeatureCache(CACHE)))
            self._sides.append(_Side(embedding, reference, theirs))
        training = torch.cat([client.train for client in data.clients])
        self.floor = self.score(data.examples.inputs[training])

    def score(self, images: Tensor) -> dict[str, dict[str, float]]:
        """TITLES of images uint8 [m, C, H, W], by embedding."""
        return {side.embedding.name: self._score(side, images) for side in self._sides}

    def _score(self, side: _Side, images: Tensor) -> dict[str, float]:
        features = embed(side.embedding, images, description=f"embedding samples with {side.embedding.name}")
        values = {score.name: score.values for score in side.reference.score(features, errors=False)}
        return {
            KID_AVG: values["kid"]["avg"],
            KID_ALL: values["kid"]["all"],
            RECALL: values["recall"]["all"],
            COVERAGE: values["coverage"]["all"],
            FID_SERVER: frechet_distance(summarize(features), side.server)[0],
        }


def message_errors(
    data: FederatedDataModule, public: Examples, images: Tensor, embedding: Embedding
) -> list[dict[str, Any]]:
    """Rows of `approximation_errors` for SIZES, of a batch of generated images in the objective's embedding.

    Args:
        data: the clients.
        public: images that landmarks are drawn from.
        images: the batch, uint8.
        embedding: the objective's.
    """
    known = embed(embedding, public.inputs, cache=FeatureCache(CACHE))
    features = embed(embedding, data.examples.inputs)
    sizes = [size for size in SIZES if isinstance(size, Sketches) or size.number <= len(known)]
    clients = [features[client.train] for client in data.clients]
    return approximation_errors(sizes, clients, embed(embedding, images), known)


class _Still(nn.Module):
    """A generator whose noise is constant, so that its images are a function of latents alone."""

    def __init__(self, network: StyleGAN2Generator) -> None:
        super().__init__()
        self.network = network

    def forward(self, latents: Tensor) -> Tensor:
        return self.network(latents, noise="const")


def drifts(
    styles: TruncatedStyles, data: FederatedDataModule, embedding: Embedding, batch: int, seed: int
) -> dict[str, list[float]]:
    """`local_drift` after 1, 2, ... steps from the network, in float32, by how far the first step goes.

    Args:
        styles: the network.
        data: the clients.
        embedding: the objective's.
        batch: images of a step.
        seed: of the latents.
    """
    exact = StyleGAN2Generator(**(styles.network.settings | {"half_resolutions": 0}))
    exact.load_state_dict(styles.network.state_dict())
    still = _Still(exact.train())
    parts = [data.examples.inputs[client.train] for client in data.clients]
    objective = EmbeddedLoss(MMD2Loss(aggregate="own"), [embedding]).set_references(parts)
    latents = styles.latents(STEPS * batch, generator(seed, "drift")).view(STEPS, batch, -1)
    objective.start_turn(None)
    weights = [parameter for parameter in still.parameters() if parameter.requires_grad]
    gradients = torch.autograd.grad(objective(still(latents[0])), weights, allow_unused=True)
    unit = _norm(weights) / _norm([gradient for gradient in gradients if gradient is not None])
    sizes = [float(len(part)) for part in parts]
    return {f"{move:g}": local_drift(still, objective, sizes, latents, move * unit) for move in MOVES}


def _norm(tensors: Sequence[Tensor]) -> float:
    return float(torch.stack([tensor.detach().norm() for tensor in tensors]).norm())
