"""Optional attributes of other people's objects, each declared in a class with its type, meaning and default."""

from collections.abc import Callable, Sequence
from typing import Any


def optional(owner: object, kind: type, name: str) -> Any:
    """Return an attribute of any object, or the default that a class declares for it where there is none."""
    return getattr(owner, name, getattr(kind, name))


class DescribedDataset:
    """A Dataset that says more of itself than its items, as those of torchvision and `datasets` do.

    Attributes:
        name: in stored scores.
        classes: names of the labels, in their order.
        features: the columns of a data set of the library `datasets`, by name.
        owners: who made each item: a column's or attribute's name, or the values themselves.
        content_id: gives what identifies the items without reading them.
    """

    name: str | None = None
    classes: Sequence[Any] | None = None
    features: Any = None
    owners: Any = None
    content_id: Callable[[], str] | None = None
