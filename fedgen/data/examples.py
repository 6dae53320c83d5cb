"""Labelled images, floats or tokens in memory; labels and owners of anybody's Dataset, without decoding its images."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from fedgen.data.optional_attributes import DescribedDataset, optional
from fedgen.images import channels_first, from_uint8
from fedgen.own_code import warn

AXES = {
    "images": "[N, C, H, W]",
    "texts": "[N, T]",
    "points": "[N, D]",
    "series": "[N, C, T]",
    "volumes": "[N, C, D, H, W]",
    "arrays": "[N, ...]",
}
"""The kinds of samples, with their axes. All after the first two are floats as they are, of any rank but 4."""
RANKS = {2: "points", 3: "series", 4: "images", 5: "volumes"}  # what floats are called; others are "arrays"
TYPES = {"images": torch.uint8, "texts": torch.int64}  # in memory; all others are float32


def kind_of(inputs: Any) -> str:
    """Return the kind of inputs, a tensor or `LazyInputs`, of those in `AXES`; "items" for none of these."""
    if not isinstance(inputs, Tensor) and not inputs.has_images:
        return "items"
    if inputs.dtype.is_floating_point:
        return RANKS.get(inputs.ndim, "arrays")
    return next((kind for kind, dtype in TYPES.items() if dtype == inputs.dtype), "items")


@dataclass(frozen=True, eq=False)
class Examples:
    """Labelled images, floats or texts in memory; no notion of clients, though the data may say who made each example.

    NumPy arrays and lists are taken too, and labels and owners of any integer type; labels also of whole floats.

    Args:
        inputs: images, uint8 [N, C, H, W], texts as tokens, int64 [N, T], or float32 as they are: points [N, D], series
            [N, C, T], volumes [N, C, D, H, W], or arrays of more axes.
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
        dtype, shape = self.inputs.dtype, tuple(self.inputs.shape)
        expected = "inputs must be uint8 [N, C, H, W], int64 [N, T] or float32 [N, D], [N, C, T], [N, C, D, H, W]"
        if dtype not in (*TYPES.values(), torch.float32):
            raise ValueError(f"{self.name}: {expected}, got the type {dtype} (of shape {shape}); convert it")
        needed = {torch.uint8: 4, torch.int64: 2}.get(dtype)  # of floats any number but 4
        if len(shape) != needed if needed else len(shape) in (0, 1, 4):
            axes = f"{needed or 2} axes are needed" + ", or 3, 5 or more" * (not needed)
            raise ValueError(f"{self.name}: {expected}, got {dtype} of shape {shape}: {axes}")
        if len(shape) == 4 and channels_first(self.inputs).shape != shape:
            raise ValueError(f"{self.name}: {expected}, got {list(shape)}, channels last; .permute(0, 3, 1, 2) them")

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
        """True for images, False for all other kinds."""
        return self.inputs.ndim == 4

    @property
    def kind(self) -> str:
        """The kind of the inputs, of those in `AXES`; "items" where they are none of these."""
        return kind_of(self.inputs)

    @property
    def is_labelled(self) -> bool:
        """True if the labels mean something."""
        return bool(self.classes)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input: (C, H, W), (D,), (C, T), (C, D, H, W)."""
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
    """Model inputs and labels at the indices: images as floats in [-1, 1], all others as they are."""
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
    """A named source of labelled images, floats or texts. A subclass gives `name`, `splits` and `read`."""

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


# ---- labels and owners of anybody's Dataset ----

Annotation = Callable[..., Any] | str | Sequence[Any] | Tensor | np.ndarray | None
"""A column or attribute by its name, a function of the position, the values themselves, or None to look for them."""

Owners = tuple[Tensor | None, tuple[str, ...]]
"""Each item's owner, int64 [N], and the owners' names; None and none where nobody says."""

LABEL_NAMES = ("targets", "labels")
COLUMNS = ("label", "labels")
MOST_NUMBERS = 10_000  # of classes: larger ones are identities, such as of persons


def find_labels(dataset: Any, given: Annotation, count: int, seen: bool = False) -> tuple[Tensor, tuple[str, ...]]:
    """Labels int64 [N] and the classes' names, given or looked for; all 0 and none for data without labels."""
    # Integers, whole floats and booleans keep their numbers. Texts are numbered in sorted order, and so are integers
    # that are no class numbers (identities); where models see the labels (`seen`), those are a ValueError.
    said, values = ("labels", annotated(dataset, given, "labels", count)) if given is not None else _looked_for(dataset)
    kinds = as_kinds(values, said, sure=given is not None) if values is not None else []
    if not kinds:
        return torch.zeros(count, dtype=torch.int64), ()
    places, classes = number_classes(kinds, said, _class_names(dataset), seen)
    return torch.tensor([places[kind] for kind in kinds], dtype=torch.int64), classes


