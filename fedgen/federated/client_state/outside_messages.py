"""Messages of numbers and tensors that `state_dict` does not hold, where clients are on other machines."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningModule
from torch import Tensor

from fedgen.federated.client_state.exchange import Rule, with_ancestors
from fedgen.federated.client_state.outside_state import OutsideState
from fedgen.federated.client_state.python_state import MISSING, Place
from fedgen.federated.client_state.state_values import has_floats
from fedgen.foreign_text import printable

MOST_COUNT = 2**63 - 1  # what a message holds
_OF_ALL_MODULES = frozenset(LightningModule.__mro__) - {object}


class ReceivedStateError(ValueError):
    """A counter or mean was received that no turn of the module can have made."""


class OutsideMessages:
    """The part of a module's outside state that a remote client receives when its turn begins, and sends after it."""

    def __init__(self, outside: OutsideState) -> None:
        self._outside = outside

    @property
    def server_counts(self) -> dict[str, int]:
        """The server's counters that turns have raised in earlier rounds, with which every turn begins."""
        return _counts_in(self._outside.server_values)

    @property
    def server_means(self) -> dict[str, Tensor]:
        """The server's means of earlier rounds, with which every turn begins; float64."""
        values = self._outside.server_values
        return {path: sent_number(value) for path, value in values.items() if type(value) not in (int, bool)}

    def begin_with(self, counts: Mapping[str, int], means: Mapping[str, Tensor]) -> None:
        """Gives the server's counters and means to the turn that starts next in this process."""

        def check() -> None:
            self._check_counts(counts)
            self._check_means(means)
            self._outside.server_values = dict(counts)  # the next turn's are no lower

        self._outside.begin_with({**counts, **means}, check)

    def _check_counts(self, counts: Mapping[str, int]) -> None:
        """Refuses counters that the module does not have, or that are lower than they were."""
        known = self.server_counts
        for path, count in counts.items():
            least, most = known.get(path, 0), _most_of(self._counter_at(path))
            if type(count) is not int or not least <= count <= most:
                raise ReceivedStateError(f"the counter '{printable(path)}' is {count!r}, not from {least} to {most}")
        if lost := sorted(known.keys() - counts.keys()):
            raise ReceivedStateError(f"the counter '{printable(lost[0])}', which was {known[lost[0]]}, is missing")

    def _check_means(self, means: Mapping[str, Tensor]) -> None:
        """Refuses undeclared values, and those of another form than the module's own."""
        for path, mean in means.items():
            place, rule = self._place_of(path)
            if rule not in ("mean", "max") and not _is_float_at(place, rule):
                raise ReceivedStateError(f"'{printable(path)}' has the rule {rule!r} and is not a mean")
            own = _before(place)
            if own is not MISSING and own is not None and not _has_form_of(own, mean):  # else a first step makes it
                shape = list(mean.shape)
                raise ReceivedStateError(f"the mean '{printable(path)}' has the shape {shape}, which is not its own")
            _check_finite(path, mean)

    def _place_of(self, path: str) -> tuple[Place | None, Rule | None]:
        return self._outside.state.find(path), self._outside.rules.rule_of(with_ancestors(path))

    def _counter_at(self, path: str) -> Any:
        """Return what stands at the path of a counter that was received."""
        place, rule = self._place_of(path)
        if rule not in (None, "max"):
            raise ReceivedStateError(f"'{printable(path)}' has the rule {rule!r} and is not a counter")
        before = _before(place)
        if rule == "max" and (before is MISSING or before is None):
            return before
        if type(before) not in (int, bool) or _is_constant(place):
            raise ReceivedStateError(f"the module has no counter '{printable(path)}'")
        return before

    @property
    def counts(self) -> dict[str, int]:
        """The counters that the round's turns have raised, by path, as far as nothing keeps them from travelling."""
        found = _counts_in(self._outside.round_values.counters)
        return {path: value for path, value in found.items() if not self._outside.is_reset_with_others(path)}

    @property
    def means(self) -> dict[str, Tensor]:
        """The values that the turn before gave to means, float64, by path, as far as nothing keeps them here."""
        outside, found = self._outside, {}
        for path, value in outside.round_values.given.items():
            place, rule = self._place_of(path)
            is_averaged = rule == "mean" or _is_float_at(place, rule)
            if is_averaged and not outside.is_reset_with_others(path) and not outside.state.fills(path):
                found[path] = sent_number(value)
        return found

    def take_counts(self, counts: Mapping[str, int]) -> None:
        """Takes counters that a remote turn has raised; none if one of them is refused."""
        raised = {}
        for path, count in counts.items():
            before = self._counter_at(path)
            if before is MISSING or before is None or not before < count <= _most_of(before):
                own = "missing" if before is MISSING else repr(before)
                raise ReceivedStateError(f"its counter '{printable(path)}' is {count} and the server's {own}")
            raised[path] = (before, type(before)(count))
        for path, (before, after) in raised.items():
            self._outside.round_values.raise_to(path, before, after)
            self._outside.found.setdefault(path, "max")

    def received_means(self, means: Mapping[str, Tensor]) -> dict[str, Any]:
        """Return what a remote turn has given to means, in the kinds of the server's own values."""
        found = {}
        for path, mean in means.items():
            place, rule = self._place_of(path)
            if rule != "mean" and not _is_float_at(place, rule):
                raise ReceivedStateError(f"{path!r} has no rule 'mean' and is not a Python float of the server's")
            found[path] = _received_number(path, mean, _before(place))
        return found

    def take_means(self, means: Mapping[str, Any], weight: float) -> None:
        """Takes a completed turn's `received_means`, of which there may be none."""
        self._outside.round_values.weight += weight
        for path, value in means.items():
            self._outside.round_values.add(path, value, weight)
            self._outside.found[path] = "averaged" if self._place_of(path)[1] is None else "mean"


