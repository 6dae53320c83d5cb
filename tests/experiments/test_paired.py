"""Differences of paired runs."""

import pytest

from fedgen.experiments.paired import paired_difference


def test_the_interval_is_students():
    found = paired_difference([4.0, 6.0], [3.0, 3.0])
    assert found["difference"] == -2.0
    # differences -1 and -3: deviation sqrt(2), half width 12.7062 * sqrt(2) / sqrt(2)
    assert found["interval"] == pytest.approx([-14.7062, 10.7062], abs=1e-3)


def test_pairs_that_agree_leave_no_doubt():
    assert paired_difference([1.0, 2.0, 3.0], [2.0, 3.0, 4.0])["interval"] == pytest.approx([1.0, 1.0])


def test_one_pair_is_no_comparison():
    with pytest.raises(ValueError, match="at least 2 pairs"):
        paired_difference([1.0], [2.0])
    with pytest.raises(ValueError, match="2 and 3 runs"):
        paired_difference([1.0, 2.0], [2.0, 3.0, 4.0])
