"""Options of experiments: those of a quick run, and the settings that numbers are kept under."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from fedgen.experiments.engine.study import Choice, at_least, rising


@dataclass(frozen=True)
class Toy(Choice):
    """Options of a toy."""

    QUICK: ClassVar[Mapping[str, Any]] = {"draws": 2}
    APART: ClassVar[tuple[str, ...]] = ("note",)

    weights: Path | None = None
    draws: int | None = None
    runs: Path = Path("runs")
    note: str = ""

    def resolved(self, kind: str = "all") -> dict[str, Any]:
        return {"kind": kind}


@pytest.mark.parametrize(
    ("value", "most", "expected"),
    [(5, 2, 2), (1, 2, 1), (None, 2, 2), ((1, 2), (4,), (4,)), ((1, 2, 3), lambda sizes: sizes[:2], (1, 2))],
)
def test_an_option_of_a_quick_run_is_smaller_never_larger(value, most, expected):
    assert Toy(quick=True).smaller(value, most) == expected


def test_a_quick_run_gets_smaller_options_and_another_its_own():
    given = [Toy(quick=quick).smaller(draws, 2) for quick in (False, True) for draws in (5, 1)]
    assert given == [5, 1, 2, 1]


def test_settings_are_plain_and_leave_out_what_no_number_depends_on():
    own = {"seed": 0, "quick": False, "weights": "w.pt", "draws": None}
    assert Toy(weights=Path("w.pt"), note="x").settings() == own | {"kind": "all"}
    assert Toy(weights=Path("w.pt"), runs=Path("there")).settings("some") == own | {"kind": "some"}
    assert Toy(quick=True).settings()["draws"] == 2


def test_numbers_out_of_range_are_refused_with_the_remedy():
    at_least(2, sizes=(2, 3), draws=2, unset=None)
    rising(2, sizes=(2, 3))
    for name, value, said in (
        ("draws", 1, "1: give"),
        ("sizes", (2, 1), "[2, 1]: give numbers of"),
        ("sizes", (), "[]"),
    ):
        with pytest.raises(ValueError, match=f"{name}={re.escape(said)}.* at least 2"):
            at_least(2, **{name: value})
    for sizes in ((), (3, 2), (2, 2), (1, 2), (5,)):
        with pytest.raises(ValueError, match="rising"):
            rising(2, count=2, sizes=sizes)
