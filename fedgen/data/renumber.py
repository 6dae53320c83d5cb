"""Labels in batches that are read from disk, as positions in a longer list of classes than the data's own."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from fedgen.data.collate import collate_levels
from fedgen.data.examples import Examples
from fedgen.data.items import Part


class Renumbered(Dataset[tuple[Tensor, int]]):
    """Items (image, label) with each label's position in other classes in its place.

    Args:
        dataset: with the data's own numbers.
        places: by these.
    """

    def __init__(self, dataset: Any, places: Sequence[int]) -> None:
        self._dataset, self._places = dataset, tuple(places)

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, position: int) -> tuple[Tensor, int]:
        image, label = self._dataset[position]
        return image, self._places[label]

    @property
    def content_id(self) -> Callable[[], str]:
        """The identity of these images, for data that know it without reading them."""
        found: Callable[[], str] = self._dataset.content_id
        return found


def renumber(parts: Sequence[Part], own: Sequence[str], classes: Sequence[str], whose: str) -> list[Part]:
    """The parts, with items whose labels are positions in `classes`.

    Items of the kit's own data sets are renumbered; others are left alone, and a ValueError tells if they mean others.
    """
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
