"""Membership inference attacks on a run's checkpoints, and a picture of what is nearest to training images."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule
from rich.markup import escape
from rich.table import Table
from torch import Tensor, nn

from fedgen.clients import FederatedDataModule
from fedgen.embeddings import Embedding, FeatureCache, embed, load_embedding
from fedgen.evaluation.audit.membership import MembershipAudit, membership_inference
from fedgen.evaluation.image_sampling import Sample, draw_images, sampler_of
from fedgen.evaluation.own_models import Personal, own_in_place
from fedgen.evaluation.runs.rebuild import load_weights, personal_tensors
from fedgen.evaluation.runs.run_folder import Run
from fedgen.evaluation.runs.scores_file import MEMBERSHIP, NEAREST
from fedgen.evaluation.tables.table import new_table
from fedgen.images import save_png, tile_titled
from fedgen.io.files import write_json
from fedgen.scores.manifold.neighbours import Points, nearest_real
from fedgen.seeds import resolve, subset

SHOWN = 12  # pairs in a picture
SIDE = 32  # pixels that smaller images are enlarged to
VERSION = 1
CAPTION = (
    "AUC: how often the signal of a training image is above that of a held-out one of the same client; 0.5 knows"
    " nothing. Advantage: true less false positive rate, at a threshold chosen on other images; 0 knows nothing. With"
    " 95 % intervals: of clients whose model knows nothing, one in twenty shows one that excludes this by chance."
)
RATE = "found at 1 %"


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


def audit_run(
    run: Run | str | Path,
    module: LightningModule,
    data: FederatedDataModule,
    rounds: Sequence[int] | None = None,
    **options: Any,
) -> list[MembershipAudit]:
    """Attacks a run's checkpoints, writes what was found into its folder (`membership.json`) and returns it.

    Where clients keep tensors of their own, each is attacked through its own model.

    Args:
        run: the run or its folder.
        module: a model of the run's kind; it is left with the last checkpoint's weights.
        data: the run's clients.
        rounds: which checkpoints; the last one by default.
        options: as for `membership_inference`.

    Raises:
        FileNotFoundError: if the folder has no checkpoint, or not those of `rounds`.
    """
    run = run if isinstance(run, Run) else Run(run)
    found = run.checkpoints_of(rounds, only_last=True)
    audits = []
    for round, path in found.items():
        audit = membership_inference(module, data, personal=_loaded(module, path), **options)
        audits.append(replace(audit, round=round, checkpoint=path.name))
    write_json(run.folder / MEMBERSHIP, {"version": VERSION, "audits": [audit.to_json() for audit in audits]})
    return audits


def draw_nearest(
    run: Run | str | Path,
    module: LightningModule,
    data: FederatedDataModule,
    rounds: Sequence[int] | None = None,
    **options: Any,
) -> NearestImages:
    """Finds the generated images that are nearest to training images, and draws them beside these into the run's folder
    (`nearest.png`).

    Arguments as for `audit_run`, but of the last of `rounds` alone; options as for `nearest_images`.
    """
    run = run if isinstance(run, Run) else Run(run)
    path = list(run.checkpoints_of(rounds, only_last=True).values())[-1]
    found = nearest_images(module, data, personal=_loaded(module, path), **options)
    save_png(run.folder / NEAREST, found.picture())
    return found


def _loaded(module: LightningModule, path: Path) -> Personal | None:
    """Loads a checkpoint into the module, and returns the clients' own tensors; None where they have none."""
    return personal_tensors(module, load_weights(module, path)) or None


def membership_table(audit: MembershipAudit) -> Table:
    """The attack on each client, and over all clients."""
    totals = [audit.avg, *([audit.all] if audit.all is not None else [])]
    rates = any(row.found for row in (*audit.clients, *totals))
    after = "" if audit.round is None else f"round {audit.round}: "
    caption = f"{CAPTION} {RATE}: share of members found where 1 % of others are taken for some." if rates else CAPTION
    title = f"{after}membership inference by {audit.words}"
    headings = ("client", "pairs", "AUC", "advantage", *([RATE] if rates else []))
    table = new_table(title, headings, left=("client",), fold=("client",))
    table.caption = caption
    for place, row in enumerate([*audit.clients, *totals]):
        if place == len(audit.clients):
            table.add_section()
        found = [row.auc, row.advantage, *([row.found] if rates else [])]
        cells = ["" if one is None else escape(str(one)) for one in found]
        style = "bold" if place >= len(audit.clients) else None
        table.add_row(escape(row.name), str(row.pairs), *cells, style=style)
    return table
