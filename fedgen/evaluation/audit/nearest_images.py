"""The generated images that are nearest to training images, and a picture of them beside these."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from fedgen.clients import FederatedDataModule
from fedgen.embeddings import Embedding, FeatureCache, embed, load_embedding
from fedgen.evaluation.image_sampling import Sample, draw_images, sampler_of
from fedgen.evaluation.own_models import Personal, own_in_place
from fedgen.evaluation.runs.rebuild import load_weights, personal_tensors
from fedgen.evaluation.runs.run_folder import Run, RunLike
from fedgen.evaluation.runs.scores_file import NEAREST
from fedgen.images import save_png, tile_titled
from fedgen.scores.manifold.neighbours import Points, nearest_real
from fedgen.seeds import resolve, subset

SHOWN = 12  # pairs in a picture
SIDE = 32  # pixels that smaller images are enlarged to


@dataclass(frozen=True, eq=False)
class NearestPairs:
    """Images with the training image that is nearest to each, the nearest pair first."""

    images: Tensor
    training: Tensor
    distances: Tensor
    searched: int


@dataclass(frozen=True)
class NearestImages:
    """Pairs of generated and training images, and of held-out and training images, that lie nearest to each other.

    Images that were never seen are near some training image, too: a generator has copied where its pairs are alike and
    those of held-out images are not.

    Args:
        generated: of the model.
        held_out: of the clients' held-out images; None where they hold out none.
        training: number of training images.
        embedding: name of the one that distances were taken in.
    """

    generated: NearestPairs
    held_out: NearestPairs | None
    training: int
    embedding: str

    def picture(self) -> Tensor:
        """Rows of generated images, their nearest training images, and likewise of held-out ones; uint8 [C, H, W]."""
        rows = []
        for name, pairs in (("generated", self.generated), ("held out, never trained on", self.held_out)):
            if pairs is not None:
                rows.append((f"{name}: nearest of {pairs.searched:,} to a training image", pairs.images))
                nearest = f"their nearest of {self.training:,} training images, in {self.embedding}"
                rows.append((nearest, pairs.training))
        return tile_titled(rows, len(self.generated.images), SIDE)


def nearest_images(
    model: nn.Module | Sample,
    data: FederatedDataModule,
    embedding: str | Embedding | None = None,
    num_images: int = 1000,
    shown: int = SHOWN,
    seed: int | None = None,
    personal: Personal | None = None,
    cache: FeatureCache | None = None,
) -> NearestImages:
    """Find the generated images that are nearest to any training image of any client that trains.

    Args:
        model: a module with `sample`, or a sampler (number, torch.Generator) to images.
        data: the clients.
        embedding: in whose features Euclidean distances are taken; efficientnet-lite0 by default.
        num_images: generated images to search; no more than clients hold out images, if they do, so that as many of
            either are searched.
        shown: pairs to return.
        seed: of all draws; None takes what `seed_everything` was given, else 0.
        personal: clients' own tensors by their number among the clients that train; as many images are then drawn of
            each client's own model.
        cache: keeps the training images' features on disk.

    Raises:
        ValueError: for points in place of images, and numbers below 1.
    """
    if not data.examples.is_images:
        raise ValueError(f"nearest images are of images, and {data.examples.name} has points")
    for what, number in (("num_images", num_images), ("shown", shown)):
        if number < 1:
            raise ValueError(f"{what}={number}: give at least 1")
    seed, network = resolve(seed), load_embedding("efficientnet-lite0" if embedding is None else embedding)
    inside = data.examples.inputs_at(torch.cat([client.train for client in data.clients]))
    outside = torch.cat([client.held_out for client in data.clients])
    count = min(num_images, len(outside)) if len(outside) else num_images
    chosen = outside[subset(len(outside), count, seed, "held out beside generated")] if len(outside) else outside
    features = embed(network, inside, description="embedding training images", cache=cache)

    def pairs_of(images: Any) -> NearestPairs:
        made = Points(embed(network, images, description="embedding images to compare"))
        found = nearest_real(made, features)
        best = found.squares.sort(stable=True).indices[:shown]
        return NearestPairs(images[best], inside[found.places[best]], found.squares[best].sqrt(), len(images))

    generated = pairs_of(_draw(model, count, seed, len(data.clients), personal))
    held_out = pairs_of(data.examples.inputs_at(chosen)[:]) if len(chosen) else None
    return NearestImages(generated, held_out, len(inside), network.name)


def _draw(model: Any, count: int, seed: int, clients: int, personal: Personal | None) -> Tensor:
    """Images of the model, or as many of each client's own, uint8 [count, C, H, W]."""
    sample = sampler_of(model) if isinstance(model, nn.Module) else model
    if personal is None:
        return draw_images(sample, count, seed, 0, "nearest")
    parts = []
    for client in range(min(clients, count)):
        share = count // clients + (client < count % clients)
        with own_in_place(model, personal.get(client, {})):
            parts.append(draw_images(sample, share, seed, 0, f"nearest {client}"))
    return torch.cat(parts)


def draw_nearest(
    run: RunLike, module: LightningModule, data: FederatedDataModule, rounds: Sequence[int] | None = None, **asked: Any
) -> NearestImages:
    """Finds the generated images that are nearest to training images, and draws them beside these into the run's folder
    (`nearest.png`).

    Arguments as for `audit_run`, but of the last of `rounds` alone; `asked` as for `nearest_images`.
    """
    run = run if isinstance(run, Run) else Run(run)
    path = list(run.checkpoints_of(rounds, only_last=True).values())[-1]
    personal = personal_tensors(module, load_weights(module, path)) or None
    found = nearest_images(module, data, personal=personal, **asked)
    save_png(run.folder / NEAREST, found.picture())
    return found
