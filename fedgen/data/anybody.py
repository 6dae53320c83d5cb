"""Anybody's data as examples: arrays in memory, and Datasets whose items are read when they are needed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from fedgen.data.examples import Annotation, DataSet, Examples, annotated, find_labels, find_owners
from fedgen.data.formats.image_files import levels_of
from fedgen.data.items import ImagesOf, Items, Part, collate_items, collate_levels
from fedgen.data.lazy_examples import LazyExamples, LazyInputs, make_lazy
from fedgen.data.optional_attributes import DescribedDataset, optional
from fedgen.images import channels_first

EXPECTED = (
    "a fedgen data set, Examples, a torch Dataset, arrays X or (X, y), a data set of the library datasets, "
    "{client: any of these}, a list of these, {client: DataLoader}, or a LightningDataModule with a partition"
)


@dataclass(frozen=True)
class DatasetReading:
    """Options for reading items and finding out about them; see `FederatedDataModule` for each."""

    labels: Annotation = None
    owners: Annotation = None
    collate_fn: Callable[..., Any] | None = None
    num_workers: int = 0
    images_of: ImagesOf | None = None
    value_range: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if self.num_workers < 0:
            raise ValueError(f"num_workers={self.num_workers}: processes that read are 0 or more")
        for name in ("collate_fn", "images_of"):
            value = getattr(self, name)
            if value is not None and not callable(value):
                raise ValueError(f"{name} must be a function, got {type(value).__name__}")


def is_dataset(data: Any) -> bool:
    known = (str, bytes, Mapping, tuple, list, Tensor, np.ndarray, Examples)
    return not isinstance(data, known) and hasattr(data, "__getitem__") and hasattr(data, "__len__")


def is_arrays(data: Any) -> bool:
    """Whether something is an array X or arrays (X, y), of which y may be a list or a column of pandas."""
    x, y = data if isinstance(data, tuple) and len(data) == 2 else (data, [])
    return isinstance(x, (Tensor, np.ndarray)) and (isinstance(y, (Tensor, list)) or hasattr(y, "__array__"))


def check_one(data: Any, what: str = "data") -> None:
    """Raise a TypeError that says what is expected, or a ValueError without items, unless data are of one source."""
    if isinstance(data, IterableDataset):
        raise TypeError(
            f"{what} is an IterableDataset ({type(data).__name__}), whose items have no positions to assign to clients;"
            " give a map-style Dataset, with __getitem__ and __len__"
        )
    if isinstance(data, type):
        raise TypeError(f"{what} is the class {data.__name__}; give one of its objects, {data.__name__}(...)")
    if not isinstance(data, (DataSet, Examples)) and not is_arrays(data) and not is_dataset(data):
        raise TypeError(f"{what} is a {type(data).__name__}; expected {EXPECTED}")
    if not isinstance(data, DataSet) and len(data[0] if isinstance(data, tuple) else data) == 0:
        raise ValueError(f"{what} has no items")


def as_examples(data: Any, reading: DatasetReading, name: str = "data", measured: Any = None) -> Examples:
    """Data of one source as examples: in memory where they are images uint8 or other floats, else read when needed."""
    if isinstance(data, DataSet):
        data = data.load("train")
    if isinstance(data, LazyExamples):
        return with_annotations(with_reading(data, reading, measured), reading)
    if isinstance(data, Examples):
        return with_annotations(data, reading)
    if is_arrays(data):
        found = _from_arrays(data, reading, name)
        if isinstance(found, Examples):
            return found
        data = found
    items = Items([Part(data, reading.collate_fn or collate_items)], reading.num_workers)
    measured_items = None
    if measured is not None:
        check_one(measured, "evaluation_data")
        measured_items = Items([Part(measured, reading.collate_fn or collate_items)], reading.num_workers)
    labels, classes = find_labels(data, reading.labels, len(items))
    owners, owner_names = find_owners(data, reading.owners, len(items))
    how = reading.images_of, reading.value_range
    return make_lazy(items, name, labels, classes, owners, owner_names, measured_items, *how)


def with_annotations(data: Examples, reading: DatasetReading) -> Examples:
    changed: dict[str, Any] = {}
    if reading.labels is not None:
        values = annotated(data, reading.labels, "labels", len(data))
        seen = not isinstance(data, LazyExamples)
        changed["labels"], changed["classes"] = find_labels(None, values, len(data), seen)
    if reading.owners is not None:
        values = annotated(data, reading.owners, "owners", len(data))
        changed["owners"], changed["owner_names"] = find_owners(None, values, len(data))
    return replace(data, **changed) if changed else data


def with_reading(data: LazyExamples, reading: DatasetReading, measured: Any = None) -> LazyExamples:
    """Lazy examples of the kit's own data sets, read as is asked for."""
    own, parts = data.inputs.reader, data.items.parts
    if reading.collate_fn is not None:
        parts = [replace(part, collate=reading.collate_fn) for part in parts]
    items = Items(parts, reading.num_workers or data.items.num_workers)
    collate, images_of = reading.collate_fn or collate_items, reading.images_of or own.images_of
    shown = None if measured is None else Items([Part(measured, collate)], items.num_workers)
    value_range = own.value_range if reading.value_range is None else reading.value_range
    read = make_lazy(items, data.name, measured=shown, images_of=images_of, value_range=value_range)
    return replace(data, items=items, inputs=LazyInputs(read.inputs.reader, data.inputs.positions))


