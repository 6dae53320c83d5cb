"""The base of partitions, which assign every example to at most one client, and those without labels."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedgen.data.examples import Examples
from fedgen.seeds import numpy_generator


class Partition(ABC):
    """A rule that assigns examples to clients.

    A subclass gives `assign`; it keeps each constructor argument as an attribute of the same name, and either
    has `num_clients` or overrides `names`.
    """

    num_clients: int

    @abstractmethod
    def assign(self, examples: Examples, seed: int) -> list[np.ndarray]:
        """One int64 array of positions for each client: sorted, disjoint, none empty; the same for the same seed.

        Raises:
            ValueError: if the rule does not fit the examples.
        """

    def names(self, examples: Examples) -> list[str]:
        """The clients' names, in the order of `assign`."""
        return [f"client {client}" for client in range(self.num_clients)]

    def settings(self) -> dict[str, Any]:
        """Class name and constructor arguments, ready for JSON."""
        arguments = [name for name in inspect.signature(type(self).__init__).parameters if name != "self"]
        return {"class": type(self).__name__, **{name: getattr(self, name) for name in arguments}}

    def __repr__(self) -> str:
        values = self.settings()
        return f"{values.pop('class')}({', '.join(f'{name}={value!r}' for name, value in values.items())})"


def check_assignment(
    assignment: Sequence[np.ndarray], num_examples: int, names: Sequence[str] | None = None
) -> list[np.ndarray]:
    """The assignment as sorted int64 arrays.

    Raises:
        ValueError: if there is no client, a client is empty, a position lies outside 0..num_examples-1, or a
            position is given twice; the message names the client.
    """
    names = names or [f"client {client}" for client in range(len(assignment))]
    if not assignment or len(names) != len(assignment):
        raise ValueError(f"a partition needs one name for each client, got {len(names)} for {len(assignment)} clients")
    result = []
    for client, indices in enumerate(assignment):
        indices = np.sort(np.asarray(indices))
        if indices.ndim != 1 or not len(indices):
            raise ValueError(f"{names[client]} has no examples; use fewer clients or another partition")
        if indices.dtype.kind not in "iu" or indices[0] < 0 or indices[-1] >= num_examples:
            raise ValueError(
                f"{names[client]} has positions {indices[0]} to {indices[-1]} ({indices.dtype}), "
                f"outside the {num_examples} examples (0 to {num_examples - 1})"
            )
        indices = indices.astype(np.int64)
        repeated = indices[1:][np.diff(indices) == 0]
        if len(repeated):
            raise ValueError(f"{names[client]} has example {repeated[0]} more than once")
        result.append(indices)
    everything = np.sort(np.concatenate(result))
    shared = everything[1:][np.diff(everything) == 0]
    if len(shared):
        first, second, *_ = (name for name, indices in zip(names, result) if shared[0] in indices)
        raise ValueError(f"{second} and {first} both have example {shared[0]}")
    return result


def require_labels(examples: Examples, rule: str) -> np.ndarray:
    """The labels as an int64 array; ValueError if the examples have none."""
    if not examples.is_labelled:
        raise ValueError(
            f"{rule} needs labels, but data {examples.name} has none; give them (arrays: a pair (images, labels);"
            " ImageFolder: class folders; in Python: labels=), or use IID"
        )
    return examples.labels.numpy()


def require_clients(num_clients: int, num_examples: int, rule: str) -> None:
    if num_clients > num_examples:
        raise ValueError(f"{rule} cannot assign {num_examples} examples to {num_clients} clients; use fewer clients")


def at_least_one(value: int, name: str) -> int:
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}")
    return int(value)


class IID(Partition):
    """All examples in random order, cut into `num_clients` parts whose sizes differ by at most one."""

    def __init__(self, num_clients: int) -> None:
        self.num_clients = at_least_one(num_clients, "num_clients")

    def assign(self, examples: Examples, seed: int) -> list[np.ndarray]:
        require_clients(self.num_clients, len(examples), "IID")
        order = numpy_generator(seed, "partition").permutation(len(examples))
        return check_assignment(np.array_split(order, self.num_clients), len(examples))


class BySize(Partition):
    """All examples in random order, cut into parts whose sizes are in proportion to exp(spread * z), z ~ N(0, 1).

    Labels are IID, so that what differs from `IID` is due to sizes. At spread 1 about one client in six has more than
    2.7 times the median client's examples, and of many clients the largest tenth holds 39 % of all examples.

    Args:
        num_clients: the number of clients.
        spread: standard deviation of the logarithm of a client's size, at least 0; 0 for equal sizes.
        min_examples: of every client; the rest is assigned by the rule above.
    """

    def __init__(self, num_clients: int, spread: float = 1.0, min_examples: int = 1) -> None:
        self.num_clients = at_least_one(num_clients, "num_clients")
        self.min_examples = at_least_one(min_examples, "min_examples")
        if not 0 <= spread < float("inf"):
            raise ValueError(f"spread must be at least 0 and finite, got {spread}")
        self.spread = float(spread)

    def assign(self, examples: Examples, seed: int) -> list[np.ndarray]:
        require_clients(self.num_clients, len(examples), "BySize")
        rest = len(examples) - self.num_clients * self.min_examples
        if rest < 0:
            raise ValueError(
                f"BySize cannot give {self.num_clients} clients min_examples={self.min_examples} of {len(examples)} "
                "examples; use fewer clients or smaller ones"
            )
        random = numpy_generator(seed, "partition")
        logarithms = self.spread * random.standard_normal(self.num_clients)
        weights = np.exp(logarithms - logarithms.max())  # the largest is 1, so that no spread overflows
        sizes = self.min_examples + apportion(rest, weights)
        order = random.permutation(len(examples))
        return check_assignment(np.split(order, np.cumsum(sizes)[:-1]), len(examples))


def apportion(total: int, weights: np.ndarray) -> np.ndarray:
    """Whole numbers that sum to `total`, within one of their exact shares by weight (largest remainders): int64 [C]."""
    exact = total * (weights / weights.sum())
    whole = np.floor(exact).astype(np.int64)
    served = np.argsort(whole - exact, kind="stable")[: total - whole.sum()]
    whole[served] += 1
    return whole
