"""Arms over paired seeds: differences, and what may be said of them."""

import pytest

from fedgen.experiments.engine.paired_seeds import (
    by_chance,
    cell,
    change_of,
    compare_pairs,
    holds,
    mean_and_spread,
    verdict,
    verdict_on,
)


def test_the_interval_is_students():
    found = compare_pairs([4.0, 6.0], [3.0, 3.0])
    assert found["values"] == [3.0, 3.0]
    assert found["difference"] == -2.0
    # differences -1 and -3: deviation sqrt(2), half width 12.7062 * sqrt(2) / sqrt(2)
    assert found["interval"] == pytest.approx([-14.7062, 10.7062], abs=1e-3)
    assert found["improved"] == 2
    assert change_of(found) == "-2 (-14.7 to +10.7)"
    assert cell(found, "*") == "3 *\n-2, 2/2\n-15 to +11"


def test_what_is_better_is_the_scores_to_say():
    more = compare_pairs([1.0, 2.0, 3.0], [2.0, 1.0, 4.0], lambda value: -value)
    assert more["improved"] == 2


def test_pairs_that_agree_leave_no_doubt():
    assert compare_pairs([1.0, 2.0, 3.0], [2.0, 3.0, 4.0])["interval"] == pytest.approx([1.0, 1.0])


def test_one_pair_has_a_difference_and_no_interval():
    found = compare_pairs([1.0], [2.0])
    assert found == {"values": [2.0], "difference": 1.0, "improved": 0}
    assert (change_of(found), cell(found)) == ("+1", "2")
    assert verdict("more", found, "more") == "cannot be told from one seed: more: +1"


def test_arms_without_pairs_are_no_comparison():
    for control, treated in (([1.0, 2.0], [2.0, 3.0, 4.0]), ([], [])):
        with pytest.raises(AssertionError):
            compare_pairs(control, treated)


@pytest.mark.parametrize(
    ("interval", "less", "more"),
    [([-2, -1], True, False), ([1, 2], False, True), ([-1, 2], None, None), ([0, 0], False, False)],
)
def test_a_claim_holds_or_not_beyond_doubt_or_cannot_be_told(interval, less, more):
    row = {"values": [1, 2, 3], "difference": sum(interval) / 2, "interval": interval}
    assert (holds(row, "less"), holds(row, "more")) == (less, more)
    opposite = {True: False, False: True, None: None}
    assert (holds(row, "not less"), holds(row, "not more")) == (opposite[less], opposite[more])
    said = {True: "as expected", False: "not seen", None: "cannot be told from these 3 seeds"}
    assert verdict("it falls", row, "less").startswith(f"{said[less]}: it falls: {row['difference']:+.3g} (")


def test_many_intervals_miss_by_chance():
    assert by_chance(30).endswith("1.5 of them miss it by chance")


def test_a_line_on_values_is_a_verdict_or_without_a_claim_a_difference():
    assert verdict_on("it falls", ([4.0, 4.0], [3.0, 3.0]), "less") == "as expected: it falls: -1 (-1 to -1)"
    assert verdict_on("both", ([4.0, 4.0], [3.0, 3.0])) == "both differs: -1 (-1 to -1)"
    assert verdict_on("both", ([4.0], [3.0])) == "both cannot be told apart: -1"


def test_mean_and_spread_by_hand():
    assert mean_and_spread([1.0, 3.0]) == "2 ± 1"
    assert mean_and_spread([1.0, 2.0], digits=2) == "1.5 ± 0.71"
    assert mean_and_spread([0.125]) == "0.125"
