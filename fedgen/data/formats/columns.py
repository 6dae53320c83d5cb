"""Columns of a table that hold images and labels; labels and owners as numbers."""

from typing import Any

import torch
from torch import Tensor

from fedgen.data.annotations import as_kind, as_kinds, number_classes, numbered
from fedgen.data.formats.arrow import Table


def image_column(table: Table, given: str | None) -> str:
    """The column of images, as given or found."""
    from datasets import Image, Value

    def holds_images(feature: Any) -> bool:
        return isinstance(feature, Image) or (isinstance(feature, dict) and "bytes" in feature)

    if given is not None:
        feature = _feature(table, given)
        if not holds_images(feature) and not (isinstance(feature, Value) and "binary" in feature.dtype):
            raise ValueError(f"{table.source}: column {given!r} holds no images but {feature}")
        return given
    found = _only(table, [name for name in table.features if holds_images(table.features[name])], "image")
    if found is None:
        listed = ", ".join(f"{name} ({type(feature).__name__})" for name, feature in table.features.items())
        raise ValueError(f"{table.source} has no column of images, but {listed}; if one holds images as bytes, name it")
    return found


def label_column(table: Table, given: str | None) -> str | None:
    """The column of labels, as given or found; None if there is none."""
    from datasets import ClassLabel

    if given is not None:
        _feature(table, given)
        return given
    named = [name for name, feature in table.features.items() if isinstance(feature, ClassLabel)]
    return _only(table, named or [name for name in table.features if name == "label"], "label")


def read_labels(table: Table, column: str | None, train: Table) -> tuple[Tensor, tuple[str, ...]]:
    """Labels, int64 [N], and their classes' names: those of the train split."""
    from datasets import ClassLabel

    if column is None:
        return torch.zeros(table.count, dtype=torch.int64), ()
    feature, expected = table.features[column], _feature(train, column)
    if feature != expected:
        raise ValueError(f"{table.source}: labels {column!r} are {feature}, but those of {train.source} are {expected}")
    if isinstance(feature, ClassLabel):
        names = tuple(feature.names)
        places: dict[Any, int] = {label: label for label in range(len(names))}
    else:
        said = f"{train.source}: labels {column!r}"
        places, names = number_classes(as_kinds(list(train.column(column)), said), said)
    values = list(table.column(column))
    kinds = list(map(as_kind, values))
    for row, kind in enumerate(kinds):
        if kind not in places:
            raise ValueError(
                f"{table.source}, row {row}: label {values[row]!r} in {column!r} is none of the {len(names)} classes"
            )
    return torch.tensor([places[kind] for kind in kinds], dtype=torch.int64), names


def read_owners(table: Table, column: str | None) -> tuple[Tensor | None, tuple[str, ...]]:
    """Each row's owner, int64 [N], and the owners' names: the column's values in sorted order; nothing without one."""
    if column is None:
        return None, ()
    _ = _feature(table, column)
    return numbered(as_kinds(list(table.column(column)), f"{table.source}: owners {column!r}"))


def _feature(table: Table, column: str) -> Any:
    if column not in table.features:
        raise ValueError(f"{table.source} has no column {column!r}; it has {', '.join(table.features)}")
    return table.features[column]


def _only(table: Table, found: list[str], kind: str) -> str | None:
    """The only name found, or of several the one called as their kind; None if there is none."""
    if len(found) > 1 and kind not in found:
        raise ValueError(f"{table.source} has the {kind} columns {', '.join(found)}; choose one by {kind}_column")
    return kind if kind in found else next(iter(found), None)
