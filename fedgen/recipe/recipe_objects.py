"""A recipe's settings as objects, with the errors of their constructors, and as the plain values that a run keeps."""

import copy
import inspect
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import NoneType
from typing import Any, get_args

import yaml
from jsonargparse import ArgumentParser, Namespace, add_instantiator

from fedgen.class_paths import import_by_path
from fedgen.own_code import from_own_code
from fedgen.recipe.recipe_errors import explain
from fedgen.recipe.recipe_files import UNABLE

_RAISED: ContextVar[list[tuple[Callable[..., Any], Exception]] | None] = ContextVar("raised", default=None)
"""What the classes and functions of the settings that are being made to objects have raised, the first ones first."""
PLAIN = (bool, int, float, str)
_LOST = object()


def instantiate(parser: ArgumentParser, settings: Namespace, source: Path | None = None) -> Any:
    """Makes the objects of settings; what a constructor raises comes as it was, with the class of a library's."""
    # jsonargparse would wrap it into a list of all types that an argument might have had. Errors name the file
    # `source`, unless they come through the user's own code, which has a line of its own.
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
    """Raises ValueError for a null (a key with nothing behind its colon) that an argument's type does not take."""
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


# ---- plain values ----


def plain_settings(parser: ArgumentParser, config: Namespace) -> dict[str, Any]:
    """The complete settings as plain values that the parser reads back to the same."""
    # jsonargparse has no text for some values (a number under `numbers.Number`, an object that is a constructor's
    # default), and reads others back as their names (a function as a default). Numbers stay as they were written; an
    # argument that no text stands for is left out, so that it has its default again: what is written in a recipe always
    # has a text.
    with warnings.catch_warnings(), _text_for_anything():
        warnings.filterwarnings("ignore", message=r"\s*(Unable to serialize|Dump of a value that does not round-trip)")
        dumped = yaml.safe_load(parser.dump(config, skip_unset=False, format="yaml"))
    settings = _kept(dumped, config, dumped, _has_no_text)
    again = parser.parse_object(copy.deepcopy(settings))  # it changes what it is given
    return dict(_kept(settings, config, again, _differ))


@contextmanager
def _text_for_anything() -> Iterator[None]:
    """Lets PyYAML write what it has no text for, such as objects in a list without annotation, as jsonargparse does."""
    known = yaml.SafeDumper.yaml_representers
    own = {None: lambda dumper, value: dumper.represent_str(f"{UNABLE}{value}")}
    yaml.SafeDumper.yaml_representers = {**known, **own}
    try:
        yield
    finally:
        yaml.SafeDumper.yaml_representers = known


def _kept(text: Any, own: Any, again: Any, is_lost: Callable[[Any, Any], bool]) -> Any:
    """The plain value `text` for a setting's value `own`, or `_LOST` where `is_lost` says so of `again`."""
    if isinstance(text, dict) and isinstance(own, (dict, Namespace)) and isinstance(again, (dict, Namespace)):
        parts = {key: _kept(part, own.get(key), again.get(key), is_lost) for key, part in text.items()}
        kept = {key: part for key, part in parts.items() if part is not _LOST}
        return kept if isinstance(own, Namespace) or len(kept) == len(parts) else _LOST  # an argument is kept whole
    if isinstance(text, list) and isinstance(own, list) and isinstance(again, list):
        items = [_kept(*three, is_lost) for three in zip(text, own, again, strict=True)]
        return _LOST if any(item is _LOST for item in items) else items
    if not is_lost(again, own):
        return text
    return own if type(own) in PLAIN else _LOST


def _has_no_text(text: Any, own: Any) -> bool:
    return isinstance(text, str) and text.startswith(UNABLE) and not isinstance(own, str)


def _differ(again: Any, own: Any) -> bool:
    """Whether two values are of two types or mean something else; arrays, which answer for each element, do."""
    same = own is again or own == again if type(own) is type(again) else False
    return same is not True and not (isinstance(own, float) and own != own)
