"""Labels and owners of anybody's Dataset, found without decoding its images."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from fedgen.data.optional_attributes import of_dataset

Annotation = Callable[..., Any] | str | Sequence[Any] | Tensor | np.ndarray | None
"""A column or attribute by its name, a function of the position, the values themselves, or None to look for them."""

LABEL_NAMES = ("targets", "labels")
COLUMNS = ("label", "labels")
MOST_NUMBERS = 10_000  # that are classes as they are; larger ones are names


def find_labels(dataset: Any, given: Annotation, count: int) -> tuple[Tensor, tuple[str, ...]]:
    """Labels int64 [N] and the classes' names; all 0 and none for data without labels.

    Not given, they are looked for as `targets`, `labels`, a column "label", or the second tensor of a TensorDataset;
    what is found there and is no class (boxes, masks, numbers with a fraction) is none.

    Args:
        dataset: map-style.
        given: which; see `Annotation`.
        count: of examples.

    Raises:
        ValueError: for labels that were asked for and are not there, are not one an item, or are no classes.
    """
    values = annotated(dataset, given, "labels", count) if given is not None else _looked_for(dataset)
    kinds = None if values is None or len(values) != count else as_kinds(values)
    if kinds is None:
        if given is not None:
            raise ValueError("labels must be integers, booleans or texts, one an item, to be classes")
        return torch.zeros(count, dtype=torch.int64), ()
    names: Sequence[Any] | None = of_dataset(dataset).classes or _class_names(dataset)
    if given is None and not names and all(type(kind) is int and 0 <= kind < MOST_NUMBERS for kind in set(kinds)):
        names = range(int(max(kinds)) + 1)  # batches have these numbers, and conditional models count them
    if names and all(type(kind) is int and 0 <= kind < len(names) for kind in set(kinds)):
        return torch.tensor(kinds, dtype=torch.int64), tuple(map(str, names))
    return numbered(kinds)


def find_owners(dataset: Any, given: Annotation, count: int) -> tuple[Tensor | None, tuple[str, ...]]:
    """Each item's owner, int64 [N], and the owners' names in order; None where nobody says.

    Raises:
        ValueError: as `find_labels`.
    """
    if given is None and (given := of_dataset(dataset).owners) is None:
        return None, ()
    kinds = as_kinds(annotated(dataset, given, "owners", count))
    if kinds is None:
        raise ValueError("owners must be integers or texts, one an item")
    return numbered(kinds)


def annotated(dataset: Any, given: Any, what: str, count: int) -> Any:
    """The values that were asked for, one an item.

    Raises:
        ValueError: if there is no such attribute or column, or they are not as many.
    """
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
    if len(values) != count:
        raise ValueError(f"{what} has {len(values)} values for {count} items; give one an item")
    return values


def as_kinds(values: Any) -> list[int] | list[str] | None:
    """The values as integers or texts, where all are; None otherwise."""
    if isinstance(values, (Tensor, np.ndarray)):
        array = np.asarray(values)
        if array.ndim == 2 and array.shape[1] == 1:  # as MedMNIST has them
            array = array[:, 0]
        if array.ndim != 1 or array.dtype.kind not in "iubU":
            return None
        found: list[Any] = array.tolist()
    else:
        found = [_plain(value) for value in values]
    if all(isinstance(value, str) for value in found):
        return found
    return [int(value) for value in found] if all(isinstance(value, int) for value in found) else None


def _plain(value: Any) -> Any:
    """A number or text for a tensor or array of one."""
    single = (isinstance(value, Tensor) and value.numel() == 1) or isinstance(value, np.generic)
    return value.item() if single else value


def numbered(kinds: Sequence[int] | Sequence[str]) -> tuple[Tensor, tuple[str, ...]]:
    """The place of each value among the different ones in order, int64 [N], and these as text."""
    known: list[Any] = sorted(set(kinds))
    places = {kind: place for place, kind in enumerate(known)}
    return torch.tensor([places[kind] for kind in kinds], dtype=torch.int64), tuple(map(str, known))


def _looked_for(dataset: Any) -> Any:
    for name in LABEL_NAMES:
        values = _attribute(dataset, name)
        if values is not None and hasattr(values, "__len__"):
            return values
    if isinstance(dataset, TensorDataset):
        return dataset.tensors[1] if len(dataset.tensors) > 1 else None
    return next((_named(dataset, column) for column in COLUMNS if column in _columns(dataset)), None)


def _named(dataset: Any, name: str) -> Any:
    if name in _columns(dataset):
        return list(dataset.with_format(None)[name])
    return _attribute(dataset, name)


def _attribute(dataset: Any, name: str) -> Any:
    """An attribute that has a value an item; also of what Subset and ConcatDataset are made of."""
    if isinstance(dataset, Subset):
        whole = _named(dataset.dataset, name)
        if whole is None:
            return None
        return [whole[position] for position in dataset.indices]
    if isinstance(dataset, ConcatDataset):
        parts = [_named(part, name) for part in dataset.datasets]
        return None if any(part is None for part in parts) else [value for part in parts for value in part]
    return getattr(dataset, name, None)


def _columns(dataset: Any) -> list[str]:
    """The columns of a data set of the library `datasets`."""
    return list(dataset.column_names) if hasattr(dataset, "column_names") and hasattr(dataset, "features") else []


def _class_names(dataset: Any) -> Sequence[str] | None:
    if isinstance(dataset, Subset):
        return of_dataset(dataset.dataset).classes or _class_names(dataset.dataset)
    features = of_dataset(dataset).features
    if not isinstance(features, dict):
        return None
    column = next((features[column] for column in COLUMNS if column in features), None)
    return getattr(column, "names", None)  # of a ClassLabel of `datasets`; its other kinds of columns have none
