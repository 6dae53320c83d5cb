"""Labels and owners of anybody's Dataset, found without decoding its images."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from fedgen.data.optional_attributes import DescribedDataset, optional
from fedgen.own_code import warn

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
