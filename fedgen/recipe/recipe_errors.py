"""Faults of a recipe, in one line: jsonargparse's messages list every type that a value is not."""

import difflib
import inspect
import re
import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NoReturn

from jsonargparse import ArgumentParser

from fedgen.class_paths import import_by_path, nearest
from fedgen.foreign_text import printable_lines
from fedgen.own_code import program

KEY = re.compile(r'Parser key "([^"]+)"')
OF_CLASS = re.compile(r"Problem with given class_path '([^']+)':")
UNKNOWN = re.compile(r"Problem with given class_path '([^']+)':\s*Option '([^']+)' is not accepted")
UNKNOWN_IN_GROUP = re.compile(r"Group '([^']+)' does not accept option '([^']+)'")
UNKNOWN_ALONE = re.compile(r"^\s*Option '([^']+)' is not accepted")
UNRECOGNIZED = re.compile(r"[Uu]nrecognized arguments: (--[^\s=]+)")
NO_CLASS = re.compile(r"Expected a dot import path string: (\S+)")
EXPECTED = re.compile(r"Expected an? (?:<class '([^']+)'>|([^\n]+))")
NAMED = re.compile(r"'class_path': '([^']+)'")
NOT_OF_CLASS = re.compile(r"Not a valid subclass of ([\w.]+)\. Got value: ([^\n]+)")
BRANCH = re.compile(r"^ *- (?!Problem with|Does not validate|Parser key|Expected an? )([^\n]+)", re.MULTILINE)
OTHER_CLASS = re.compile(r"does not correspond to a subclass of|^Subclasses are disabled for")
MOST_KEYS = 10  # listed of a class or a group
GIVEN = re.compile(r"Given value: (.+)")


def explain(message: str, accepted: Sequence[str] = ()) -> str:
    """A message of jsonargparse as one line that names the key, its value, what is accepted, and the nearest of it.

    `accepted` are the keys that the parser takes, with their groups' names in front: "trainer.max_epochs". Where
    nothing shorter says it, the message itself.
    """
    for rule in (_unknown, _no_import, _no_class, _no_instance, _another_type, _branch):
        if line := rule(message):
            return line
    return _unknown_here(message, accepted) or message


def refuse(message: str) -> NoReturn:
    """Ends `fedgen fit` with status 2 and a line."""
    hint = f"({program()} fit --help lists the usual options, --help-all every one)"
    print(f"fedgen: error: {printable_lines(message)}\n{hint}", file=sys.stderr)
    raise SystemExit(2)


def _unknown(message: str) -> str:
    """A key that a class does not take."""
    if not (found := list(UNKNOWN.finditer(message))):
        return ""
    path, key = found[-1].groups()
    own, inherited = _arguments_of(path)
    return f"{_where(message, found[-1].end())}Option {key!r} is not accepted by {path}{_among(key, own, inherited)}"


def _unknown_here(message: str, accepted: Sequence[str]) -> str:
    """A key that a group, or the whole recipe, does not have."""
    if match := UNKNOWN_IN_GROUP.search(message):
        group, key = match.groups()
        names = [name.removeprefix(f"{group}.").split(".")[0] for name in accepted if name.startswith(f"{group}.")]
        return f"{group}: Option {key!r} is not accepted{_among(key, names)}"
    if match := UNRECOGNIZED.search(message):
        return f"option {match[1]} is not accepted{nearest(match[1], [f'--{name}' for name in accepted])}"
    if match := UNKNOWN_ALONE.search(message):
        key = match[1].split(".")[0]
        return f"Option {match[1]!r} is not accepted{_among(key, [name.split('.')[0] for name in accepted])}"
    return ""


def _no_import(message: str) -> str:
    """A class path of nothing."""
    for match in reversed(list(OF_CLASS.finditer(message))):
        try:
            import_by_path(match[1])
        except ValueError as error:
            return f"{_where(message, match.end())}{error}"
    return ""


def _no_class(message: str) -> str:
    """A bare name of no class."""
    if not (match := NO_CLASS.search(message)):
        return ""
    known = {name: f"{module}.{name}" for module, name in _public()}
    close = difflib.get_close_matches(match[1], list(known), n=1)
    hint = f"; did you mean {known[close[0]]}?" if close else "; give its class path, such as my_package.MyClass"
    return f"{_where(message, match.end())}there is no class {match[1]!r}{hint}"


def _another_type(message: str) -> str:
    """A value of another type than the innermost key has."""
    keys = list(KEY.finditer(message))
    if not keys:
        return ""
    rest = message[keys[-1].end() :]
    kinds = [(a or b).replace("NoneType", "None").rsplit(".", 1)[-1] for a, b in EXPECTED.findall(rest)]
    given = GIVEN.search(rest)
    if not kinds or given is None or "Problem with" in rest[: given.start()]:
        return ""
    if kinds == ["None"] and (line := _branch(message)):
        return line
    depth = len(re.match(r"[^\n]*", rest)[0])  # type: ignore[index]
    kinds = list(dict.fromkeys(kind.strip() for kind in kinds[: max(1, rest[depth : given.start()].count("Expected"))]))
    value = given[1].strip()
    if not (wrong := _unsaid(value)):
        is_text = value == "None" and "None" in kinds
        wrong = _null_as_text(KEY.findall(message)) if is_text else f"expected {' or '.join(kinds)}, got {value!r}"
    return f"{_where(message, keys[-1].end())}{wrong}"


def _null_as_text(keys: Sequence[str]) -> str:
    """Return how to give a null to an argument of an argument: jsonargparse makes it a text in such an option."""
    *outer, last = ".".join(keys).split(".")
    text = f"{{{last}: null}}"
    for key in reversed(outer):
        text = f"{{{key}: {text}}}" if key == "trainer" else f"{{{key}: {{init_args: {text}}}}}"
    return f"an option so deep reads null as a word; write it in the recipe, or give --config '{text}' behind it"


def _no_instance(message: str) -> str:
    """A value in the place of an object of a class."""
    if not (found := list(NOT_OF_CLASS.finditer(message))):
        return ""
    kind, value = found[-1].groups()
    return f"{_where(message, found[-1].end())}expected the class_path and init_args of {kind}, got {value}"


def _branch(message: str) -> str:
    """Return what went wrong where a value might have been of several types, and was of one of them."""
    found = [match for match in BRANCH.finditer(message) if not OTHER_CLASS.search(match[1])]
    return f"{_where(message, found[-1].end())}{found[-1][1]}" if found else ""


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
        f"{match[1]} is a function that does not say what it returns; write def {found.__name__}(...) ->"
        " torch.utils.data.Dataset, or what else it makes"
    )


def _where(message: str, end: int) -> str:
    """The keys that lead to a place of a message, "data.partition: "."""
    keys = KEY.findall(message[:end])
    return f"{'.'.join(keys)}: " if keys else ""


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
