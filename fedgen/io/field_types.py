"""One checker of what came from elsewhere: whether a value is what an annotation says, and if not, what is wrong.

Annotations are Python's own: plain types, unions, literals, lists, tuples, dictionaries, typed dictionaries, and named
tuples of such. `Annotated` adds bounds: `Between`, `Text`, `Length`, `Numbers`, `Fits`.
"""

import math
import reprlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NotRequired, Union, get_args, get_origin, get_type_hints, is_typeddict

from fedgen.foreign_text import printable

LONGEST = 80  # characters of a value that are shown


def is_count(value: Any) -> bool:
    """Whether what a file holds is a whole number of 0 to 2^63 - 1, and no truth value."""
    return type(value) is int and 0 <= value < 2**63


@dataclass(frozen=True)
class Between:
    """A number of at least `least` and at most `most`; never NaN."""

    least: float
    most: float = math.inf

    def fault(self, value: Any) -> str:
        if self.least <= value <= self.most:
            return ""
        return f"is not {self.least:g} to {self.most:g}" if self.most < math.inf else f"is below {self.least:g}"


@dataclass(frozen=True)
class Length:
    """A container of `least` to `most` parts."""

    most: int
    least: int = 0

    def fault(self, value: Any) -> str:
        number = len(value)
        return "" if self.least <= number <= self.most else f"has {number} parts, not {self.least} to {self.most}"


class Text(Length):
    """A printable text of `least` to `most` characters."""

    def fault(self, value: Any) -> str:
        length = f"{self.least} to {self.most}" if self.least < self.most else f"{self.most}"
        fits = not super().fault(value) and value.isprintable()
        return "" if fits else f"is not of {length} printable characters"


@dataclass(frozen=True)
class Numbers:
    """A shape of at most so many numbers; that of one number has no axes."""

    most: int

    def fault(self, value: Any) -> str:
        return "" if math.prod(value) <= self.most else f"has more than {self.most} numbers"


@dataclass(frozen=True)
class Fits:
    """A value that passes a test; `what` it then is, for the message."""

    test: Callable[[Any], bool]
    what: str

    def fault(self, value: Any) -> str:
        return "" if self.test(value) else f"is no {self.what}"


FaultOf = Callable[[Any], str]  # of a value its fault, "" for none


def conforms(value: Any, hint: Any) -> bool:
    return not checker(hint)(value)


def fault(value: Any, hint: Any) -> str:
    """Return a value's fault by an annotation as a clause, "is 'x', which is no float"; "" if it has none."""
    # Whole numbers are counts (0 to 2^63 - 1), and floats, too; no truth value is a number, and a type is itself alone.
    # `numbers.Integral` is a whole number of any sign and size, `numbers.Real` a float or a whole one within 2^63 of 0.
    return checker(hint)(value)


@cache
def checker(hint: Any) -> FaultOf:
    """Return what gives a value's fault by an annotation, made once: records are read by the thousand."""
    parts, origin = get_args(hint), get_origin(hint)
    if origin is Annotated:
        return partial(_annotated, checker(parts[0]), parts[1:])
    if hint is Any:
        return lambda value: ""
    if origin in (Union, UnionType):
        return _union(parts, hint)
    if origin is Literal:
        choices = ", ".join(map(repr, parts))
        return lambda value: "" if type(value) is str and value in parts else f"is {said(value)}, none of {choices}"
    if origin is NotRequired:
        return checker(parts[0])
    if is_typeddict(hint):
        hints = get_type_hints(hint, include_extras=True).items()
        return partial(_typed, hint.__required_keys__, {name: checker(one) for name, one in hints})
    if isinstance(hint, type) and issubclass(hint, tuple) and hasattr(hint, "_fields"):
        return partial(_in_order, [checker(one) for one in get_type_hints(hint, include_extras=True).values()], hint)
    if origin is None:
        is_plain = _PLAIN.get(hint, lambda value: type(value) is hint)
        return lambda value: "" if is_plain(value) else _no(value, hint)
    if origin is tuple and parts[-1] is not Ellipsis:
        return partial(_in_order, [checker(part) for part in parts], hint)
    return _container(hint, origin, parts)


