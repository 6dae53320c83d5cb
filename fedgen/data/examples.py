"""Labelled images, points or tokens in memory; `LazyExamples` offers the same for what is read when it is needed."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor

from fedgen.data.annotations import as_kinds
from fedgen.images import channels_first, from_uint8

KINDS = {torch.uint8: "images", torch.float32: "points", torch.int64: "texts"}
"""What inputs in memory are, by their type."""


def kind_of(inputs: Any) -> str:
    """Return the kind of inputs, a tensor or `LazyInputs`: "images", "points" or "texts"; "items" for none of these."""
    return KINDS.get(inputs.dtype, "items") if isinstance(inputs, Tensor) or inputs.has_images else "items"


@dataclass(frozen=True, eq=False)
class Examples:
    """Labelled images, points or texts in memory; no notion of clients, though the data may say who made each example.

    NumPy arrays and lists are taken too, and labels and owners of any integer type; labels also of whole floats.

    Args:
        inputs: images, uint8 [N, C, H, W], points, float32 [N, D], or texts as tokens, int64 [N, T].
        labels: int64 [N], positions in `classes`; all 0 for data without labels.
        name: data set and split, e.g. "digits/train"; it stands in every stored score.
        classes: the labels' names; empty for data without labels.
        owners: int64 [N], positions in `owner_names`: who made each example, such as the writer of a digit; None for
            data that does not say.
        owner_names: the owners' names, no two alike; empty for data that does not say.

    Raises:
        ValueError: if a shape, dtype, label or owner does not fit the above.

    Examples:
        >>> import torch
        >>> from fedgen import Examples
        >>> images, labels = torch.zeros(4, 1, 8, 8, dtype=torch.uint8), torch.tensor([0, 1, 1, 1])
        >>> examples = Examples(images, labels, "tiny", ("cat", "dog"))
        >>> examples.label_counts()
        tensor([1, 3])
        >>> examples.subset([0, 1])
        Examples('tiny', 2 images (1, 8, 8), 2 classes)
    """

    inputs: Tensor
    labels: Tensor
    name: str
    classes: tuple[str, ...]
    owners: Tensor | None = None
    owner_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "classes", tuple(self.classes))
        object.__setattr__(self, "owner_names", tuple(self.owner_names))
        for part in ("inputs", "labels", "owners"):
            object.__setattr__(self, part, self._tensor(part, getattr(self, part)))
        self._check_inputs()
        allowed = f"0 to {len(self.classes) - 1}" if self.classes else "all 0, as there are no classes"
        self._check_places("labels", self.labels, max(1, len(self.classes)), f"must be {allowed}")
        names = self.owner_names
        if len(set(names)) != len(names) or (self.owners is None and names):
            raise ValueError(f"{self.name}: {len(names)} owner_names need owners, and no two may be alike")
        if self.owners is not None:
            self._check_places("owners", self.owners, len(names), f"there are {len(names)} owner_names")

    def _tensor(self, part: str, values: Any) -> Any:
        """A part as a tensor; labels and owners that are integers, labels that are whole floats, too, as int64."""
        if values is None or (isinstance(values, Tensor) and part == "inputs"):
            return values
        try:
            found = values if isinstance(values, Tensor) else torch.from_numpy(np.asarray(values))
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"{self.name}: {part} must be a tensor or an array, got {type(values).__name__}: {error}"
            ) from error
        if part == "labels" and found.is_floating_point() and found.ndim == 1:
            return torch.tensor(as_kinds(found, f"{self.name}: labels"), dtype=torch.int64)
        integers = not (found.is_floating_point() or found.is_complex() or found.dtype == torch.bool)
        return found.long() if part != "inputs" and integers else found

    def _check_inputs(self) -> None:
        """ValueError that says whether the type or the shape is wrong."""
        dtype, shape = self.inputs.dtype, tuple(self.inputs.shape)
        expected = "inputs must be uint8 [N, C, H, W], float32 [N, D] or int64 [N, T]"
        if dtype not in KINDS:
            raise ValueError(f"{self.name}: {expected}, got the type {dtype} (of shape {shape}); convert it")
        axes = 4 if dtype == torch.uint8 else 2
        if axes == 4 == len(shape) and channels_first(self.inputs).shape != shape:
            raise ValueError(f"{self.name}: {expected}, got {list(shape)}, channels last; .permute(0, 3, 1, 2) them")
        if len(shape) != axes:
            raise ValueError(f"{self.name}: {expected}, got {dtype} of shape {shape}: {axes} axes are needed")

    def _check_places(self, part: str, values: Tensor, count: int, rule: str) -> None:
        """ValueError, which ends with the `rule`, unless labels or owners are int64 [N] in 0 .. count - 1."""
        if values.dtype != torch.int64 or values.shape != (len(self.inputs),):
            found = f"{values.dtype} {tuple(values.shape)}"
            raise ValueError(f"{self.name}: {part} must be int64 [{len(self.inputs)}], one an input, got {found}")
        if len(values) and not 0 <= int(values.min()) <= int(values.max()) < count:
            raise ValueError(f"{self.name}: {part} run from {int(values.min())} to {int(values.max())} but {rule}")

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        return f"Examples({self.name!r}, {len(self)} {self.kind} {self.shape}, {len(self.classes)} classes)"

    @property
    def is_images(self) -> bool:
        """True for images, False for points and texts."""
        return self.inputs.ndim == 4

    @property
    def kind(self) -> str:
        """The kind of the inputs: "images", "points" or "texts"; "items" where they are none of these."""
        return kind_of(self.inputs)

    @property
    def is_labelled(self) -> bool:
        """True if the labels mean something."""
        return bool(self.classes)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input: (C, H, W) or (D,)."""
        return tuple(self.inputs.shape[1:])

    def label_counts(self) -> Tensor:
        """Count the examples of each class: int64 [number of classes]."""
        return torch.bincount(self.labels, minlength=len(self.classes))

    def inputs_at(self, positions: Tensor) -> Any:
        """The inputs at these positions; of data that lie on disk a view, which is read where it is indexed."""
        return self.inputs[positions]

    def subset(self, indices: Tensor | np.ndarray | Sequence[int], name: str | None = None) -> Self:
        """The examples at these positions, in this order (a copy), under the same name unless another is given.

        Raises:
            IndexError: if a position is outside 0..N-1 (negative ones do not count from the end), or they are not a
                list of integers (a mask of booleans is none).
        """
        chosen = self._positions_of(indices)
        owners = None if self.owners is None else self.owners[chosen]
        inputs, labels = self.inputs_at(chosen), self.labels[chosen]
        return replace(self, inputs=inputs, labels=labels, name=name or self.name, owners=owners)

    def _positions_of(self, indices: Tensor | np.ndarray | Sequence[int]) -> Tensor:
        positions = np.asarray(indices)
        if positions.ndim != 1 or (len(positions) and positions.dtype.kind not in "iu"):
            found = f"{positions.dtype} {positions.shape}"
            raise IndexError(f"{self.name}: positions must be a list of integers, got {found}")
        chosen = torch.from_numpy(positions.astype(np.int64))
        if len(chosen) and not 0 <= int(chosen.min()) <= int(chosen.max()) < len(self):
            span = f"{int(chosen.min())} to {int(chosen.max())}"
            raise IndexError(f"{self.name}: positions run from {span} but there are {len(self)} examples")
        return chosen


