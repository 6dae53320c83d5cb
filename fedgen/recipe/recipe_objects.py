"""A recipe's settings as objects, and as the plain values that a run keeps; its faults, each in one line."""

import copy
import difflib
import inspect
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import MappingProxyType, NoneType
from typing import Any, NoReturn, get_args

import yaml
from jsonargparse import ArgumentParser, Namespace, add_instantiator

from fedgen.class_paths import import_by_path, nearest
from fedgen.foreign_text import printable_lines
from fedgen.own_code import from_own_code, program
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
        causes, cause = list[Exception](), error.__cause__
        while isinstance(cause, Exception):
            causes.append(cause)
            cause = cause.__cause__
        for one in reversed(causes):
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
                f"{name} of {named.__qualname__} is empty (null); give it a value ({expected}), or remove the line"
            )


def _refuses_none(hint: Any) -> bool:
    """Tell whether a type surely has no None; of a type variable, say, nothing is known."""
    if isinstance(hint, type) and not get_args(hint):
        return hint not in (object, Any, NoneType, inspect.Parameter.empty)
    return bool(get_args(hint)) and not any(one is None or one is NoneType for one in get_args(hint))


# ---- plain values ----


def plain_settings(parser: ArgumentParser, config: Namespace) -> dict[str, Any]:
    """The complete settings as plain values that the parser reads back to the same."""
    # jsonargparse has no text for some values (a number under `numbers.Number`, an object that is a constructor's
    # default), and reads others back as their names (a function as a default). Numbers stay as they were written; an
    # argument that no text stands for is left out, so that it has its default again: what is written in a recipe always
    # has a text.
    with warnings.catch_warnings(), _text_for_anything():
        warnings.filterwarnings("ignore", message=r"\s*(Unable to serialize|Dump of a value that does not round-trip)")
        dumped = yaml.safe_load(parser.dump(config, skip_unset=False, skip_validation=True, format="yaml"))
    settings = _kept(dumped, config, dumped, lambda text, own: str(text).startswith(UNABLE) and type(own) is not str)
    again = parser.parse_object(copy.deepcopy(settings), defaults=False)  # it changes what it is given
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


def _differ(again: Any, own: Any) -> bool:
    """Whether two values are of two types or mean something else; arrays, which answer for each element, do."""
    same = own is again or own == again if type(own) is type(again) else False
    return same is not True and not (isinstance(own, float) and own != own)


# ---- faults, each in one line: jsonargparse's messages list every type that a value is not ----

KEY = re.compile(r'Parser key "([^"]+)"')
EXPECTED = re.compile(r"Expected an? (?:<class '([^']+)'>|([^\n]+))")
NAMED = re.compile(r"'class_path': '([^']+)'")
OTHER_CLASS = re.compile(r"does not correspond to a subclass of|^Subclasses are disabled for")
GIVEN = re.compile(r"Given value: (.+)")
MOST_KEYS = 10  # listed of a class or a group


def explain(message: str, accepted: Sequence[str] = ()) -> str:
    """A message of jsonargparse as a line with key, value and what is `accepted` ("trainer.max_epochs"), or as is."""
    for pattern, say in RULES.items():
        for match in reversed(list(re.finditer(pattern, message, re.MULTILINE))):
            if line := say(match, accepted):
                keys = KEY.findall(message[: match.end()]) if say not in OF_PARSER else ()
                return f"{'.'.join(keys)}: {line}" if keys else line
    return message


def refuse(message: str) -> NoReturn:
    """Ends `fedgen fit` with status 2 and a line."""
    hint = f"({program()} fit --help lists the usual options, --help-all every one)"
    print(f"fedgen: error: {printable_lines(message)}\n{hint}", file=sys.stderr)
    raise SystemExit(2)


# ---- what a match of each of `RULES` says; "" for nothing ----


def _unknown(match: re.Match[str], accepted: Sequence[str]) -> str:
    path, key = match.groups()
    return f"Option {key!r} is not accepted by {path}{_among(key, *_arguments_of(path))}"


def _no_import(match: re.Match[str], accepted: Sequence[str]) -> str:
    try:
        import_by_path(match[1])
    except ValueError as error:
        return str(error)
    return ""


def _no_class(match: re.Match[str], accepted: Sequence[str]) -> str:
    known = {name: f"{module}.{name}" for module, name in _public()}
    close = difflib.get_close_matches(match[1], list(known), n=1)
    hint = f"; did you mean {known[close[0]]}?" if close else "; give its class path, such as my_package.MyClass"
    return f"there is no class {match[1]!r}{hint}"


def _another_type(match: re.Match[str], accepted: Sequence[str]) -> str:
    message, rest = match.string, match.string[match.end() :]
    kinds = [(a or b).replace("NoneType", "None").rsplit(".", 1)[-1] for a, b in EXPECTED.findall(rest)]
    given = GIVEN.search(rest)
    if not kinds or given is None or "Problem with" in rest[: given.start()]:
        return ""
    if kinds == ["None"] and any(_branch(one, ()) for one in re.finditer(BRANCH, message, re.MULTILINE)):
        return ""
    expected = max(1, rest[len(rest.partition("\n")[0]) : given.start()].count("Expected"))
    kinds, value = list(dict.fromkeys(kind.strip() for kind in kinds[:expected])), given[1].strip()
    if value == "None" and "None" in kinds:
        return _unsaid(value) or _null_as_text(KEY.findall(message))
    if nested := NESTED.search(value):  # how jsonargparse keeps the value of `--model.lr abc`
        value = nested[1]
    return _unsaid(value) or f"expected {' or '.join(kinds)}, got {value!r}"


