"""The clients of `mmd2_finetune`: folders of images that a network makes around styles that share an attribute."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

import fedgen.data
from fedgen.data import DataSet, Examples
from fedgen.embeddings import FeatureCache, embed, load_embedding
from fedgen.experiments.engine.image_sources import CACHE
from fedgen.experiments.paired.mmd2.mmd2_arms import Mmd2Choice
from fedgen.experiments.ranking.truncation.truncated_styles import BATCH, TruncatedStyles
from fedgen.images import save_png
from fedgen.io.files import read_json
from fedgen.progress import track
from fedgen.seeds import generator

SEARCHED = 20_000  # latents, at most, among which centres are looked for
PUBLIC = 10_000  # of the server's images, at most, that are compared with
NEIGHBOURS = 5  # a centre's nearest images, which must all have the attribute
STAMP = ".made"  # in the clients' folder: what they were made of


def public_images(choice: Mmd2Choice, styles: TruncatedStyles) -> Examples:
    """Images that the server has, 10,000 at most: what centres show, FID and landmarks are found by them.

    Raises:
        ValueError: for what is neither a known name nor a folder.
    """
    described = choice.server(styles.network.image_shape)
    data: DataSet = getattr(fedgen.data, described["class_path"].rpartition(".")[2])(**described["init_args"])
    server = data.load("train")
    return server.subset(torch.randperm(len(server), generator=generator(choice.seed, "server's images"))[:PUBLIC])


def find_centres(choice: Mmd2Choice, styles: TruncatedStyles, known: Examples, seed: int) -> list[int]:
    """Numbers of latents whose images show the attribute: the first ones of (seed, "centre", number) that do.

    An image shows it if the 5 nearest of the server's images have it, in the objective's embedding: clients are
    made by whoever has the network, before anything is trained.

    Args:
        choice: the attribute, how many, or the numbers themselves.
        styles: the network.
        known: images of the server with their classes.
        seed: of the repetition.

    Raises:
        ValueError: for an attribute that is no class, or that too few centres show.
    """
    if choice.centres is not None:
        return list(choice.centres)
    if choice.attribute not in known.classes:
        names = ", ".join(known.classes) or "none"
        raise ValueError(
            f"attribute={choice.attribute!r} is no class of {known.name}, which has {names}; or give --centres"
        )
    embedding = load_embedding(choice.embedding).to(choice.device)
    text = f"embedding {known.name} with {embedding.name}"
    features = embed(embedding, known.inputs, description=text, cache=FeatureCache(CACHE))
    has = known.labels == known.classes.index(choice.attribute)
    found: list[int] = []
    for start in track(range(0, SEARCHED, BATCH), f"looking for {choice.attribute}", SEARCHED // BATCH, "batches"):
        numbers = range(start, start + BATCH)
        images = styles.make(styles.mean, 1.0, torch.cat([latent(styles, seed, k) for k in numbers]), still())
        near = torch.cdist(embed(embedding, images).double(), features.double()).topk(NEIGHBOURS, largest=False).indices
        shows = has[near].all(dim=1)
        found += [number for number, yes in zip(numbers, shows.tolist()) if yes]
        if len(found) >= choice.clients:
            return found[: choice.clients]
    raise ValueError(
        f"of {SEARCHED:,} images of {choice.network} {len(found)} show {choice.attribute!r}, and {choice.clients} are"
        " needed; choose another attribute, fewer clients, or give --centres"
    )


def latent(styles: TruncatedStyles, seed: int, number: int) -> Tensor:
    """The latent [1, latent_dim] of a centre."""
    return styles.latents(1, generator(seed, "centre", number))


def still() -> torch.Generator:
    """Draws of the noise of images that are looked at for what they show."""
    return generator(0, "noise of centres")


def write_clients(choice: Mmd2Choice, styles: TruncatedStyles, centres: list[int], seed: int, root: Path) -> Path:
    """A folder of PNGs for every client below a root, unless it is there; made anew if it is of something else.

    Args:
        choice: images and truncation.
        styles: the network.
        centres: as `find_centres` gives them.
        seed: of the repetition.
        root: where to.
    """
    made_of = {
        "network": styles.fingerprint(),
        "centres": centres,
        "images": choice.client_images,
        "truncation": choice.client_truncation,
        "seed": seed,
    }
    stamp = root / STAMP
    if stamp.is_file() and read_json(stamp) == made_of:
        return root
    shutil.rmtree(root, ignore_errors=True)
    for client, centre in enumerate(track(centres, f"making clients of seed {seed}", len(centres), "clients")):
        folder = root / f"client-{client:02d}"
        folder.mkdir(parents=True)
        for number, image in enumerate(_images(choice, styles, centre, seed)):
            save_png(folder / f"{number:05d}.png", image)
    stamp.write_text(json.dumps(made_of))  # last: what was cut short has none
    return root


def _images(choice: Mmd2Choice, styles: TruncatedStyles, centre: int, seed: int) -> Iterator[Tensor]:
    middle = styles.styles(latent(styles, seed, centre))[0]
    for batch in styles.batches(
        middle, choice.client_truncation, choice.client_images, seed, "images of the client around", centre
    ):
        yield from batch