def find_owners(dataset: Any, given: Annotation, count: int) -> Owners:
    """Each item's owner, int64 [N], and the owners' names in order; None where nobody says."""
    if given is None and (given := optional(dataset, DescribedDataset, "owners")) is None:
        return None, ()
    return numbered(as_kinds(annotated(dataset, given, "owners", count), "owners"))


def annotated(dataset: Any, given: Any, what: str, count: int) -> Any:
    """The values that were asked for, one an item; ValueError if there are none, or not as many."""
    if isinstance(given, str):
        values = _named(dataset, given)
        if values is None:
            known = ", ".join(_columns(dataset)) or ", ".join(key for key in vars(dataset) if not key.startswith("_"))
            raise ValueError(
                f"{what}={given!r} is no attribute or column of a {type(dataset).__name__}; it has {known}"
            )
    elif callable(given):
        values = [given(position) for position in range(count)]
    else:
        values = given
    if len(values) != count and (what != "labels" or len(values)):  # [] stands for no labels
        raise ValueError(f"{what} has {len(values)} values for {count} items; give one an item")
    return values


def as_kinds(values: Any, said: str, sure: bool = True) -> list[int] | list[str]:
    """The values as integers or texts, all of one kind; ValueError names the first other item, or one-hot rows."""
    # `sure=False`: where most are neither (boxes, masks, fractions), none, and a warning
    found = _listed(values)
    if set(map(type, found)) in ({int}, {str}):  # as most are; the rest takes seconds of millions
        return found
    kinds: list[Any] = list(map(as_kind, found))
    if None in kinds and _are_one_hot(found):
        raise ValueError(f"{said}: rows are one-hot; give the numbers of their classes, as onehot.argmax(1) does")
    wrong = next((n for n, kind in enumerate(kinds) if kind is None or type(kind) is not type(kinds[0])), None)
    if wrong is None:
        return kinds
    text = f"{said}, item {wrong}: {_short(found[wrong])}"
    if not sure and kinds.count(None) * 2 > len(kinds):
        remedy = "give labels=, one an item, where items have classes, else labels=[]"
        warn(f"{text} is neither integer nor text, so there are no labels; {remedy}")
        return []
    before = "" if kinds[wrong] is None else f" after {kinds[0]!r}"
    remedy = "" if sure else "; give others by labels=, labels=[] if items have none"
    raise ValueError(f"{text}{before}; all must be integers, or all texts{remedy}")


def as_kind(value: Any) -> int | str | None:
    if isinstance(value, str):
        return str(value)
    return int(value) if isinstance(value, int) or (isinstance(value, float) and value.is_integer()) else None


def number_classes(
    kinds: Sequence[Any], said: str, names: Sequence[Any] | None = None, seen: bool = True
) -> tuple[dict[Any, int], tuple[str, ...]]:
    """The label of each value, and the classes' names; see `find_labels`."""
    known = {kind: place for place, kind in enumerate(sorted(set(kinds)))}
    least, most = min(known), max(known)
    if isinstance(least, int) and least >= 0 and most < MOST_NUMBERS:
        called = names if names and most < len(names) else range(most + 1)
        return {number: number for number in range(len(called))}, tuple(map(str, called))
    if isinstance(least, int) and seen:
        wrong = least if least < 0 else most
        raise ValueError(
            f"{said}, item {list(kinds).index(wrong)}: {wrong} is no number of a class, 0 to {MOST_NUMBERS - 1:,}, and"
            " models see it; number classes from 0, as np.unique(labels, return_inverse=True)[1], or say labels=[]"
        )
    return known, tuple(map(str, known))


def numbered(kinds: Sequence[Any]) -> tuple[Tensor, tuple[str, ...]]:
    """The place of each value among the different ones in order, int64 [N], and these as text."""
    places = {kind: place for place, kind in enumerate(sorted(set(kinds)))}
    return torch.tensor([places[kind] for kind in kinds], dtype=torch.int64), tuple(map(str, places))


def _listed(values: Any) -> list[Any]:
    """The values as plain numbers and texts where they are single ones; a column [N, 1] is one."""
    if isinstance(values, (Tensor, np.ndarray)):
        array = values.numpy(force=True) if isinstance(values, Tensor) else values
        if array.ndim == 2 and array.shape[1] == 1:  # as MedMNIST has them
            array = array[:, 0]
        return array.tolist() if array.ndim == 1 and array.dtype.kind != "O" else list(map(_plain, array))
    return list(map(_plain, values))


