"""Options of experiments: the smaller ones of a quick run, and the settings that their numbers are kept under."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import Any, ClassVar, ParamSpec

P = ParamSpec("P")
PLACES = ("root", "runs", "recipes", "parallel", "device", "output")  # where and how fast, which no number depends on


def at_most(value: Any, most: Any) -> Any:
    """Return an option of a quick run.

    Args:
        value: asked for, or None for the usual one.
        most: a number that it is at most, a function of it, or another value that takes its place.
    """
    if callable(most):
        return most(value)
    return most if value is None or not isinstance(most, int | float) else min(value, most)


def quickly(**most: Any) -> Callable[[Callable[P, None]], Callable[P, None]]:
    """Make an experiment take smaller options with `quick`, one of its own.

    Args:
        most: of its options, see `at_most`.
    """

    def decorate(experiment: Callable[P, None]) -> Callable[P, None]:
        @wraps(experiment)
        def run(*args: P.args, **kwargs: P.kwargs) -> None:
            given = inspect.signature(experiment).bind(*args, **kwargs)
            given.apply_defaults()
            if (given.arguments | given.arguments.get("options", {})).get("quick"):
                given.arguments |= {name: at_most(given.arguments[name], value) for name, value in most.items()}
            experiment(*given.args, **given.kwargs)

        return run

    return decorate


def at_least(least: float, **given: Any) -> None:
    """Refuse options below a number, or without or with such a one among several; None is an option that is not given.

    Raises:
        ValueError: naming the option, its value and the least.
    """
    for name, value in given.items():
        several = isinstance(value, list | tuple)
        if value == () or any(one is not None and one < least for one in (value if several else [value])):
            raise ValueError(f"{name}={plain(value)}: give {'numbers of ' if several else ''}at least {least:g}")


def rising(least: float, count: int = 1, **given: Sequence[float]) -> None:
    """Refuse options that are not numbers each larger than the one before.

    Args:
        least: of the numbers.
        count: of them at least.
        given: the options.

    Raises:
        ValueError: naming the option and its value.
    """
    for name, value in given.items():
        if len(value) < count or list(value) != sorted(set(value)) or value[0] < least:
            raise ValueError(f"{name}={list(value)}: give {count} or more numbers from {least:g}, rising")


def plain(value: Any) -> Any:
    """Return an option as JSON keeps it: tuples as lists, paths as texts."""
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return str(value) if isinstance(value, Path) else value


def settings_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of an experiment's options that its numbers depend on, as plain types."""
    return {name: plain(value) for name, value in options.items() if name not in PLACES}


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Options that several experiments share; its fields are options of their commands.

    Args:
        seed: of all draws.
        quick: takes the smaller options of a quick run, to see that it runs.
    """

    QUICK: ClassVar[Mapping[str, Any]] = {}  # see `at_most`
    APART: ClassVar[tuple[str, ...]] = ()  # fields that are no settings, beside `PLACES`

    seed: int = 0
    quick: bool = False

    def __post_init__(self) -> None:
        if self.quick:
            for name, most in self.QUICK.items():
                object.__setattr__(self, name, at_most(getattr(self, name), most))

    def settings(self, *which: Any) -> dict[str, Any]:
        """Return all that the numbers depend on, as plain types."""
        own = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in self.APART}
        return settings_of(own) | self.resolved(*which)

    def resolved(self) -> dict[str, Any]:
        """Return the settings that are worked out of the fields."""
        return {}
