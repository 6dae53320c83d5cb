"""The objects that a recipe's classes are made to, with the errors of the classes' own constructors."""

import inspect
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from types import NoneType
from typing import Any, get_args

from jsonargparse import ArgumentParser, Namespace, add_instantiator

from fedgen.class_paths import import_by_path
from fedgen.own_code import from_own_code
from fedgen.recipe.recipe_errors import explain

_RAISED: ContextVar[list[tuple[Callable[..., Any], Exception]] | None] = ContextVar("raised", default=None)
"""What the classes and functions of the settings that are being made to objects have raised, the first ones first."""


def instantiate(parser: ArgumentParser, settings: Namespace, source: Path | None = None) -> Any:
    """Makes the objects of settings.

    jsonargparse wraps what a constructor raises into a list of all types that an argument might have had; here comes
    what was raised.

    Args:
        parser: that read the settings.
        settings: with class paths, of classes and of functions.
        source: the file of the settings, which errors name unless they come through the user's own code, which has
            a line of its own.

    Raises:
        Exception: of a constructor or a function of the user's own or of this package, as it was raised.
        ValueError: naming the class, for an error of a library's constructor, or for a null where a class's argument
            has a type without None.
    """
    try:
        return _instantiate(parser, settings)
    except ValueError as error:
        if source is None or from_own_code(error):
            raise
        raise ValueError(f"{source}: {error}") from error


def _instantiate(parser: ArgumentParser, settings: Namespace) -> Any:
    raised: list[tuple[Callable[..., Any], Exception]] = []
    made: Any = _make
    for function in _functions(settings):  # the instantiator of `object` is asked for classes alone
        made_by: Any = function
        add_instantiator(made, made_by, subclasses=False)
    token = _RAISED.set(raised)
    try:
        return parser.instantiate(settings, instantiators=[(made, object, True)])
    except Exception as error:
        for one in _causes(error):
            if from_own_code(one):  # of a function that makes an object, too
                raise one from None
        if not raised:
            if isinstance(error, ValueError):
                raise ValueError(explain(str(error))) from error
            raise
        named, first = raised[0]
        if from_own_code(first) or named.__module__.split(".")[0] == "fedgen":
            raise first from None
        raise ValueError(f"{named.__module__}.{named.__qualname__}: {first}") from first
    finally:
        _RAISED.reset(token)


def _make(named: Callable[..., Any], /, *arguments: Any, **options: Any) -> Any:
    """Calls a class or a function of the settings, and keeps what it raises."""
    try:
        _check_nulls(named, options)
        return named(*arguments, **options)
    except Exception as error:
        if (raised := _RAISED.get()) is not None:
            raised.append((named, error))
        raise


def _functions(settings: Any) -> Iterator[Callable[..., Any]]:
    """The functions that settings name as class paths, each once or more."""
    if isinstance(settings, (dict, Namespace)):
        parts = vars(settings) if isinstance(settings, Namespace) else settings
        named = parts.get("class_path")
        if isinstance(named, str) and inspect.isfunction(found := import_by_path(named)):
            yield found
        settings = list(parts.values())
    if isinstance(settings, list):
        for part in settings:
            yield from _functions(part)


def _check_nulls(named: Callable[..., Any], options: dict[str, Any]) -> None:
    """Raises ValueError for a null that an argument's type does not take.

    A key with nothing behind its colon is a null, and jsonargparse lets nulls of a class's arguments through.
    """
    nulls = [name for name, value in options.items() if value is None]
    if not nulls:
        return
    try:
        parameters = inspect.signature(named, eval_str=True).parameters
    except (NameError, TypeError, ValueError):  # a name that only the type checker imports, a constructor written in C
        return
    for name in nulls:
        argument = parameters.get(name)
        if argument is not None and argument.default is not None and _refuses_none(argument.annotation):
            expected = inspect.formatannotation(argument.annotation)
            raise ValueError(
                f"{name} of {named.__qualname__} is empty (null); give it a value ({expected}), or leave the line out"
            )


def _refuses_none(hint: Any) -> bool:
    """Tell whether a type surely has no None; of a type variable, say, nothing is known."""
    if isinstance(hint, type) and not get_args(hint):
        return hint not in (object, Any, NoneType, inspect.Parameter.empty)
    return bool(get_args(hint)) and not any(one is None or one is NoneType for one in get_args(hint))


def _causes(error: BaseException) -> list[Exception]:
    """The exceptions that led to one, the earliest first."""
    found: list[Exception] = []
    cause = error.__cause__
    while isinstance(cause, Exception):
        found.insert(0, cause)
        cause = cause.__cause__
    return found
