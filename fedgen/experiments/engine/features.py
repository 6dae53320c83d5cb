"""Images of an experiment and their features, embedded once; clients as positions in one tensor of features."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from fedgen import data as data_sets
from fedgen.embeddings import Embedding, FeatureCache, embed, load_embedding
from fedgen.evaluation.reference import Reference
from fedgen.experiments.engine.rankings import CLIENTS, IID
from fedgen.experiments.engine.study import Choice
from fedgen.scores import FederatedScore, FrechetReference
from fedgen.scores.frechet.corrected import Bias
from fedgen.seeds import generator, subset
from fedgen.statistics import Gaussian

CACHE = Path("checkpoints/features")  # shared by all experiments

DATA: dict[str, Callable[[Path], data_sets.DataSet]] = {
    "digits": lambda root: data_sets.Digits(),
    "mnist5k": lambda root: data_sets.MNIST5k(),
    "mnist": data_sets.MNIST,
    "fashion-mnist": data_sets.FashionMNIST,
    "cifar10": data_sets.CIFAR10,
    "cifar100": data_sets.CIFAR100,
    "imagenet32": lambda root: data_sets.ImageNet32(root, classes=100),  # the papers' first 100 classes
}


def open_data(name: str, root: Path = Path("data")) -> data_sets.DataSet:
    """The data set of a name in DATA, its files in `root`; or the images of a folder with a folder for each class."""
    if name in DATA:
        return DATA[name](root)
    if Path(name).is_dir():
        return data_sets.ImageFolder(name)
    raise ValueError(f"no data {name!r}: it is no folder of images, and the names are {', '.join(DATA)}")


class Source:
    """A split's images and their features, each read or computed when first asked for, and kept."""

    def __init__(
        self, data: data_sets.DataSet, split: Literal["train", "test"], embedding: Embedding, cache: Path | None = None
    ) -> None:
        self.data, self.split, self.embedding, self.cache = data, split, embedding, cache or CACHE

    @cached_property
    def examples(self) -> data_sets.Examples:
        return self.data.load(self.split)

    @cached_property
    def features(self) -> Tensor:
        """Features of all images, float32 [N, D]; the only copy of them: take positions of it."""
        images = self.examples
        text = f"embedding {images.name} with {self.embedding.name}"
        return embed(self.embedding, images.inputs, description=text, cache=FeatureCache(self.cache))

    def with_embedding(self, embedding: Embedding) -> "Source":
        return self.of(self.examples, embedding)  # images are kept once

    def of(self, examples: data_sets.Examples, embedding: Embedding | None = None) -> "Source":
        """The same split's source of other images, or in another embedding."""
        other = Source(self.data, self.split, self.embedding if embedding is None else embedding, self.cache)
        other.__dict__["examples"] = examples
        return other

    def positions(self, name: str) -> Tensor:
        """Positions of a class's images, int64."""
        classes = list(self.examples.classes)
        if name not in classes:
            raise ValueError(f"{self.examples.name} has no class {name!r}; it has {', '.join(classes) or 'none'}")
        found = (self.examples.labels == classes.index(name)).nonzero().flatten()
        if not len(found):
            raise ValueError(f"{self.examples.name}: class {name!r} has no images")
        return found


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

    def source(self) -> Source:
        return Source(open_data(self.data, self.root), "train", load_embedding(self.embedding, weights=self.weights))


def halves(positions: Tensor, seed: int, *path: str | int) -> tuple[Tensor, Tensor]:
    """Positions in two halves at random that share none, each in rising order: one for clients, one for generators."""
    order = torch.randperm(len(positions), generator=generator(seed, "halves", *path))
    first, second = positions[order].tensor_split(2)
    return first.sort().values, second.sort().values


def chosen(positions: Tensor, count: int | None, seed: int, *path: str | int) -> Tensor:
    """At most `count` of the positions at random, in rising order; all of them if None."""
    if count is None:
        return positions
    if count > len(positions):
        raise ValueError(f"{count} images are asked for and there are {len(positions)}")
    return positions[subset(len(positions), count, seed, "chosen", *path)].sort().values


