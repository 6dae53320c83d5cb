"""Whether values from elsewhere are what annotations say."""

import math
from collections import OrderedDict
from numbers import Integral, Real
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import pytest

from fedgen.io.field_types import Between, Fits, Length, Numbers, Text, conforms, fault


class Pair(TypedDict):
    name: str
    sizes: list[int]
    kind: NotRequired[Literal["a", "b"]]


EVEN = Annotated[int, Fits(lambda value: value % 2 == 0, "even number")]
SOUND = {
    "counts": (int, [0, 2**63 - 1], [-1, 2**63, True, 1.0, "1", None]),
    "floats": (float, [0.5, 3, math.inf, math.nan], [True, -1, "0.5"]),
    "whole numbers": (Integral, [-1, 2**70], [True, 1.0]),
    "real numbers": (Real, [-1, -0.5, math.nan], [True, 2**63, "1"]),
    "texts": (str, ["", "a\U0001f600"], ["\ud800", b"a", 1]),
    "optional": (EVEN | None, [None, 2], [1, "2"]),
    "one of two": (int | str, [1, "a"], [None, 1.5]),
    "literals": (Literal["a"], ["a"], ["b", 1]),
    "lists": (list[int], [[], [1]], [(1,), [-1], {1: 1}]),
    "tuples": (tuple[int, ...], [(), (1, 2)], [[1], (-1,)]),
    "pairs": (tuple[int, str], [(1, "a"), [1, "a"]], [(1,), ("a", 1)]),
    "mappings": (dict[str, int], [{}, {"a": 1}], [[], {1: 1}, {"a": -1}]),
    "typed": (Pair, [{"name": "", "sizes": []}, {"name": "", "sizes": [1], "kind": "b"}], [{}, {"name": ""}]),
    "typed, of wrong parts": (Pair, [], [{"name": "", "sizes": [], "kind": "c"}, {"name": "", "sizes": [], "x": 1}]),
    "bounds": (Annotated[float, Between(0, 1)], [0, 1.0], [-0.1, 2, math.nan]),
    "lengths": (Annotated[list[Any], Length(2, 1)], [[1], [1, 2]], [[], [1, 2, 3]]),
    "printable": (Annotated[str, Text(3, 1)], ["abc"], ["", "abcd", "\x1b"]),
    "shapes": (Annotated[tuple[int, ...], Numbers(6)], [(), (2, 3)], [(7,)]),
}


@pytest.mark.parametrize("name", SOUND)
def test_a_value_conforms_or_does_not(name):
    hint, sound, unsound = SOUND[name]
    assert [value for value in sound if not conforms(value, hint)] == []
    assert [value for value in unsound if conforms(value, hint)] == []


SAID = [
    (-1, int, "is -1, which is no int"),
    ([1, "x"], list[float], "is [1, 'x'], where one is 'x', which is no float"),
    (2.5, Annotated[float, Between(0, 1)], "is 2.5 and is not 0 to 1"),
    (3, EVEN | None, "is 3 and is no even number, nor None"),
    ({"name": ""}, Pair, "is {'name': ''}, whose keys are not name, sizes, kind"),
    ({"name": 1, "sizes": []}, Pair, "has name, which is 1, which is no str"),
    ("c", Literal["a", "b"], "is 'c', none of 'a', 'b'"),
    ([], dict[Any, Real], "is [], which is no dict[Any, Real]"),
]


@pytest.mark.parametrize(("value", "hint", "said"), SAID, ids=[said for *_, said in SAID])
def test_a_fault_names_the_value_and_what_is_accepted(value, hint, said):
    assert fault(value, hint) == said


@pytest.mark.parametrize("kind", [list, dict, OrderedDict])
def test_a_value_that_unfolds_without_end_is_shown_at_once(kind):
    """Sixty lines that stand for 2 ** 60 parts."""
    value = kind()
    for _ in range(60):
        value = [value, value] if kind is list else kind(a=value, b=value)
    assert len(fault(value, int)) < 200
