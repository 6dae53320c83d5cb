"""Numbers and tensors that `state_dict` does not hold, over a round's clients: means and largest values, and their
messages where clients are elsewhere.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fedgen.federated.client_state.module_nodes import value_of
from fedgen.federated.client_state.python_state import MISSING
from fedgen.federated.client_state.rules import with_ancestors
from fedgen.federated.client_state.state_values import as_number, has_floats, larger, on_cpu

if TYPE_CHECKING:
    from fedgen.federated.client_state.outside_state import OutsideState


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


class OutsideMessages:
    """The part of a module's outside state that a client elsewhere is told when its turn begins, and tells after it.

    Args:
        outside: the state, on either side.
    """

    def __init__(self, outside: "OutsideState") -> None:
        self._outside = outside

    # ---- the server's, of earlier rounds ----

    @property
    def server_counts(self) -> dict[str, int]:
        """The server's counters that turns have raised in earlier rounds, with which every turn begins."""
        values = self._outside.server_values
        return {path: int(value) for path, value in values.items() if type(value) in (int, bool)}

    @property
    def server_means(self) -> dict[str, Tensor]:
        """The server's means of earlier rounds, with which every turn begins; float64."""
        values = self._outside.server_values
        return {path: told_number(value) for path, value in values.items() if type(value) not in (int, bool)}

    def begin_with(self, counts: Mapping[str, int], means: Mapping[str, Tensor]) -> None:
        """Gives the server's counters and means to the turn that starts next, taken here."""
        self._outside.begin_with({**counts, **means})

    # ---- a turn's ----

    @property
    def counts(self) -> dict[str, int]:
        """The counters that the round's turns have raised, by path, as far as nothing keeps them from travelling."""
        counters = self._outside.round_values.counters
        found = {path: int(value) for path, value in counters.items() if type(value) in (int, bool)}
        return {path: value for path, value in found.items() if not self._outside.is_reset_with_others(path)}

    @property
    def means(self) -> dict[str, Tensor]:
        """The values that the turn before gave to means, float64, by path."""
        return {path: told_number(value) for path, value in self._outside.round_values.given.items()}

    def take_counts(self, counts: Mapping[str, int]) -> None:
        """Takes counters that a turn elsewhere has raised.

        Raises:
            ValueError: for one that the module does not have as a Python integer or boolean, or that is not larger.
        """
        places = self._outside.places
        for path, count in counts.items():
            place = places.find(path)
            before: Any = MISSING if place is None or place[1] is None else value_of(place)
            if type(before) not in (int, bool) or count <= before:
                raise ValueError(f"its counter {path!r} is {count} and the server's {before!r}")
            self._outside.round_values.raise_to(path, before, type(before)(count))
            self._outside.found.setdefault(path, "max")

    def heard_means(self, means: Mapping[str, Tensor]) -> dict[str, Any]:
        """Return what a turn elsewhere has given to means, in the kinds of the server's own values.

        Raises:
            ValueError: for what has no rule "mean" or no place in the module, has another shape or is not finite.
        """
        places, found = self._outside.places, {}
        for path, told in means.items():
            if self._outside.rules.rule_of(with_ancestors(path)) != "mean":
                raise ValueError(f"it tells {path!r}, which has no rule 'mean'")
            place = places.find(path)
            found[path] = heard_number(path, told, None if place is None else value_of(place))
        return found

    def take_means(self, means: Mapping[str, Any], weight: float) -> None:
        """Takes a completed turn's `heard_means`, be there any or not."""
        self._outside.round_values.weight += weight
        for path, value in means.items():
            self._outside.round_values.add(path, value, weight)
            self._outside.found[path] = "mean"


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