def pick_classes(names: Sequence[str] | None, known: Sequence[str], default: Sequence[str]) -> tuple[str, ...]:
    wanted = tuple(default if names is None else names)
    for name in wanted:
        if name not in known or wanted.count(name) > 1:
            problem = "is given twice" if name in known else f"is not there; there are {', '.join(known)}"
            raise ValueError(f"class {name!r} {problem}")
    return wanted


@dataclass(frozen=True, eq=False)
class FeatureFederation:
    """Clients, each some rows of the same features."""

    features: Tensor  # [N, D], shared, never copied as a whole
    positions: tuple[Tensor, ...]  # each client's rows, int64 [n_i]
    names: tuple[str, ...]  # one a client

    def __post_init__(self) -> None:
        pooled = torch.cat(self.positions)
        assert len(pooled.unique()) == len(pooled)  # a client's image is its alone

    @property
    def counts(self) -> tuple[int, ...]:
        return tuple(map(len, self.positions))

    def parts(self) -> list[Tensor]:
        """Features [n_i, D] of each client: views of one tensor [n, D] that holds the clients' rows."""
        return list(self.features[torch.cat(self.positions)].split(self.counts))

    def reference(self, scores: Sequence[str | Mapping[str, Any]]) -> Reference:
        return Reference(self.parts(), scores)

    def iid(self, seed: int, repeat: int = 0) -> "FeatureFederation":
        """The control: the same images at random; what avg and all disagree about there is bias and noise alone."""
        pooled = torch.cat(self.positions)
        order = torch.randperm(len(pooled), generator=generator(seed, "iid control", repeat))
        parts = tuple(part.sort().values for part in pooled[order].split(self.counts))
        return FeatureFederation(self.features, parts, tuple(f"IID {client}" for client in range(len(parts))))

    def with_iid(self, seed: int, controls: int) -> dict[str, "FeatureFederation"]:
        """The clients themselves, as "clients", and IID controls, as "IID 0", "IID 1", ..."""
        return {CLIENTS: self} | {f"{IID}{number}": self.iid(seed, number) for number in range(controls)}


PCA = "fid pca"  # FID on principal components of public images, beside "fid"
CORRECTED = "fidc pca"  # the same without the bias of few images


def are_enough(parts: Sequence[Tensor], images: int) -> bool:
    """Return whether clients and generators have images enough for a corrected FID."""
    return min(images, *map(len, parts)) >= parts[0].shape[1] + 2


def component_reference(parts: Sequence[Tensor], images: int) -> FrechetReference:
    """FID on principal components; corrected too, where every client and generator (`images`) has images enough."""
    biases: tuple[Bias, ...] = ("plug-in", "corrected") if are_enough(parts, images) else ("plug-in",)
    return FrechetReference(parts, "examples", 1, biases)


def component_scores(
    reference: FrechetReference, projected: Tensor | Gaussian, errors: bool = True
) -> list[FederatedScore]:
    """PCA, and CORRECTED where the reference has it, of generated images' components."""
    found = reference.measure_all(projected, errors)
    return [reference.combined(name, one) for name, one in zip((PCA, CORRECTED), found)]


def rows_of(scores: Sequence[FederatedScore]) -> dict[str, dict[str, Any]]:
    """Scores of one generated set as plain numbers: {score: {"avg", "all", "worst", "errors": {...}, ...}}."""
    rows: dict[str, dict[str, Any]] = {}
    for score in scores:
        row: dict[str, Any] = dict(score.values)
        if score.errors:  # "errors": over generated images alone, those of differences against the same clients
            row["errors"] = dict(score.error_parts.get("generated", score.errors))
            row["total errors"] = dict(score.errors)
        if score.errors_over_clients:
            row["over clients"] = dict(score.errors_over_clients)
        if score.terms:
            row["terms"] = {term: dict(values) for term, values in score.terms.items()}
        rows[score.name] = row
    return rows
