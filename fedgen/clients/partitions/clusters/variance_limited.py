"""Clients of little variance: an image of each class and its nearest neighbours, as in the papers' federations.

The papers take K = 20 neighbours in Inception's features; they leave open whether the image itself is one of the 20.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedgen.clients.partitions.by_class import ByClass
from fedgen.clients.partitions.clusters.embedded_partition import EmbeddingLike, described, features_of
from fedgen.clients.partitions.partition import Partition, at_least_one, check_assignment, require_labels
from fedgen.data.examples import Examples
from fedgen.models.empirical import nearest
from fedgen.seeds import generator


class VarianceLimited(Partition):
    """A client a class that occurs: one image of it, drawn at random, and its nearest (Euclidean) in an embedding.

    All other examples belong to no client. The image of a class depends on the seed and the class alone, so that
    within classes clients of more neighbours hold those of fewer.

    Args:
        neighbours: K; a client holds K + 1 images, so that 19 gives the clients of 20 images that the papers may mean.
        embedding: in whose features near is near: a name, options of `load_embedding` with the key "name", or an
            embedding. Measure in another one, or the scores see the very distances that made the clients.
        across_classes: False looks for neighbours among the image's class; True among all examples, which then go to
            the client that they are nearest to, as long as it needs any.
        cache: folder that keeps the features; embedded anew each time if None.
    """

    def __init__(
        self,
        neighbours: int = 20,
        embedding: EmbeddingLike = "efficientnet-lite0",
        across_classes: bool = False,
        cache: str | None = None,
    ) -> None:
        self.neighbours = at_least_one(neighbours, "neighbours")
        self.embedding = embedding
        self.across_classes = across_classes
        self.cache = None if cache is None else str(cache)

    def assign(self, examples: Examples, seed: int) -> list[np.ndarray]:
        """Assign every example, as every partition does.

        Raises:
            ValueError: for a class with too few images, or images that the embedding cannot take.
        """
        anchors = draw_anchors(examples, seed, self._needed(examples))
        features = features_of(examples, self.embedding, self.cache, "neighbours")
        if self.across_classes:
            clients = share_neighbours(features, anchors, self.neighbours)
        else:
            clients = class_neighbours(examples, features, anchors, self.neighbours)
        return check_assignment([client.numpy() for client in clients], len(examples), self.names(examples))

    def names(self, examples: Examples) -> list[str]:
        """The classes' names, as `ByClass` has them."""
        require_labels(examples, "VarianceLimited")
        return ByClass().names(examples)

    def settings(self) -> dict[str, Any]:
        """Class name and arguments for JSON; an embedding by its name and fingerprint."""
        return {**super().settings(), "embedding": described(self.embedding)}

    def _needed(self, examples: Examples) -> int:
        """Images that each class must have; across classes one does, if there are enough in all."""
        size, classes = self.neighbours + 1, len(np.unique(require_labels(examples, "VarianceLimited")))
        if not self.across_classes:
            return size
        if size * classes > len(examples):
            raise ValueError(
                f"{classes} clients of {size} images (an image and neighbours={self.neighbours}) are more than the"
                f" {len(examples)} of {examples.name}; use fewer neighbours"
            )
        return 1


def draw_anchors(examples: Examples, seed: int, needed: int = 1) -> list[int]:
    """The position of one image of each class that occurs, at random by seed and class."""
    anchors = []
    for label in examples.labels.unique().tolist():
        own = (examples.labels == label).nonzero().flatten()
        if len(own) < needed:
            raise ValueError(
                f"class {examples.classes[label]!r} of {examples.name} has {len(own)} images, and its client needs"
                f" {needed}; use fewer neighbours, or leave the class out"
            )
        anchors.append(int(own[torch.randint(len(own), (), generator=generator(seed, "variance limited", label))]))
    return anchors


def class_neighbours(examples: Examples, features: Tensor, anchors: Sequence[int], count: int) -> list[Tensor]:
    """For each anchor its position and those of the `count` nearest images of its class, nearest first."""
    found = []
    for anchor in anchors:
        own = (examples.labels == examples.labels[anchor]).nonzero().flatten()
        found.append(own[nearest(features[own], int((own == anchor).nonzero()), count)])
    return found


def share_neighbours(features: Tensor, anchors: Sequence[int], count: int) -> list[Tensor]:
    """For each anchor its position and those of `count` near images, nearest first, no image with two anchors.

    Of all pairs of an anchor and an image the nearest is served first: the image is the anchor's unless the image is
    taken or the anchor has its `count`. Equally near pairs are served in the order of anchors.
    """
    reach = min(len(anchors) * (count + 1), len(features)) - 1  # others cannot have taken more than these
    pairs = []
    for owner, anchor in enumerate(anchors):
        near = nearest(features, anchor, reach)[1:]
        distances = (features[near].double() - features[anchor].double()).square().sum(1)
        pairs += [(far, owner, place) for far, place in zip(distances.tolist(), near.tolist())]
    taken = set(anchors)
    found = [[anchor] for anchor in anchors]
    for _, owner, place in sorted(pairs):
        if place not in taken and len(found[owner]) <= count:
            taken.add(place)
            found[owner].append(place)
    return [torch.tensor(own) for own in found]