def _annotated(check: FaultOf, rules: Sequence[Any], value: Any) -> str:
    if wrong := check(value):
        return wrong
    for rule in rules:
        if wrong := rule.fault(value):
            return f"is {said(value)} and {wrong}"
    return ""


def _union(parts: Sequence[Any], hint: Any) -> FaultOf:
    checks = [checker(part) for part in parts]
    if len(parts) == 2 and parts[1] is NoneType:  # of records most values: no message is made of one that fits
        return lambda value: "" if value is None or not (wrong := checks[0](value)) else f"{wrong}, nor None"
    if len(parts) == 2 and get_origin(parts[1]) is Literal:
        other = " or ".join(map(repr, get_args(parts[1])))
        return lambda value: "" if not checks[1](value) or not (wrong := checks[0](value)) else f"{wrong}, nor {other}"
    return lambda value: "" if any(not check(value) for check in checks) else _no(value, hint)


_PLAIN: dict[Any, Callable[[Any], bool]] = {
    int: is_count,
    float: lambda value: type(value) is float or is_count(value),
    str: lambda value: type(value) is str and value.encode(errors="replace").decode() == value,  # no half of a pair
    **dict.fromkeys((None, NoneType), lambda value: value is None),
    Integral: lambda value: type(value) is int,
    Real: lambda value: type(value) is float or (type(value) is int and abs(value) < 2**63),
}


def _container(hint: Any, origin: Any, parts: Sequence[Any]) -> FaultOf:
    """Return the check of a dictionary, list, tuple of any length or set."""
    is_mapping = origin in (dict, Mapping)
    types = (list, tuple) if origin is Sequence else (origin,)
    checks = [checker(part) for part in parts if part is not Ellipsis]

    def check(value: Any) -> str:
        if not (isinstance(value, Mapping) if is_mapping else type(value) in types):
            return _no(value, hint)
        for part in value.items() if is_mapping else value:
            if wrong := checks[0](part[0]) or checks[1](part[1]) if is_mapping else checks[0](part):
                return f"is {said(value)}, where one {wrong}"
        return ""

    return check


def _in_order(checks: Sequence[FaultOf], hint: Any, value: Any) -> str:
    if not isinstance(value, tuple | list) or len(value) != len(checks):
        return _no(value, hint)
    return next((wrong for item, check in zip(value, checks, strict=True) if (wrong := check(item))), "")


def _typed(required: frozenset[str], checks: Mapping[str, FaultOf], value: Any) -> str:
    if not isinstance(value, Mapping) or not required <= value.keys() <= checks.keys():
        return f"is {said(value)}, whose keys are not {', '.join(checks)}"
    return next((f"has {key}, which {wrong}" for key in value if (wrong := checks[key](value[key]))), "")


def _no(value: Any, hint: Any) -> str:
    name = hint.__name__ if isinstance(hint, type) and get_origin(hint) is None else str(hint)
    return f"is {said(value)}, which is no {name.replace('typing.', '').replace('numbers.', '')}"


class _Beginning(reprlib.Repr):
    """Values in short: lists that hold one list twice, and so on, would otherwise fill any memory."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxstring, self.maxlong, self.maxother = 4, 2 * LONGEST, 2 * LONGEST, 2 * LONGEST
        self.maxdict = self.maxlist = self.maxtuple = self.maxset = self.maxfrozenset = 12

    def repr_instance(self, x: Any, level: int) -> str:
        if isinstance(x, bytes):
            return repr(x[: 2 * LONGEST])
        return f"a {type(x).__name__}" if isinstance(x, Collection) else super().repr_instance(x, level)


_beginning = _Beginning()


def said(value: Any) -> str:
    try:
        return printable(_beginning.repr(value), LONGEST)
    except Exception:  # numbers may be too long to be written
        return f"a {type(value).__name__}"
