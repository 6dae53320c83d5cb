"""Clients and generators that are an image and its nearest neighbours: how many neighbours sets how much they vary.

The papers' variance-limited federations, and the generators G_M that they are scored with.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedgen.clients.partitions import ByClass
from fedgen.clients.partitions.clustered import class_neighbours, draw_anchors
from fedgen.data import Examples
from fedgen.embeddings import load_embedding
from fedgen.experiments.engine.choice import at_least, rising
from fedgen.experiments.engine.feature_federation import FeatureFederation
from fedgen.experiments.engine.image_sources import ImageChoice, Source, halves
from fedgen.models.empirical import nearest
from fedgen.progress import track
from fedgen.seeds import generator
from fedgen.statistics import Projection

FIRST_SIZES = (100, 200, 500, 1000, 2000)  # the papers' M, which then rises by STEP
STEP = 5000
QUICK_SIZES = (100, 500, 2000, 5000, 20_000)


@dataclass(frozen=True)
class NeighbourChoice(ImageChoice):
    """Options common to experiments about neighbourhoods; its fields are options of their commands.

    Args:
        neighbours: embedding in whose features near is near; another one than the scores', unless the paper's is asked.
        overlap: whether clients are of the train split too, as the generators, and may share images with them.
        anchors: generators of each size, each around an image of its own.
        sizes: neighbours M of the generators; 100 to the whole data, as the papers, if not given.
    """

    QUICK: ClassVar[Mapping[str, Any]] = {"anchors": 4}

    neighbours: str = "pixels"
    overlap: bool = False
    anchors: int = 20
    sizes: tuple[int, ...] | None = None


class Neighbourhoods:
    """The images of a choice, and the clients and generators made of them.

    Clients come from the test split and generators from the train split. Of data without a test split each class is
    halved at random. With overlap both come from the train split.

    Raises:
        ValueError: for sizes that are not rising or exceed the images, or fewer than two anchors.
    """

    def __init__(self, choice: NeighbourChoice) -> None:
        self.choice = choice
        self.client_source, self.generator_source, self._public = open_sides(choice)
        total = len(self.generator_source.examples)
        self.anchors = choice.anchors
        if not 2 <= self.anchors <= total:
            raise ValueError(f"anchors={self.anchors}: a spread needs 2, and there are {total} images to choose from")
        self.sizes = tuple(choice.sizes) if choice.sizes is not None else default_sizes(total, choice.quick)
        name = self.generator_source.examples.name
        rising(1, sizes=self.sizes)
        if self.sizes[-1] >= total:
            raise ValueError(
                f"{self.sizes[-1]} neighbours: an image of {name} has {total - 1} others; give smaller sizes"
            )

    @property
    def equal(self) -> int:
        """Images that every generator has: one more than the fewest neighbours."""
        return self.sizes[0] + 1

    def check(self, neighbours: int, controls: int = 0, floor: int = 2) -> None:
        """Raises ValueError for clients, IID controls or a floor that cannot be had.

        Args:
            neighbours: of a client; a class with fewer is named.
            controls: how many.
            floor: images that the scores of `floor` need.
        """
        at_least(1, clients=neighbours)
        at_least(0, controls=controls)
        examples = self.client_source.examples
        draw_anchors(examples, self.choice.seed, neighbours + 1)
        left = sum(min(neighbours + 1, int(count) - neighbours - 1) for count in examples.label_counts() if count)
        if left < floor:
            raise ValueError(
                f"clients={neighbours}: clients of {neighbours + 1} images leave {left} of {examples.name} for the real"
                f" images' scores, which need {floor}; give a smaller number"
            )

    def federation(self, neighbours: int) -> FeatureFederation:
        """A client a class: an image at random and its nearest neighbours within the class, in the scored features."""
        examples = self.client_source.examples
        parts = tuple(part[: neighbours + 1] for part in self._near_clients(neighbours))
        return FeatureFederation(self.client_source.features, parts, tuple(ByClass().names(examples)))

    def floor(self, neighbours: int) -> Tensor:
        """Features of real images as near the clients as can be: each client's next neighbours, as many as it has."""
        left = torch.cat([part[neighbours + 1 :] for part in self._near_clients(neighbours)])
        return self.client_source.features[left]

    def projection(self, components: int, neighbours: int) -> Projection:
        """The principal components of images that are neither clients' nor the floor's, nor generators' if possible.

        Raises:
            ValueError: if there are no such images, or too few for so many components.
        """
        source = self._public or self.client_source
        kept = torch.ones(len(source.examples), dtype=torch.bool)
        if self._public is None:
            kept[torch.cat(self._near_clients(neighbours))] = False
            if not kept.any():
                raise ValueError(
                    f"clients={neighbours}: clients and the real images beside them take all {len(kept)} images of"
                    f" {source.examples.name}, and none is left for principal components; give a smaller number"
                )
        features = source.features if kept.all() else source.features[kept]
        return Projection.fit(features, components, source.embedding.name, source.examples.name)

    @cached_property
    def orders(self) -> Tensor:
        """The position of each anchor and its neighbours', nearest first, int64 [anchors, largest size + 1].

        A generator is the beginning of a row, so that those of one anchor hold each other.
        """
        draws = generator(self.choice.seed, "generators' images")
        anchors = torch.randperm(len(self.generator_source.examples), generator=draws)[: self.anchors].tolist()
        near = self._near(self.generator_source)
        rows = track(anchors, "sorting neighbours", len(anchors), "images")
        return torch.stack([nearest(near, anchor, self.sizes[-1]) for anchor in rows])

    def _near_clients(self, neighbours: int) -> list[Tensor]:
        """Each client's images and as many of the next ones, nearest first, as its class has."""
        examples, found = self.client_source.examples, []
        near, counts = self._clients_near, examples.label_counts()
        for anchor in draw_anchors(examples, self.choice.seed, neighbours + 1):
            most = int(counts[examples.labels[anchor]]) - 1
            found += class_neighbours(examples, near, [anchor], min(2 * neighbours + 1, most))
        return found

    @cached_property
    def _clients_near(self) -> Tensor:
        return self._near(self.client_source)

    def _near(self, source: Source) -> Tensor:
        """The features in which near is near."""
        if self.choice.neighbours == self.choice.embedding:
            return source.features
        return source.with_embedding(load_embedding(self.choice.neighbours)).features