def name_of(data: Any) -> str:
    name = optional(data, DescribedDataset, "name")
    return name if isinstance(name, str) and name else type(data).__name__


def _from_arrays(data: Any, reading: DatasetReading, name: str) -> Examples | TensorDataset:
    """Images uint8 [N, C, H, W] and floats of any rank but 4 (from float64, too) as examples; else as they are."""
    arrays, names = [*data] if isinstance(data, tuple) else [data], None
    if len(arrays) > 1 and not isinstance(arrays[1], Tensor):
        arrays[1] = np.array(arrays[1])  # a copy: of pandas it would be read-only
    if len({len(array) for array in arrays}) > 1:
        raise ValueError(f"{name}: X has {len(arrays[0])} items and y {len(arrays[1])}; they must be as many")
    if len(arrays) > 1 and isinstance(arrays[1], np.ndarray) and arrays[1].dtype.kind in "OU":
        arrays[1], names = find_labels(None, arrays[1], len(arrays[1]), seen=True)
    parts = [_as_tensor(array) for array in arrays]
    whole: Any = TensorDataset(*parts)
    whole.classes = names
    inputs = parts[0]
    standard = inputs.ndim == {torch.uint8: 4, torch.float32: 2}.get(inputs.dtype) and reading.images_of is None
    given, has_y = reading.labels, len(parts) > 1
    if not standard or reading.collate_fn is not None or (has_y and given is not None and parts[1].is_floating_point()):
        return whole
    if has_y and given is not None and (callable(given) or len(given)):
        raise ValueError(f"{name}: y are labels, and labels= are others: give X with labels=, or (X, y) without")
    labels, classes = find_labels(whole, given, len(inputs), seen=True)
    if has_y and given is None and not classes:
        return whole
    return Examples(inputs, labels, name, classes, *find_owners(whole, reading.owners, len(inputs)))


def _as_tensor(values: Any) -> Tensor:
    """An array as a tensor, images with their channels first and of 16 bits as uint8."""
    if values.ndim == 4 and str(values.dtype).endswith("uint16"):
        values = levels_of(np.asarray(values))
    if not isinstance(values, Tensor):
        values = torch.from_numpy(values.astype(np.float32) if values.dtype == np.float64 else values)
    return channels_first(values) if values.ndim == 4 else values


# ---- labels as positions in a longer list of classes than the data's own ----


class Renumbered(Dataset[tuple[Tensor, int]]):
    """Items (image, label) with the number at each label's place in `places` instead of it."""

    def __init__(self, dataset: Any, places: Sequence[int]) -> None:
        self._dataset, self._places = dataset, tuple(places)

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, position: int) -> tuple[Tensor, int]:
        image, label = self._dataset[position]
        return image, self._places[label]

    @property
    def content_id(self) -> Callable[[], str]:
        found: Callable[[], str] = self._dataset.content_id
        return found


def renumber(parts: Sequence[Part], own: Sequence[str], classes: Sequence[str], whose: str) -> list[Part]:
    """The parts, their labels as positions in `classes`; ValueError for parts of others that mean other classes."""
    wrong = next(((number, name) for number, name in enumerate(own) if classes[number] != name), None)
    if wrong is None:
        return list(parts)
    if all(part.collate is collate_levels for part in parts):
        places = [list(classes).index(name) for name in own]
        return [replace(part, dataset=Renumbered(part.dataset, places)) for part in parts]
    number, name = wrong
    raise ValueError(
        f"{whose} call label {number} {name!r}, and those of all clients {classes[number]!r}: their batches would mean"
        " different classes; give all data the same list of classes, or say labels= where batches have none"
    )


def with_classes(examples: Examples, classes: Sequence[str]) -> Examples:
    """Examples whose labels are positions in a longer list of classes; the inputs are the same."""
    if examples.classes == tuple(classes):
        return examples
    if missing := [name for name in examples.classes if name not in classes]:
        raise ValueError(
            f"{examples.name} has the class {missing[0]!r}, which the federation does not: {list(classes)}"
        )
    places = torch.tensor([list(classes).index(name) for name in examples.classes], dtype=torch.int64)
    labels = places[examples.labels] if len(places) else examples.labels
    return replace(examples, labels=labels, classes=tuple(classes))
