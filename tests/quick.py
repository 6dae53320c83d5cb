"""Parameters of a test that has a few quick cases among slow ones."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest


def first_quick(values: Iterable[Any], of: int | None = None, several: bool = False) -> list[Any]:
    """Parameters of which `make test` runs the first, and `make test-slow` the others.

    Args:
        values: the parameters.
        of: the first of so many is quick, and of as many after them; one of all by default.
        several: whether each is a tuple of as many parameters.
    """
    cases = list(values)
    if any(isinstance(case, type(pytest.param())) for case in cases):
        raise TypeError("a case is a pytest.param already: give its values alone")
    return [
        case
        if number % (of or len(cases)) == 0
        else pytest.param(*(case if several else (case,)), marks=pytest.mark.slow)
        for number, case in enumerate(cases)
    ]


def first_and_others(cases: Mapping[str, Iterable[Any]]) -> list[Any]:
    """Parameters (kind, some of its cases) of a test that takes the cases in turn.

    `make test` has the first case of each kind, `make test-slow` the others: a test costs more than most cases.
    """
    parts: list[tuple[str, Sequence[Any], str]] = []
    for kind, all_of_it in cases.items():
        first, *others = all_of_it
        parts += [(kind, [first], "first"), (kind, others, "others")]
    return [
        pytest.param(kind, part, id=f"{kind}: {which}", marks=[pytest.mark.slow] * (which == "others"))
        for kind, part, which in parts
        if part
    ]
