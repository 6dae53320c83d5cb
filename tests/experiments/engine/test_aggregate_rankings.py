"""avg against all of the same generators, beside IID controls."""

import pytest

from fedgen.experiments.engine.aggregate_rankings import agreement_table, compare, expectation, inversion_lines


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
    with pytest.raises(ValueError, match="same generators"):
        compare(rows([1, 2], [1, 2]), [rows([1, 2, 3], [1, 2, 3])], "fid")


def test_the_table_has_a_line_a_score():
    found = compare(rows([1, 2], [5, 3]), [rows([1, 2], [1, 3])], "fid")
    table = agreement_table({"FID": found, "FID, PCA-64": found}, "toy")
    assert table.row_count == 2
    assert next(iter(table.columns[5].cells)) == "+1"


def test_an_expectation_says_whether_it_was_met():
    assert expectation("flat gap", True) == "as expected: flat gap"
    assert expectation("flat gap", False) == "not seen: flat gap"


def test_inverted_pairs_are_set_beside_those_over_iid_clients():
    row = {"inverted": [[0, 1], [1, 2]], "control inverted": [1, 2], "pairs": 3, "excess beyond error": 0.0}
    assert inversion_lines("FID", row) == [
        "as expected: FID: avg and all order 2 of 3 pairs differently, 1.5 over IID clients",
        "not seen: FID: 0 of these beyond their own errors and beyond IID clients",
    ]
