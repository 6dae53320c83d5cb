"""Parameters of a test that has a few quick cases among slow ones."""

from collections.abc import Iterable
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
    return [
        case
        if number % (of or len(cases)) == 0
        else pytest.param(*(case if several else (case,)), marks=pytest.mark.slow)
        for number, case in enumerate(cases)
    ]
