"""A class a client and a class a generator, of images that are nobody else's, with public images besides."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from fedgen.experiments.engine.feature_federation import FeatureFederation
from fedgen.experiments.engine.image_sources import ImageChoice, Source, halves
from fedgen.seeds import generator
from fedgen.statistics import Projection

REAL = "real images"


@dataclass(frozen=True, eq=False)
class ClassDeal:
    """Whose images are whose: clients of each class, generators of each class, and public images of nobody.

    Args:
        choice: of images, features and the dealing's seed.
        sizes: images of a client, rising.
    """

    choice: ImageChoice
    sizes: tuple[int, ...]

    @cached_property
    def train(self) -> Source:
        """The places of the clients' and the public images."""
        return self.choice.source()

    @cached_property
    def test(self) -> Source:
        """The places of the generators' images: the test split; the train split again if there is no other."""
        if "test" not in self.train.data.splits:
            return self.train
        return Source(self.train.data, "test", self.train.embedding)

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """The classes, each a client and a generator."""
        return tuple(self.train.examples.classes)

    def check(self) -> None:
        """Raises ValueError, before anything is embedded, for what `orders` refuses."""
        _ = self.orders

    @cached_property
    def orders(self) -> dict[str, Tensor]:
        """The train images of each class in the order in which clients of rising size take them.

        Raises:
            ValueError: if a class has fewer than the largest size, or if there are fewer than two.
        """
        if len(self.classes) < 2:
            raise ValueError(f"{self.choice.data} has {len(self.classes)} classes; a federation needs at least 2")
        found = {}
        for name in self.classes:
            positions = self.train.positions(name)
            if self.test is self.train:
                positions = halves(positions, self.choice.seed, name)[0]
            if len(positions) < self.sizes[-1]:
                raise ValueError(
                    f"class {name!r} has {len(positions)} images for a client, {self.sizes[-1]} are asked for; "
                    "give smaller --sizes"
                )
            order = torch.randperm(len(positions), generator=generator(self.choice.seed, "sample-size", name))
            found[name] = positions[order]
        return found

    @cached_property
    def generated(self) -> dict[str, Tensor]:
        """Features of every generator, and of as many real images of all classes; none is a client's."""
        found = {}
        for name in self.classes:
            positions = self.test.positions(name)
            if self.test is self.train:
                positions = halves(positions, self.choice.seed, name)[1]
            found[name] = positions
        everything, count = torch.cat(list(found.values())), len(next(iter(found.values())))
        order = torch.randperm(len(everything), generator=generator(self.choice.seed, "sample-size", REAL))
        found[REAL] = everything[order[:count]]
        return {name: self.test.features[positions] for name, positions in found.items()}

    def federation(self, size: int, features: Tensor) -> FeatureFederation:
        """One client a class, of so many images, in features of the train split."""
        return FeatureFederation(features, tuple(order[:size] for order in self.orders.values()), self.classes)

    def projection(self, components: int) -> Projection:
        """The first principal components of the train images that no client has at the largest size.

        Raises:
            ValueError: if they are too few.
        """
        public = torch.cat([order[self.sizes[-1] :] for order in self.orders.values()])
        if len(public) <= components:
            raise ValueError(
                f"{len(public)} images are left for {components} components; give smaller --sizes or --components"
            )
        name = f"{self.train.examples.name}, {len(public)} images of no client"
        return Projection.fit(self.train.features[public], components, self.train.embedding.name, name)