def _plain(value: Any) -> Any:
    """A number or text for a tensor or array of one."""
    is_array = isinstance(value, (Tensor, np.ndarray, np.generic))
    return value.item() if is_array and value.shape in ((), (1,)) else value


def _are_one_hot(found: Sequence[Any]) -> bool:
    try:
        if not all(np.shape(row) == np.shape(found[0]) for row in found) or len(np.shape(found[0])) != 1:
            return False
        table = np.stack([np.asarray(row) for row in found])
    except ValueError:  # of lists of several lengths
        return False
    return table.dtype.kind in "iubf" and bool(np.isin(table, (0, 1)).all() and (table.sum(1) == 1).all())


def _short(value: Any) -> str:
    if isinstance(value, (Tensor, np.ndarray)):
        return f"{type(value).__name__} of shape {list(value.shape)}"
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."


def _looked_for(dataset: Any) -> tuple[str, Any]:
    for name in LABEL_NAMES:
        values = _attribute(dataset, name)
        if values is not None:
            return f"{type(dataset).__name__}.{name}", values
    if isinstance(dataset, TensorDataset):
        return "y", dataset.tensors[1] if len(dataset.tensors) > 1 else None
    column = next((column for column in COLUMNS if column in _columns(dataset)), None)
    return f"column {column!r}", None if column is None else _named(dataset, column)


def _named(dataset: Any, name: str) -> Any:
    if hasattr(dataset, "column_names") and name in _columns(dataset):
        return list(dataset.with_format(None)[name])
    return _attribute(dataset, name)


def _attribute(dataset: Any, name: str) -> Any:
    """An attribute that has a value an item; also of what Subset and ConcatDataset are made of."""
    if isinstance(dataset, Subset):
        whole = _named(dataset.dataset, name)
        if whole is None:
            return None
        rows = getattr(whole, "iloc", whole)  # of pandas, by place
        return [rows[position] for position in dataset.indices]
    if isinstance(dataset, ConcatDataset):
        parts = [_named(part, name) for part in dataset.datasets]
        without = [place for place, part in enumerate(parts) if part is None]
        if 0 < len(without) < len(parts):
            warn(f"{name} of a ConcatDataset are left out, as its part {without[0]} has none")
        return None if without else [value for part in parts for value in part]
    found: Any = getattr(dataset, name, None)  # somebody's own, of any kind
    if isinstance(found, (str, Mapping)) or not hasattr(found, "__len__"):
        return None
    if len(found) == len(dataset):
        return found
    if all(isinstance(value, str) for value in found) and len(set(found)) == len(found):
        return None  # names of classes
    remedy = "give one an item" + (", or say labels= ([] for none)" if name in LABEL_NAMES else "")
    raise ValueError(f"{type(dataset).__name__}.{name} has {len(found)} values for {len(dataset)} items; {remedy}")


def _columns(dataset: Any) -> list[str]:
    """The columns of a data set of the library `datasets`, or of what Subset and ConcatDataset are made of."""
    if isinstance(dataset, (Subset, ConcatDataset)):
        parts = [dataset.dataset] if isinstance(dataset, Subset) else dataset.datasets
        return list(dict.fromkeys(column for part in parts for column in _columns(part)))
    return list(dataset.column_names) if hasattr(dataset, "column_names") and hasattr(dataset, "features") else []


def _class_names(dataset: Any) -> Sequence[str] | None:
    if isinstance(dataset, Subset):
        return _class_names(dataset.dataset)
    if isinstance(dataset, ConcatDataset):
        names = [list(_class_names(part) or ()) for part in dataset.datasets]
        if wrong := next((pair for own in names for pair in zip(names[0], own) if pair[0] != pair[1]), None):
            warn(f"parts of a ConcatDataset call one label {wrong[0]!r} and {wrong[1]!r}: its classes have no names")
        return None if wrong else max(names, key=len)
    own: Any = optional(dataset, DescribedDataset, "classes")  # somebody's own, of any kind
    if hasattr(own, "__len__") and len(own):
        return list(map(str, _listed(own)))
    features = optional(dataset, DescribedDataset, "features")
    if not isinstance(features, dict):
        return None
    column = next((features[column] for column in COLUMNS if column in features), None)
    return getattr(column, "names", None)  # of a ClassLabel of `datasets`; its other kinds of columns have none
