"""One line an evaluation: the first score in both aggregates beside real images', the others as far as they fit."""

from dataclasses import replace

import pytest

from fedgen.evaluation.records import FLOOR, Columns
from fedgen.evaluation.tables.table import evaluation_line, headline, join_parts, say_round
from tests.evaluation.samples import record


@pytest.fixture
def records():
    values = {
        ("fid", "avg"): 31.2,
        ("fid", "all"): 9.1,
        ("fid", "worst"): 50.0,
        ("kid", "avg"): 0.2,
        ("kid", "all"): 0.1,
    }
    return [record(score, how, value, standard_error=0.25) for (score, how), value in values.items()]


def floor_of(records):
    return [replace(one, generator=FLOOR, round=None, value=one.value / 10) for one in records]


def test_the_first_score_is_told_in_both_aggregates_with_the_floors(records):
    parts = evaluation_line(records, floor_of(records), Columns.of(records))
    assert parts == ["fid_avg 31.20±0.25, fid_all 9.10±0.25 (real 3.12, 0.91)", "kid_all 0.10±0.25 (real 0.01)"]


def test_a_monitored_column_comes_first_and_is_the_headline(records):
    columns = Columns.of(records)
    assert evaluation_line(records, [], columns, "kid_avg")[0] == "kid_avg 0.20±0.25, kid_all 0.10±0.25"
    assert headline(records, columns, "kid_avg") == "kid_avg 0.20±0.25"
    assert headline(records, columns) == "fid_all 9.10±0.25"


def test_a_score_without_a_pool_is_told_alone(records):
    assert evaluation_line(records[:1], [], Columns.of(records)) == ["fid_avg 31.20±0.25"]
    assert headline(records[:1], Columns.of(records)) == "fid_avg 31.20±0.25"
    assert evaluation_line([], [], Columns.of([])) == []


def test_what_does_not_fit_is_left_out_but_for_the_first():
    assert join_parts("round 3", ["a 1", "b 2", "c 3"], 80) == "round 3: a 1, b 2, c 3"
    assert join_parts("round 3", ["a 1", "b 2", "c 3"], 17) == "round 3: a 1, b 2"
    assert join_parts("round 3", ["a 1", "b 2", "c 3"], 5) == "round 3: a 1"


def test_the_quickstarts_line_fits_80_columns():
    parts = ["fid_avg 24.9±0.5, fid_all 4.4±0.2 (real 23.8, 1.07)", "kid_all 0.0033±0.0004 (real -0.00007)"]
    assert len(join_parts(say_round(1199), parts, 80)) <= 80


def test_rounds_count_from_0():
    assert say_round(39) == "round 39 (40 done)"
    assert say_round(-1) == "before training"
