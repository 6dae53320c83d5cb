"""Messages of numbers and tensors that `state_dict` does not hold, where clients are on other machines."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningModule
from torch import Tensor

from fedgen.federated.client_state.exchange import Rules, with_ancestors
from fedgen.federated.client_state.outside_state import OutsideState
from fedgen.federated.client_state.python_state import MISSING, Place, Places, value_of
from fedgen.federated.client_state.state_values import has_floats
from fedgen.foreign_text import printable

MOST_COUNT = 2**63 - 1  # what a message holds
_OF_ALL_MODULES = frozenset(LightningModule.__mro__) - {object}


class OutsideMessages:
    """The part of a module's outside state that a client elsewhere is told when its turn begins, and tells after it."""

    def __init__(self, outside: OutsideState) -> None:
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
        outside, known = self._outside, self.server_counts

        def check() -> None:
            check_counts(counts, known, outside.places, outside.rules)
            check_means(means, outside.places, outside.rules)
            outside.server_values = dict(counts)  # the next turn's are no lower

        outside.begin_with({**counts, **means}, check)

    # ---- a turn's ----

    @property
    def counts(self) -> dict[str, int]:
        """The counters that the round's turns have raised, by path, as far as nothing keeps them from travelling."""
        counters = self._outside.round_values.counters
        found = {path: int(value) for path, value in counters.items() if type(value) in (int, bool)}
        return {path: value for path, value in found.items() if not self._outside.is_reset_with_others(path)}

    @property
    def means(self) -> dict[str, Tensor]:
        """The values that the turn before gave to means, float64, by path, as far as nothing keeps them here."""
        outside = self._outside
        given = {path: v for path, v in outside.round_values.given.items() if not outside.is_reset_with_others(path)}
        places, rules = outside.places, {path: outside.rules.rule_of(with_ancestors(path)) for path in given}
        taken = [path for path in given if rules[path] == "mean" or _is_float_at(places.find(path), rules[path])]
        return {path: told_number(given[path]) for path in taken if not places.fills(path)}

    def take_counts(self, counts: Mapping[str, int]) -> None:
        """Takes counters that a turn elsewhere has raised."""
        places, raised = self._outside.places, {}
        for path, count in counts.items():
            before = counter_at(path, places, self._outside.rules)
            if before is MISSING or before is None or not before < count <= most_of(before):
                own = "none" if before is MISSING else repr(before)
                raise ToldStateError(f"its counter '{printable(path)}' is {count} and the server's {own}")
            raised[path] = (before, type(before)(count))
        for path, (before, after) in raised.items():
            self._outside.round_values.raise_to(path, before, after)
            self._outside.found.setdefault(path, "max")

    def received_means(self, means: Mapping[str, Tensor]) -> dict[str, Any]:
        """Return what a turn elsewhere has given to means, in the kinds of the server's own values."""
        places, found = self._outside.places, {}
        for path, told in means.items():
            place, rule = places.find(path), self._outside.rules.rule_of(with_ancestors(path))
            if rule != "mean" and not _is_float_at(place, rule):
                raise ValueError(f"it tells {path!r}, which has no rule 'mean' and is no Python float of the server's")
            found[path] = received_number(path, told, None if place is None else value_of(place))
        return found

    def take_means(self, means: Mapping[str, Any], weight: float) -> None:
        """Takes a completed turn's `received_means`, be there any or not."""
        self._outside.round_values.weight += weight
        for path, value in means.items():
            self._outside.round_values.add(path, value, weight)
            declared = self._outside.rules.rule_of(with_ancestors(path)) is not None
            self._outside.found[path] = "mean" if declared else "averaged"


def told_number(value: Any) -> Tensor:
    """A number, tensor or array as a message holds it: float64, on the CPU."""
    return torch.as_tensor(value, dtype=torch.float64).cpu()


def received_number(path: str, told: Tensor, own: Any) -> Any:
    """Return what `told_number` made of a value, in the kind of the server's own."""
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


class ToldStateError(ValueError):
    """A counter or mean is told that no turn of the module can have made."""


def counter_at(path: str, places: Places, rules: Rules) -> Any:
    """Return what stands where a counter is told."""
    rule, place = rules.rule_of(with_ancestors(path)), places.find(path)
    if rule not in (None, "max"):
        raise ToldStateError(f"'{printable(path)}' has the rule {rule!r} and is no counter")
    before: Any = MISSING if place is None else value_of(place)
    if rule == "max" and (before is MISSING or before is None):
        return before
    if type(before) not in (int, bool) or (place is not None and _is_constant(type(place[0].holder), place[1])):
        raise ToldStateError(f"the module has no counter '{printable(path)}'")
    return before


def most_of(counter: Any) -> int:
    """Return how far a counter can be raised; a truth value is at most true."""
    return 1 if type(counter) is bool else MOST_COUNT


def check_counts(counts: Mapping[str, int], known: Mapping[str, int], places: Places, rules: Rules) -> None:
    """Refuses counters that are none of this module, or lower than they were."""
    for path, count in counts.items():
        least, most = known.get(path, 0), most_of(counter_at(path, places, rules))
        if type(count) is not int or not least <= count <= most:
            raise ToldStateError(f"the counter '{printable(path)}' is {count!r}, and it is {least} to {most} by now")
    if lost := sorted(known.keys() - counts.keys()):
        raise ToldStateError(f"the counter '{printable(lost[0])}', which was {known[lost[0]]}, is not told any more")


def check_means(means: Mapping[str, Tensor], places: Places, rules: Rules) -> None:
    """Refuses values that nobody declared, of another form than the module's own, or not finite."""
    for path, told in means.items():
        place, rule = places.find(path), rules.rule_of(with_ancestors(path))
        if rule not in ("mean", "max") and not _is_float_at(place, rule):
            raise ToldStateError(f"'{printable(path)}' has the rule {rule!r} and is no mean")
        own = None if place is None else value_of(place)
        if not _has_form_of(own, told):
            raise ToldStateError(f"the mean '{printable(path)}' has the shape {list(told.shape)}, which is not its own")
        if told.dtype != torch.float64 or not bool(Tensor.isfinite(told).all()):
            raise ToldStateError(f"the mean '{printable(path)}' is not finite, or {told.dtype} and not float64")


def _is_float_at(place: Place | None, rule: str | None) -> bool:
    """Whether a number stands there that is averaged although nobody declared it."""
    if place is None or rule is not None or _is_constant(type(place[0].holder), place[1]):
        return False
    return isinstance(value_of(place), float | np.floating)


def _has_form_of(own: Any, told: Tensor) -> bool:
    """Whether a value may be told in place of the module's own, which a first step may be still to make."""
    if isinstance(own, Tensor | np.ndarray):
        return tuple(own.shape) == tuple(told.shape)
    return own is MISSING or own is None or (isinstance(own, int | float | np.number) and told.ndim == 0)


def _is_constant(kind: type, name: Any) -> bool:
    """Whether an attribute is a setting by its class's own word (`__constants__` of torch's layers), or one that torch
    or Lightning give all modules.
    """
    declared = (constant for base in kind.__mro__ for constant in vars(base).get("__constants__", ()))
    return name in declared or any(name in vars(base) for base in kind.__mro__ if base in _OF_ALL_MODULES)