def open_sides(choice: NeighbourChoice) -> tuple[Source, Source, Source | None]:
    """The images of clients and of generators, and public ones, if these are others than the clients'."""
    train = choice.source()
    test = Source(train.data, "test", train.embedding) if "test" in train.data.splits else None
    if choice.overlap:
        return train, train, test
    if test is not None:
        return test, train, None
    examples = train.examples
    pairs = [halves(train.positions(name), choice.seed, name) for name in examples.classes]
    sides = (torch.cat(side).sort().values for side in zip(*pairs))
    clients, generators = (
        examples.subset(side, f"{examples.name}, {n} half") for side, n in zip(sides, ("one", "other"))
    )
    return _source_of(train, clients), _source_of(train, generators), None


def default_sizes(total: int, quick: bool = False) -> tuple[int, ...]:
    """The papers' sizes below the largest, total - 1, and that one: the whole data."""
    paper = (*FIRST_SIZES, *range(STEP, total, STEP))
    return (*(size for size in (QUICK_SIZES if quick else paper) if size < total - 1), total - 1)


def _source_of(source: Source, examples: Examples) -> Source:
    """Some of a source's images as a source."""
    part = Source(source.data, source.split, source.embedding, source.cache)
    part.__dict__["examples"] = examples
    return part


def draw_images(order: Tensor, count: int, seed: int, *path: int | str) -> Tensor:
    """Positions of at most `count` of a generator's images, none twice."""
    if count >= len(order):
        return order
    return order[torch.randperm(len(order), generator=generator(seed, "drawn", *path))[:count]]