def _branch(match: re.Match[str], accepted: Sequence[str]) -> str:
    """A fault of a value that might have been of several types, and was of one of them."""
    return "" if OTHER_CLASS.search(match[1]) else match[1]


def _unknown_in_group(match: re.Match[str], accepted: Sequence[str]) -> str:
    group, key = match.groups()
    names = [name.removeprefix(f"{group}.").split(".")[0] for name in accepted if name.startswith(f"{group}.")]
    return f"{group}: Option {key!r} is not accepted{_among(key, names)}"


def _unrecognized(match: re.Match[str], accepted: Sequence[str]) -> str:
    return f"option {match[1]} is not accepted{nearest(match[1], [f'--{name}' for name in accepted])}"


def _unknown_alone(match: re.Match[str], accepted: Sequence[str]) -> str:
    names = [name.split(".")[0] for name in accepted]
    return f"Option {match[1]!r} is not accepted{_among(match[1].split('.')[0], names)}"


NESTED = re.compile(r"^NestedArg\(key='[^']*', val='?(.*?)'?\)$")
OF_CLASS = r"Problem with given class_path '([^']+)':"
BRANCH = r"^ *- (?!Problem with|Does not validate|Parser key|Expected an? )([^\n]+)"
RULES: dict[str, Callable[[re.Match[str], Sequence[str]], str]] = {
    rf"{OF_CLASS}\s*Option '([^']+)' is not accepted": _unknown,
    OF_CLASS: _no_import,
    r"Expected a dot import path string: (\S+)": _no_class,
    r"Not a valid subclass of ([\w.]+)\. Got value: ([^\n]+)": lambda match, accepted: (
        f"expected the class_path and init_args of {match[1]}, got {match[2]}"
    ),
    rf"{KEY.pattern}(?![\s\S]*Parser key \")": _another_type,  # the last key
    BRANCH: _branch,
    r"Group '([^']+)' does not accept option '([^']+)'": _unknown_in_group,
    r"[Uu]nrecognized arguments: (--[^\s=]+)": _unrecognized,
    r"\A\s*Option '([^']+)' is not accepted": _unknown_alone,
}
"""By what jsonargparse writes, what says it in short: the first that fits, of its last match."""
OF_PARSER = (_unknown_in_group, _unrecognized, _unknown_alone)  # which name the keys that lead to it themselves


def _null_as_text(keys: Sequence[str]) -> str:
    """Return how to give a null to an argument of an argument: jsonargparse makes it a text in such an option."""
    *outer, last = ".".join(keys).split(".")
    text = f"{{{last}: null}}"
    for key in reversed(outer):
        text = f"{{{key}: {text}}}" if key == "trainer" else f"{{{key}: {{init_args: {text}}}}}"
    return f"an option this deep reads null as a word; write it in the recipe, or append --config '{text}'"


def _unsaid(given: str) -> str:
    """Return what a function in a class's place lacks: to say what it returns; "" for anything else."""
    match = NAMED.search(given)
    try:
        found = import_by_path(match[1]) if match else None
    except ValueError:
        return ""
    if not inspect.isfunction(found) or "return" in found.__annotations__:
        return ""
    assert match is not None
    return (
        f"{match[1]} is a function without a return annotation; write def {found.__name__}(...) ->"
        " torch.utils.data.Dataset, or the type that it returns"
    )


def _among(key: str, names: Sequence[str], inherited: Mapping[str, Sequence[str]] = MappingProxyType({})) -> str:
    """Name the nearest of the accepted keys, list (at most `MOST_KEYS` of) the class's own and count its parents'."""
    known = sorted(set(names))
    every = [*known, *(name for taken in inherited.values() for name in taken)]
    if not every:
        return ""
    shown = known if len(known) <= MOST_KEYS else difflib.get_close_matches(key, known, n=MOST_KEYS, cutoff=0)
    rest = [f"{len(known) - len(shown)} more"] if len(known) > len(shown) else []
    rest += [f"{len(taken)} of {parent}" for parent, taken in inherited.items()]
    listed = [", ".join(shown)] if shown else []
    return f"{nearest(key, every)}; accepted: {' and '.join([*listed, *rest])}"


def _arguments_of(path: str) -> tuple[list[str], dict[str, list[str]]]:
    """The arguments that a class takes from a recipe: its own, and by parent those that it hands on."""
    parser = ArgumentParser(exit_on_error=False)
    try:
        found = import_by_path(path)
        parser.add_class_arguments(found, fail_untyped=False)
    except (ValueError, TypeError):
        return [], {}
    names = [name for name in parser.get_defaults().as_dict() if name not in ("config", "help")]
    owners = [one for one in found.__mro__[:-1] if "__init__" in vars(one)] if isinstance(found, type) else []
    if not owners:
        return names, {}
    taken = [inspect.signature(vars(owner)["__init__"]).parameters for owner in owners]
    hand_on = [place for place, one in enumerate(taken) if any(p.kind is p.VAR_KEYWORD for p in one.values())]
    last = max(hand_on, default=0)  # what no signature has, this one gives to a class that is no parent
    places = {name: next((place for place, one in enumerate(taken) if name in one), last) for name in names}
    by_owner = [[name for name in names if places[name] == place] for place in range(len(owners))]
    return by_owner[0], {owner.__name__: part for owner, part in zip(owners[1:], by_owner[1:]) if part}


def _public() -> list[tuple[str, str]]:
    """The public classes of fedgen's folders that are loaded: (folder, name)."""
    folders = {name: module for name, module in list(sys.modules.items()) if name.startswith("fedgen.")}
    return [
        (name, public)
        for name, module in sorted(folders.items())
        for public in getattr(module, "__all__", ())  # not every module has Python's list
        if isinstance(getattr(module, public, None), type)
    ]
