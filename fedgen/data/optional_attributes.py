"""Attributes that other people's objects may have or not, each declared in a protocol with its type, meaning and
default.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol


class _Defaulted:
    """An object's attributes, and a protocol's where it has none of the name."""

    def __init__(self, found: object, protocol: type) -> None:
        self._found, self._protocol = found, protocol

    def __getattr__(self, name: str) -> Any:
        return getattr(self._found, name, getattr(self._protocol, name))


def with_defaults(found: object, protocol: type) -> Any:
    """Return an object's attributes as a protocol declares them, each its own or the protocol's default.

    Args:
        found: the object, which need not derive from the protocol.
        protocol: a class whose annotated attributes all have a value. Others are an AttributeError.
    """
    return _Defaulted(found, protocol)


class DescribedDataset(Protocol):
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


def of_dataset(dataset: object) -> DescribedDataset:
    """Return a Dataset's optional attributes, each its own or the default."""
    return with_defaults(dataset, DescribedDataset)
