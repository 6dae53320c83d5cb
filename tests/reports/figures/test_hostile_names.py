"""Names in records are drawn as they stand: they are no formulas, and as long as they are they end no drawing."""

import pytest

from fedgen.reports.figures.curves import draw_clients, draw_curves
from tests.reports.folders import make_records

NAMES = {
    "empty formulas": "$" * 50,
    "a formula that is none": "$\\frac{a}{$",
    "a command that is none": "$\\nothing$",
    "a terminal's commands": "\x1b[2J\u202ea",
    "a long name": "a" * 20_000,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_names_that_are_no_formulas_are_drawn(name, tmp_path):
    text = NAMES[name]
    records = make_records(names=[text, text + "1", "c"], embedding=text, reference=text)
    assert draw_clients(records, tmp_path / "clients.png").stat().st_size > 1000
    assert draw_curves(records, tmp_path / "curves.png").stat().st_size > 1000
