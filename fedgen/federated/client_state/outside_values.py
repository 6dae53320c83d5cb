"""Numbers and tensors that `state_dict` does not hold, over a round's clients: means and largest values."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedgen.federated.client_state.state_values import as_number, has_floats, larger, on_cpu


class OutsideValues:
    """The weighted sums and largest values over a round's clients, by dotted path.

    Attributes:
        largest: of counters, and of what is declared "max".
        weight: of completed clients, whether or not they changed a value.
        given: what the client before gave to means.
    """

    def __init__(self) -> None:
        self.largest: dict[str, Any] = {}
        self.weight = 0.0
        self.given: dict[str, Any] = {}
        self._sums: dict[str, tuple[Any, float]] = {}  # weighted sum, total weight
        self._shrunk: set[str] = set()

    def __bool__(self) -> bool:
        """Whether there is a mean to be worked out."""
        return bool(self._sums)

    def add(self, path: str, value: Any, weight: float) -> None:
        """Adds a client's value to a mean."""
        self.given[path] = value = as_number(value)
        total, seen = self._sums.get(path, (0.0, 0.0))
        self._sums[path] = (total + weight * value, seen + weight)

    def raise_to(self, path: str, before: Any, after: Any) -> None:
        """Takes a client's value where the largest counts."""
        self.largest[path] = larger(self.largest.get(path, before), after)

    def shrink(self, path: str) -> None:
        """Notes that a value fell: it is no counter."""
        self._shrunk.add(path)

    @property
    def counters(self) -> dict[str, Any]:
        """The largest values of what never fell."""
        return {path: value for path, value in self.largest.items() if path not in self._shrunk}

    def means(self, server: Mapping[str, Any]) -> dict[str, Any]:
        """The means in double precision.

        Args:
            server: the server's values, which clients have that left theirs alone.
        """
        found = {}
        for path, (total, seen) in self._sums.items():
            rest, before = self.weight - seen, server.get(path)
            if rest and before is not None:
                total, seen = total + rest * as_number(before), self.weight
            found[path] = total / seen
        return found

    def news(self) -> dict[str, Any]:
        """Return what other ranks do not know of the round."""
        return {
            "sums": {path: (on_cpu(total), seen) for path, (total, seen) in self._sums.items()},
            "largest": {path: on_cpu(value) for path, value in self.largest.items()},
            "shrunk": sorted(self._shrunk),
            "weight": self.weight,
        }

    def hear(self, told: Sequence[Mapping[str, Any]]) -> None:
        """Takes every rank's `news`."""
        self._sums, self.largest, self._shrunk = {}, {}, set()
        for one in told:
            for path, (total, seen) in one["sums"].items():
                before, weight = self._sums.get(path, (0.0, 0.0))
                self._sums[path] = (before + total, weight + seen)
            for path, value in one["largest"].items():
                self.largest[path] = larger(value, self.largest.get(path, value))
            self._shrunk |= set(one["shrunk"])
        self.weight = sum(one["weight"] for one in told)


def told_number(value: Any) -> Tensor:
    """A number, tensor or array as a message holds it: float64, on the CPU."""
    return torch.as_tensor(value, dtype=torch.float64).cpu()


def heard_number(path: str, told: Tensor, own: Any) -> Any:
    """Return what `told_number` made of a value, in the kind of the server's own.

    Raises:
        ValueError: if the server has no such number, tensor or array, or what is told is not finite.
    """
    if isinstance(own, (Tensor, np.ndarray)):
        fits = has_floats(own) and tuple(own.shape) == tuple(told.shape)
    else:
        fits = isinstance(own, (int, float, np.number)) and not isinstance(own, bool) and told.ndim == 0
    if not fits:
        raise ValueError(
            f"it tells a mean of {path!r}, and the server's module has no such number or tensor of shape"
            f" {list(told.shape)}: give it its first value in the module's constructor, or register it as a buffer"
        )
    if told.dtype != torch.float64 or not bool(torch.isfinite(told).all()):
        raise ValueError(f"its mean of {path!r} is not finite, or {told.dtype} and not float64")
    if isinstance(own, Tensor):
        return told.to(own.device)
    return told.numpy() if isinstance(own, np.ndarray) else float(told)
