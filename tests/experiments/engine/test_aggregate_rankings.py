"""avg against all of the same generators, beside IID controls."""

import pytest

from fedgen.experiments.engine.rankings import (
    ScoredRows,
    agreement_table,
    best_of,
    better_than_real,
    compare,
    ranking_lines,
)
from fedgen.experiments.engine.study import expectation


def rows(avg, all, error=0.1):
    return {
        f"g{place}": {"fid": {"avg": a, "all": b, "errors": {"avg": error, "all": error}}}
        for place, (a, b) in enumerate(zip(avg, all))
    }


def test_inversions_their_excess_and_the_gap_by_hand():
    # pairs (0, 1) and (1, 2) are inverted, the second within errors; the control inverts one of three pairs too
    found = compare(rows([1, 2, 2.1], [5, 3, 2.9]), [rows([1, 2, 3], [1, 3, 2.9])], "fid")
    assert found["inverted"] == [[0, 1], [0, 2], [1, 2]]
    assert found["beyond error"] == 2
    assert found["control inverted"] == [1]
    assert found["control beyond error"] == [0]
    assert found["excess"] == 2
    assert found["excess beyond error"] == 2
    assert found["evidence"] == [[0, 1], [0, 2]]
    assert found["tau"] == -1
    assert found["gap"] == {"mean": pytest.approx(-5.8 / 3), "min": -4, "max": pytest.approx(-0.8), "spread": 3.2}


def test_pairs_between_two_groups_alone_are_counted_where_asked():
    # all three pairs are inverted (see above); between {0} and {1, 2} two of them, and of the control's none
    found = compare(rows([1, 2, 2.1], [5, 3, 2.9]), [rows([1, 2, 3], [1, 3, 2.9])], "fid", ([0], [1, 2]))
    assert found["pairs"] == 2
    assert found["inverted"] == found["evidence"] == [[0, 1], [0, 2]]
    assert (found["control inverted"], found["excess"]) == ([0], 2)


def test_without_a_control_there_is_no_excess():
    found = compare(rows([1, 2], [1, 2]), [], "fid")
    assert (found["excess"], found["evidence"], found["control inverted"]) == (None, [], [])


def test_a_constant_column_has_no_tau():
    assert compare(rows([1, 1], [1, 2]), [], "fid")["tau"] is None


def test_a_control_of_other_generators_is_refused():
    with pytest.raises(AssertionError):
        compare(rows([1, 2], [1, 2]), [rows([1, 2, 3], [1, 2, 3])], "fid")


def test_the_table_has_a_line_a_score():
    found = compare(rows([1, 2], [5, 3]), [rows([1, 2], [1, 3])], "fid")
    table = agreement_table({"FID": found, "FID, PCA-64": found}, "toy")
    assert table.row_count == 2
    assert next(iter(table.columns[5].cells)) == "+1"


def test_an_expectation_says_whether_it_was_met():
    assert expectation("flat gap", True) == "as expected: flat gap"
    assert expectation("flat gap", False) == "not seen: flat gap"


def row(fid, kid, control=None):
    """A generator's (avg, all) over clients, and FID's over an IID split."""
    error = {"errors": {"avg": 0.01, "all": 0.01}}
    own = {"fid": {"avg": fid[0], "all": fid[1], **error}, "kid": {"avg": kid[0], "all": kid[1], **error}}
    return {"clients": own, "controls": [{"fid": {"avg": control[0], "all": control[1], **error}}] if control else []}


TITLES = {"fid": "FID", "kid": "KID"}


def told(a, b, scale=None):
    return ranking_lines(ScoredRows({"a": a, "b": b}).compared(), TITLES, scale)


def test_expected_outcomes_are_seen_in_numbers_that_have_them():
    # FID inverts the pair over the clients and not over IID ones, gaps -4 and -1, and 0; KID's gap is 1 in both
    assert told(row((1, 5), (3, 2), (1, 1)), row((2, 3), (2, 1), (2, 2))) == [
        "as expected: FID: avg - all is -4 to -1, a spread of 3; over IID clients 0 at most",
        "as expected: FID: avg and all order 1 of 1 pairs differently, 0 over IID clients",
        "as expected: FID: 1 of these beyond their own errors and beyond IID clients",
        "as expected: KID: avg - all is one number, 1, to 0.0e+00 of it",
        "as expected: KID: avg and all order 0 of 1 pairs differently",
    ]


def test_outcomes_that_are_not_there_are_not_seen():
    # the same inversion in the control; KID's gap is 1 and 3, and its two aggregates order the pair differently
    a, b = row((1, 5), (3, 2), (1, 5)), row((2, 3), (4, 1), (2, 3))
    assert [line.split(":")[0] for line in told(a, b)] == ["not seen"] * 5
    assert told(a, b, 1e12)[3] == "as expected: KID: avg - all is one number, 2, to 2.0e-12 of the mean kernel"


def test_without_controls_nothing_is_said_of_them():
    assert [line.split(":")[1] for line in told(row((1, 5), (3, 2)), row((2, 3), (2, 1)))] == [" KID", " KID"]


def test_iid_splits_are_a_list_or_named_one_by_one():
    listed = {"clients": {"fid": 1}, "controls": [{"fid": 2}, {"kid": 3}]}
    named = {"clients": {"fid": 1}, "IID 0": {"fid": 2}, "IID 1": {"kid": 3}}
    for scored in (listed, named):
        rows = ScoredRows({"a": scored})
        assert rows.controls("fid") == [{"a": {"fid": 2}}]
        assert rows.controls("kid") == [{"a": {"kid": 3}}]
        assert (rows.clients, rows.scores) == ({"a": {"fid": 1}}, ["fid"])


def test_generators_better_than_real_images_are_counted():
    made = {name: one["clients"] for name, one in (("a", row((1, 5), (3, 2))), ("b", row((2, 3), (2, 1))))}
    lines = better_than_real(made, row((1.5, 1), (0, 0))["clients"], "checkpoints")
    assert lines == [f"FID-{how} of 2 checkpoints better than real images" for how in ("avg calls 1", "all calls 0")]
    named = better_than_real(made, row((1.5, 1), (0, 0))["clients"], "checkpoints", named=True)
    assert [line.split(": ")[1] for line in named] == ["a", "none"]
    assert better_than_real(made, {}, "checkpoints") == []
    assert best_of(made, "fid", "all") == "b"
