"""Parameters of a test that has one quick case among slow ones."""

from collections.abc import Iterable
from typing import Any

import pytest


def first_quick(values: Iterable[Any]) -> list[Any]:
    """Parameters of which all but the first are slow: `make test` runs one of them, `make test-slow` the others."""
    first, *others = values
    return [first, *(pytest.param(value, marks=pytest.mark.slow) for value in others)]