Batch = tuple[Tensor, Tensor]


def to_batch(examples: Examples, indices: Tensor) -> Batch:
    """Model inputs and labels at the indices: images as floats in [-1, 1], points as they are."""
    inputs = examples.inputs[indices]
    return from_uint8(inputs) if examples.is_images else inputs, examples.labels[indices]


def draw_batches(count: int, batch_size: int, iterations: int, draws: torch.Generator) -> Tensor:
    """Positions int64 [iterations, min(batch_size, count)] in 0..count-1: permutations in a row, cut to batches."""
    size = min(batch_size, count)
    needed = iterations * size
    epochs = [torch.randperm(count, generator=draws) for _ in range(-(-needed // count))]
    return torch.cat(epochs)[:needed].view(iterations, size)


def endless_batches(count: int, batch_size: int, draws: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    """The batches of `draw_batches` without end: positions, and how often each was drawn before."""
    size, epoch = min(batch_size, count), 0
    left, visits = torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64)
    while True:
        if len(left) < size:
            left = torch.cat([left, torch.randperm(count, generator=draws)])
            visits = torch.cat([visits, torch.full((count,), epoch)])
            epoch += 1
        yield left[:size], visits[:size]
        left, visits = left[size:], visits[size:]


Split = Literal["train", "test"]


class DataSet(ABC):
    """A named source of labelled images or points. A subclass gives `name`, `splits` and `read`."""

    name: str
    splits: tuple[str, ...] = ("train", "test")

    def load(self, split: Split = "train") -> Examples:
        """The whole split in memory, named `{name}/{split}`.

        Raises:
            ValueError: if the data set has no such split; for others see `read`.
        """
        if split not in ("train", "test"):
            raise ValueError(f"split {split!r} is not known; use 'train' or 'test'")
        if split not in self.splits:
            raise ValueError(
                f"{self.name} has no {split} split; hold out some of its train examples instead, or use a data set "
                "that has one: MNIST, FashionMNIST, CIFAR10, CIFAR100, CelebA, FEMNIST, Camelyon17, FedISIC2019, "
                "ImageNet32, GaussianMixture, PhotoPatches, StyleShift with held_out, ImageFolder with test_root, or "
                "HuggingFace with test_split"
            )
        return self.read(split)

    @abstractmethod
    def read(self, split: Split) -> Examples:
        """The examples of a split that `splits` names; called by `load`.

        Raises:
            FileNotFoundError: if files are missing and cannot be downloaded; the message says how to get them.
            ValueError: if a file is damaged, or is none of this data set's; the message names it.
            ImportError: if a library that it needs is not installed.
        """

    def read_from(self) -> list[Path] | None:
        """The files and folders that `read` reads, and nothing else; None where nobody says.

        What was read from them may be used again while nothing in them has changed. It counts for the class that
        defines it, not for its subclasses.
        """
        return None
