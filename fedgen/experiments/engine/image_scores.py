"""Scores of images under several embeddings, against the images that were trained on and against held-out ones."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedgen.embeddings import Embedding, embed
from fedgen.evaluation.marks import mark_in
from fedgen.experiments.engine.run_images import clients_of
from fedgen.scores import frechet_distance
from fedgen.scores.manifold.manifold import ManifoldReference
from fedgen.statistics import Gaussian, summarize

HELD_OUT = "fid, held out"
SCORES = ("fid", HELD_OUT, "recall", "coverage", "trace")
TRAINING = ("fid", "trace")  # are measured against the images trained on, the others against held-out ones
HIGHER = ("recall", "coverage")  # of these more is better
TITLES = {
    "fid": "FID, training images",
    HELD_OUT: "FID, held-out images",
    "recall": "recall, held-out images",
    "coverage": "coverage, held-out images",
    "trace": "trace of covariance / the data's",
}

Scored = Mapping[str, Mapping[str, float]]
"""embedding -> score -> value, as `ImageScores.score` gives them"""


@dataclass(frozen=True, eq=False)
class _Side:
    """The real images in one embedding."""

    embedding: Embedding
    training: Gaussian
    held_out: Gaussian
    neighbours: ManifoldReference


class ImageScores:
    """The real images' side of `score`, in several embeddings.

    Args:
        training: uint8 images [n, C, H, W] of all clients, that models trained on.
        held_out: theirs that no model saw; best as many.
        embeddings: in which to score.
        k: radii of recall and coverage reach to the k-th nearest other image.
    """

    def __init__(self, training: Tensor, held_out: Tensor, embeddings: Sequence[Embedding], k: int = 5) -> None:
        self._sides, self.floor = [], {}
        for embedding in embeddings:
            own, other = (_features(embedding, images, "real images") for images in (training, held_out))
            side = _Side(embedding, summarize(own), summarize(other), ManifoldReference.from_features([other], k))
            self._sides.append(side)
            # what a perfect generator would score: real images that were not those scored against
            floor = _score(side, own)
            floor["fid"] = frechet_distance(side.held_out, side.training)[0]
            self.floor[embedding.name] = floor

    def score(self, images: Tensor) -> dict[str, dict[str, float]]:
        """SCORES of generated images uint8 [m, C, H, W], by embedding."""
        return {side.embedding.name: _score(side, _features(side.embedding, images, "samples")) for side in self._sides}


def real_side(
    runs: Sequence[Path], embeddings: Sequence[Embedding], num_images: int | None = None
) -> tuple[ImageScores, Tensor]:
    """Scores against the clients of some runs, and held-out images uint8 [n, C, H, W]: as many as of those trained on.

    Args:
        runs: their folders.
        embeddings: in which to score.
        num_images: n at most, evenly spaced, as they lie client by client; as many as there are of both if None.

    Raises:
        ValueError: if two runs had other clients.
    """
    data = clients_of(runs)
    training, held_out = (data.examples.inputs[data.pooled(part)] for part in ("train", "held_out"))
    count = min(len(training), len(held_out), num_images or len(training))
    training, held_out = (_spaced(images, count) for images in (training, held_out))
    return ImageScores(training, held_out, embeddings), held_out


def badness(score: str) -> Callable[[float], float]:
    """By which number less is better: FID itself, recall and coverage negated, how far a trace is from the data's."""
    if score == "trace":
        return lambda value: abs(value - 1)
    return (lambda value: -value) if score in HIGHER else float


def mark_of(score: str, embedding: str, optimised: Collection[str]) -> str:
    """The mark of one of SCORES in an embedding, of an arm whose losses used some embeddings, or none."""
    return mark_in(embedding, optimised, held_out=score not in TRAINING)


def _spaced(images: Tensor, count: int) -> Tensor:
    return images[torch.linspace(0, len(images) - 1, count).round().long()]


def _features(embedding: Embedding, images: Tensor, what: str) -> Tensor:
    return embed(embedding, images, description=f"embedding {what} with {embedding.name}")


def _score(side: _Side, features: Tensor) -> dict[str, Any]:
    made = summarize(features)
    found = side.neighbours.score(features, errors=False)
    return {
        "fid": frechet_distance(made, side.training)[0],
        HELD_OUT: frechet_distance(made, side.held_out)[0],
        "recall": found["recall"].values["all"],
        "coverage": found["coverage"].values["all"],
        "trace": float(made.trace() / side.training.trace()),
    }
