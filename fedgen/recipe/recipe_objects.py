"""The objects that a recipe's classes are made to, with the errors of the classes' own constructors."""

from collections.abc import Callable
from typing import Any

from jsonargparse import ArgumentParser, Namespace

from fedgen.own_code import from_own_code
from fedgen.recipe.recipe_errors import explain


def instantiate(parser: ArgumentParser, settings: Namespace) -> Any:
    """Makes the objects of settings.

    jsonargparse wraps what a constructor raises into a list of all types that an argument might have had; here comes
    what was raised.

    Raises:
        Exception: of a constructor of the user's own or of this package, as it was raised.
        ValueError: naming the class, for an error of a library's constructor.
    """
    raised: list[tuple[type, Exception]] = []

    def make(named: type, *arguments: Any, **options: Any) -> Any:
        try:
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


def _causes(error: BaseException) -> list[Exception]:
    """The exceptions that led to one, the earliest first."""
    found: list[Exception] = []
    cause = error.__cause__
    while isinstance(cause, Exception):
        found.insert(0, cause)
        cause = cause.__cause__
    return found
