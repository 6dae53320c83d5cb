"""One checker of what came from elsewhere: whether a value is what an annotation says, and if not, what is wrong.

Annotations are Python's own: plain types, unions, literals, lists, tuples, dictionaries, typed dictionaries, and named
tuples of such. `Annotated` adds bounds: `Between`, `Text`, `Length`, `Numbers`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

from fedgen.foreign_text import printable
from fedgen.io.files import is_count

LONGEST = 80  # characters of a value that are shown


@dataclass(frozen=True)
class Between:
    """A number of at least `least` and at most `most`; never NaN."""

    least: float
    most: float = math.inf

    def fault(self, value: Any) -> str:
        """Return the fault of a number; "" if there is none."""
        if self.least <= value <= self.most:
            return ""
        return f"is not {self.least:g} to {self.most:g}" if self.most < math.inf else f"is below {self.least:g}"


@dataclass(frozen=True)
class Text:
    """A printable text of `least` to `most` characters."""

    most: int
    least: int = 0

    def fault(self, value: Any) -> str:
        """Return the fault of a text; "" if there is none."""
        fits = self.least <= len(value) <= self.most and value.isprintable()
        return "" if fits else f"is not of {self.least} to {self.most} printable characters"


@dataclass(frozen=True)
class Length:
    """A container of `least` to `most` parts."""

    most: int
    least: int = 0

    def fault(self, value: Any) -> str:
        """Return the fault of a container; "" if there is none."""
        number = len(value)
        return "" if self.least <= number <= self.most else f"has {number} parts, not {self.least} to {self.most}"


@dataclass(frozen=True)
class Numbers:
    """A shape of at most so many numbers; that of one number has no axes."""

    most: int

    def fault(self, value: Any) -> str:
        """Return the fault of a shape; "" if there is none."""
        return "" if math.prod(value) <= self.most else f"has more than {self.most} numbers"


def conforms(value: Any, hint: Any) -> bool:
    """Whether a value is what an annotation says; see `fault`."""
    return not fault(value, hint)


def fault(value: Any, hint: Any) -> str:
    """Return the fault of a value, as a clause such as "is 'x', which is no float"; "" if there is none.

    Whole numbers are counts (0 to 2^63 - 1), a whole number is a float too, no truth value is a number, and a type is
    itself alone: what a subclass says of itself is its own.

    Args:
        value: from a stranger.
        hint: an annotation.
    """
    parts, origin = get_args(hint), get_origin(hint)
    if origin is Annotated:
        return _annotated(value, parts[0], parts[1:])
    if hint is Any:
        return ""
    if origin in (Union, UnionType):
        return "" if any(conforms(value, part) for part in parts) else _no(value, hint)
    if origin is Literal:
        return "" if type(value) is str and value in parts else _no(value, f"one of {', '.join(map(repr, parts))}")
    if is_typeddict(hint):
        return _typed(value, hint)
    if isinstance(hint, type) and issubclass(hint, tuple) and hasattr(hint, "_fields"):
        return _in_order(value, list(get_type_hints(hint, include_extras=True).values()), hint)
    if origin is None:
        return "" if _is_plain(value, hint) else _no(value, hint)
    if origin is tuple and parts[-1] is not Ellipsis:
        return _in_order(value, parts, hint)
    return _container(value, hint, origin, parts)


def _annotated(value: Any, hint: Any, rules: Sequence[Any]) -> str:
    if wrong := fault(value, hint):
        return wrong
    wrong = next((one for rule in rules if (one := rule.fault(value))), "")
    return f"is {said(value)} and {wrong}" if wrong else ""


def _is_plain(value: Any, hint: Any) -> bool:
    if hint is int:
        return is_count(value)
    if hint is float:
        return type(value) is float or is_count(value)
    if hint is str:
        return type(value) is str and value.encode(errors="replace").decode() == value  # no half of a surrogate pair
    return value is None if hint in (None, NoneType) else type(value) is hint


def _container(value: Any, hint: Any, origin: Any, parts: Sequence[Any]) -> str:
    if origin in (dict, Mapping):
        if not isinstance(value, Mapping):
            return _no(value, hint)
        found = (fault(key, parts[0]) or fault(item, parts[1]) for key, item in value.items())
    else:
        if type(value) not in ((list, tuple) if origin is Sequence else (origin,)):
            return _no(value, hint)
        found = (fault(item, parts[0]) for item in value)
    wrong = next((one for one in found if one), "")
    return f"is {said(value)}, where one {wrong}" if wrong else ""


def _in_order(value: Any, parts: Sequence[Any], hint: Any) -> str:
    if not isinstance(value, tuple | list) or len(value) != len(parts):
        return _no(value, hint)
    return next((wrong for item, part in zip(value, parts, strict=True) if (wrong := fault(item, part))), "")


def _typed(value: Any, hint: Any) -> str:
    hints = get_type_hints(hint, include_extras=True)
    if not isinstance(value, Mapping) or not hint.__required_keys__ <= value.keys() <= hints.keys():
        return f"is {said(value)}, whose keys are not {', '.join(hints)}"
    return next((f"has {key}, which {wrong}" for key in value if (wrong := fault(value[key], hints[key]))), "")


def _no(value: Any, hint: Any) -> str:
    name = hint.__name__ if isinstance(hint, type) and get_origin(hint) is None else str(hint)
    return f"is {said(value)}, which is no {name}"


def said(value: Any) -> str:
    """A value in a message: the beginning of it."""
    try:
        return printable(repr(value), LONGEST)
    except Exception:  # lists may be too deep to be written, and numbers too long
        return f"a {type(value).__name__}"
