"""The images of an experiment and their features: by name, offline or from local files, embedded once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from fedgen.data import (
    CIFAR10,
    CIFAR100,
    MNIST,
    DataSet,
    Digits,
    Examples,
    FashionMNIST,
    ImageFolder,
    ImageNet32,
    MNIST5k,
)
from fedgen.embeddings import Embedding, FeatureCache, embed, load_embedding
from fedgen.experiments.engine.choice import Choice
from fedgen.seeds import generator, subset

CACHE = Path("checkpoints/features")  # shared by all experiments

DATA: dict[str, Callable[[Path], DataSet]] = {
    "digits": lambda root: Digits(),
    "mnist5k": lambda root: MNIST5k(),
    "mnist": MNIST,
    "fashion-mnist": FashionMNIST,
    "cifar10": CIFAR10,
    "cifar100": CIFAR100,
    "imagenet32": lambda root: ImageNet32(root, classes=100),  # the papers' first 100 classes
}


def open_data(name: str, root: Path = Path("data")) -> DataSet:
    """The data set of a name in DATA, its files in `root`; or the images of a folder with a folder for each class.

    Raises:
        ValueError: for what is neither, listing the names.
    """
    if name in DATA:
        return DATA[name](root)
    if Path(name).is_dir():
        return ImageFolder(name)
    raise ValueError(f"no data {name!r}: it is no folder of images, and the names are {', '.join(DATA)}")


class Source:
    """A split's images and their features, each read or computed when first asked for, and kept.

    Args:
        data: the data set.
        split: "train" or "test".
        embedding: what makes the features.
        cache: folder that keeps them on disk.
    """

    def __init__(
        self, data: DataSet, split: Literal["train", "test"], embedding: Embedding, cache: Path | None = None
    ) -> None:
        self.data, self.split, self.embedding, self.cache = data, split, embedding, cache or CACHE

    @cached_property
    def examples(self) -> Examples:
        """The images with their labels."""
        return self.data.load(self.split)

    @cached_property
    def features(self) -> Tensor:
        """Features of all images, float32 [N, D]; the only copy of them: take positions of it.

        Raises:
            ValueError: for images that the embedding cannot take, or features that are not finite.
        """
        images = self.examples
        text = f"embedding {images.name} with {self.embedding.name}"
        return embed(self.embedding, images.inputs, description=text, cache=FeatureCache(self.cache))

    def with_embedding(self, embedding: Embedding) -> "Source":
        """The same images under another embedding."""
        other = Source(self.data, self.split, embedding, self.cache)
        other.__dict__["examples"] = self.examples  # images are kept once
        return other

    def positions(self, name: str) -> Tensor:
        """Return where the images of a class are, int64.

        Raises:
            ValueError: for a class that is not there or has no image.
        """
        classes = list(self.examples.classes)
        if name not in classes:
            raise ValueError(f"{self.examples.name} has no class {name!r}; it has {', '.join(classes) or 'none'}")
        found = (self.examples.labels == classes.index(name)).nonzero().flatten()
        if not len(found):
            raise ValueError(f"{self.examples.name}: class {name!r} has no images")
        return found


def open_source(
    data: str,
    root: Path,
    split: Literal["train", "test"],
    embedding: str | Embedding,
    weights: Path | None = None,
) -> Source:
    """A split's images by the names that experiments take.

    Args:
        data: a name in DATA, or a folder of class folders.
        root: folder of data sets.
        split: "train" or "test".
        embedding: a name, or an embedding.
        weights: a local file of the embedding's weights.

    Raises:
        ValueError: for an unknown name, or weights for an embedding without any.
        FileNotFoundError: if the data's files are missing (when they are first read), or those of the weights.
    """
    return Source(open_data(data, root), split, load_embedding(embedding, weights=weights))


@dataclass(frozen=True)
class ImageChoice(Choice):
    """Options common to experiments on images of a data set; its fields are options of their commands.

    Args:
        data: a name (fashion-mnist, cifar10, cifar100, imagenet32, mnist5k, digits, ...), or a folder of class folders.
        root: folder of data sets.
        embedding: in whose features scores are measured.
        weights: a local file of its weights.
    """

    data: str = "fashion-mnist"
    root: Path = Path("data")
    embedding: str = "efficientnet-lite0"
    weights: Path | None = None

    def source(self, split: Literal["train", "test"] = "train") -> Source:
        """A split's images, see `open_source`."""
        return open_source(self.data, self.root, split, self.embedding, self.weights)


def halves(positions: Tensor, seed: int, *path: str | int) -> tuple[Tensor, Tensor]:
    """Positions in two halves at random that share none, each in rising order: one for clients, one for generators."""
    order = torch.randperm(len(positions), generator=generator(seed, "halves", *path))
    first, second = positions[order].tensor_split(2)
    return first.sort().values, second.sort().values


def chosen(positions: Tensor, count: int | None, seed: int, *path: str | int) -> Tensor:
    """At most `count` of the positions at random, in rising order; all of them if None.

    Raises:
        ValueError: if there are fewer than `count`.
    """
    if count is None:
        return positions
    if count > len(positions):
        raise ValueError(f"{count} images are asked for and there are {len(positions)}")
    return positions[subset(len(positions), count, seed, "chosen", *path)].sort().values


def pick_classes(names: Sequence[str] | None, known: Sequence[str], default: Sequence[str]) -> tuple[str, ...]:
    """The classes that an option names, or the default ones.

    Raises:
        ValueError: for a class that is not there or is given twice.
    """
    wanted = tuple(default if names is None else names)
    for name in wanted:
        if name not in known or wanted.count(name) > 1:
            problem = "is given twice" if name in known else f"is not there; there are {', '.join(known)}"
            raise ValueError(f"class {name!r} {problem}")
    return wanted
