"""The objects that a recipe's classes are made to, with the errors of the classes' own constructors."""

import inspect
from collections.abc import Callable
from types import NoneType
from typing import Any, get_args

from jsonargparse import ArgumentParser, Namespace

from fedgen.own_code import from_own_code
from fedgen.recipe.recipe_errors import explain


def instantiate(parser: ArgumentParser, settings: Namespace) -> Any:
    """Makes the objects of settings.

    jsonargparse wraps what a constructor raises into a list of all types that an argument might have had; here comes
    what was raised.

    Raises:
        Exception: of a constructor of the user's own or of this package, as it was raised.
        ValueError: naming the class, for an error of a library's constructor, or for a null where a class's argument
            has a type without None.
    """
    raised: list[tuple[type, Exception]] = []

    def make(named: type, *arguments: Any, **options: Any) -> Any:
        try:
            _check_nulls(named, options)
            return named(*arguments, **options)
        except Exception as error:
            raised.append((named, error))
            raise

    made: Callable[..., Any] = make
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


def _check_nulls(named: type, options: dict[str, Any]) -> None:
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
