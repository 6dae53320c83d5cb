"""Intervals of shares, differences and areas, against published values and other implementations."""

import math

import pytest
from scipy.stats import binomtest

from fedgen.evaluation.audit.attack_strength import QUANTILE, IntervalEstimate, combined, proportion, rank_interval


@pytest.mark.parametrize(("hits", "trials"), [(0, 10), (3, 10), (10, 10), (56, 70)])
def test_a_share_has_wilsons_interval(hits, trials):
    found, expected = proportion(hits, trials), binomtest(hits, trials).proportion_ci(method="wilson")
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-12)
    assert found.value == hits / trials


@pytest.mark.parametrize(
    ("first", "second", "ends"),
    [((56, 70), (48, 80), (0.0524, 0.3339)), ((9, 10), (3, 10), (0.1705, 0.8090)), ((10, 10), (0, 10), (0.6075, 1.0))],
)
def test_a_difference_has_newcombes_interval(first, second, ends):
    """Newcombe 1998, Table II, method 10."""
    found = combined([proportion(*first), proportion(*second)], [1, -1])
    assert (round(found.low, 4), round(found.high, 4)) == ends


def test_a_mean_of_symmetric_intervals_has_the_root_of_the_squares():
    found = combined([IntervalEstimate(1.0, 0.7, 1.3), IntervalEstimate(2.0, 1.6, 2.4)], [0.5, 0.5])
    assert (found.value, found.low, found.high) == pytest.approx((1.5, 1.25, 1.75))


@pytest.mark.parametrize("count", [10, 200])
def test_an_area_excludes_one_half_where_the_test_of_mann_and_whitney_does(count):
    edge = 0.5 + QUANTILE * math.sqrt((2 * count + 1) / (12 * count**2))
    assert rank_interval(edge - 1e-6, count, count).low < 0.5 < rank_interval(edge + 1e-6, count, count).low
    assert rank_interval(1 - edge + 1e-6, count, count).high > 0.5 > rank_interval(1 - edge - 1e-6, count, count).high


def test_an_area_of_one_has_an_interval_that_shrinks_with_more_images():
    few, many = rank_interval(1.0, 10, 10), rank_interval(1.0, 100, 100)
    assert (few.high, many.high) == (1.0, 1.0)
    assert 0.5 < few.low < many.low < 1
    assert rank_interval(0.0, 10, 10).high == pytest.approx(1 - few.low)


def test_an_estimate_reads_as_a_number_with_its_interval():
    assert str(IntervalEstimate(0.5, 0.25, 0.755)) in ("0.50 [0.25, 0.76]", "0.50 [0.25, 0.75]")
