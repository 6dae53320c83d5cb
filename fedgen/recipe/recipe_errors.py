"""Faults of a recipe, in one line: jsonargparse's messages list every type that a value is not."""

import difflib
import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NoReturn

from jsonargparse import ArgumentParser

from fedgen.class_paths import import_by_path, nearest
from fedgen.foreign_text import printable_lines
from fedgen.own_code import program

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


def _no_instance(match: re.Match[str], accepted: Sequence[str]) -> str:
    return f"expected the class_path and init_args of {match[1]}, got {match[2]}"


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
    return _unsaid(value) or f"expected {' or '.join(kinds)}, got {value!r}"


def _branch(match: re.Match[str], accepted: Sequence[str]) -> str:
    """A fault of a value that might have been of several types, and was of one of them."""
    return "" if OTHER_CLASS.search(match[1]) else match[1]


def _unknown_in_group(match: re.Match[str], accepted: Sequence[str]) -> str:
    """A key that a group, such as the trainer's settings, does not have."""
    group, key = match.groups()
    names = [name.removeprefix(f"{group}.").split(".")[0] for name in accepted if name.startswith(f"{group}.")]
    return f"{group}: Option {key!r} is not accepted{_among(key, names)}"


def _unrecognized(match: re.Match[str], accepted: Sequence[str]) -> str:
    return f"option {match[1]} is not accepted{nearest(match[1], [f'--{name}' for name in accepted])}"


def _unknown_alone(match: re.Match[str], accepted: Sequence[str]) -> str:
    """A key that the whole recipe does not have."""
    names = [name.split(".")[0] for name in accepted]
    return f"Option {match[1]!r} is not accepted{_among(match[1].split('.')[0], names)}"


OF_CLASS = r"Problem with given class_path '([^']+)':"
BRANCH = r"^ *- (?!Problem with|Does not validate|Parser key|Expected an? )([^\n]+)"
RULES: dict[str, Callable[[re.Match[str], Sequence[str]], str]] = {
    rf"{OF_CLASS}\s*Option '([^']+)' is not accepted": _unknown,
    OF_CLASS: _no_import,
    r"Expected a dot import path string: (\S+)": _no_class,
    r"Not a valid subclass of ([\w.]+)\. Got value: ([^\n]+)": _no_instance,
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
    return f"an option so deep reads null as a word; write it in the recipe, or give --config '{text}' behind it"


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