def sent_number(value: Any) -> Tensor:
    """A number, tensor or array as a message holds it."""
    return torch.as_tensor(value, dtype=torch.float64).cpu()


def _received_number(path: str, mean: Tensor, own: Any) -> Any:
    """Return what `sent_number` made of a value, in the kind of the server's own."""
    is_integer = isinstance(own, (Tensor, np.ndarray)) and not has_floats(own)
    if is_integer or isinstance(own, bool) or not _has_form_of(own, mean):
        raise ReceivedStateError(
            f"a mean of {path!r} was sent, and the server's module has no such number or tensor of shape"
            f" {list(mean.shape)}: give it its first value in the module's constructor, or register it as a buffer"
        )
    _check_finite(path, mean)
    if isinstance(own, Tensor):
        return mean.to(own.device)
    return mean.numpy() if isinstance(own, np.ndarray) else float(mean)


def _check_finite(path: str, mean: Tensor) -> None:
    if mean.dtype != torch.float64 or not bool(torch.isfinite(mean).all()):
        raise ReceivedStateError(f"the mean '{printable(path)}' is not finite, or {mean.dtype} and not float64")


def _before(place: Place | None) -> Any:
    return MISSING if place is None else place[0].before(place[1])


def _counts_in(values: Mapping[str, Any]) -> dict[str, int]:
    return {path: int(value) for path, value in values.items() if type(value) in (int, bool)}


def _has_form_of(own: Any, mean: Tensor) -> bool:
    if isinstance(own, (Tensor, np.ndarray)):
        return tuple(own.shape) == tuple(mean.shape)
    return isinstance(own, (int, float, np.number)) and mean.ndim == 0


def _most_of(counter: Any) -> int:
    """Return how far a counter can be raised; a truth value is at most true."""
    return 1 if type(counter) is bool else MOST_COUNT


def _is_float_at(place: Place | None, rule: str | None) -> bool:
    """Whether an undeclared number stands there that is averaged nevertheless."""
    return rule is None and isinstance(_before(place), float | np.floating) and not _is_constant(place)


def _is_constant(place: Place | None) -> bool:
    """Whether an attribute is a declared setting (`__constants__` of torch's layers), or one that all modules have."""
    if place is None:
        return False
    bases = type(place[0].holder).__mro__
    declared = (constant for base in bases for constant in vars(base).get("__constants__", ()))
    return place[1] in declared or any(place[1] in vars(base) for base in bases if base in _OF_ALL_MODULES)
