"""Choosing among many checkpoints: how often sets, intervals and orders are right, by simulation."""

from statistics import NormalDist

import numpy as np
import pytest
from scipy.optimize import nnls
from scipy.stats import chi2

from fedgen.scores.rankings import _chi_squared_tail, _forces, _refuted, best_set, inverted_pairs, winner

EQUAL, SPREAD, NEAR = np.zeros(20), np.arange(20) * 0.3, np.r_[0, 0.1, 0.2, np.full(12, 4.0)]
REPEATS = 60
LEAST = 0.89  # of 60 repetitions 95 percent hold in 54 or more, but for one simulation in fifty


def drawn(truth, repeat, covariance=None):
    noise = np.random.default_rng(repeat).standard_normal(len(truth))
    return truth + (noise if covariance is None else np.linalg.cholesky(covariance) @ noise)


@pytest.mark.parametrize("truth", [np.zeros(2), EQUAL, SPREAD, NEAR], ids=["two", "equal", "spread", "near"])
def test_the_set_holds_the_best_and_is_not_much_larger_than_the_usual_one(truth):
    held, sizes, usual = [], [], []
    for repeat in range(REPEATS):
        values = drawn(truth, repeat)
        found = best_set(values, np.ones(len(truth)))
        held.append(found[truth.argmin()])
        sizes.append(found.sum())
        usual.append((values - values.min() <= 1.96 * 2**0.5).sum())
        assert found[values.argmin()]
    assert np.mean(held) >= LEAST
    assert np.mean(sizes) <= 1.5 * np.mean(usual)


@pytest.mark.parametrize("truth", [np.zeros(2), EQUAL, SPREAD, NEAR], ids=["two", "equal", "spread", "near"])
def test_the_winners_interval_holds_although_it_was_chosen(truth):
    hybrid, naive, widths, over = [], [], [], []
    for repeat in range(REPEATS):
        values = drawn(truth, repeat)
        found = winner(values, np.ones(len(truth)), seed=repeat)
        mean = truth[found.place]
        hybrid.append(found.low <= mean <= found.high)
        naive.append(abs(values[found.place] - mean) <= 1.96)
        widths.append((found.high - found.low) / (2 * 1.96))
        over.append(found.median > mean)
        assert found.low <= found.median <= found.high
    assert np.mean(hybrid) >= LEAST
    assert np.mean(widths) <= 1.4
    if truth is EQUAL:
        assert np.mean(naive) < 0.8
        assert 0.3 < np.mean(over) < 0.7


def test_others_that_are_far_behind_do_not_widen_the_set():
    assert best_set([0.0, 3.2], [1.0] * 2).tolist() == [True, False]  # 2.3 errors of the difference apart
    assert best_set([0.0, 3.2, *[100.0] * 60], [1.0] * 62).tolist() == [True, *[False] * 61]
    around = [NormalDist(3.0).inv_cdf((place + 0.5) / 60) for place in range(60)]
    assert best_set([0.0, 3.2, *around], [1.0] * 62)[1]  # one of 62 is ahead by as much by chance


def test_three_values_by_hand():
    # 2 is in if no mean is below its own: 0 and 0.5 are both ahead. The nearest such means are all that of the three,
    # 5 / 6, at a squared distance of 0.694 + 0.111 + 1.361 = 2.167, beside 5.99 of two degrees of freedom.
    assert best_set([0.0, 0.5, 2.0], [1.0] * 3).all()
    assert not _refuted(np.array([2.0, 1.5]), np.array([[2.0, 1], [1, 2]]), 0.33)
    assert _refuted(np.array([2.0, 1.5]), np.array([[2.0, 1], [1, 2]]), 0.34)  # exp(-2.167 / 2) = 0.3385
    # 0 is ahead of 2, and 2 of 9: one bound, and nearer to it than to the other within (7 - 0.5 x 2) / (2 / 2**0.5)
    assert _refuted(np.array([2.4, -9.0]), np.array([[2.0, 1], [1, 2]]), 0.05)  # 2.4 / 2**0.5 > 1.645
    assert not _refuted(np.array([2.3, -9.0]), np.array([[2.0, 1], [1, 2]]), 0.05)


def test_the_conditional_test_against_scipy():
    random = np.random.default_rng(0)
    for size in (1, 2, 5, 12):
        for one in random.standard_normal((40, size, size + 2)):
            covariance, ahead = np.corrcoef(one).reshape(size, size), 3 * random.standard_normal(size)
            root = np.linalg.cholesky(covariance)
            found, (forces, _) = _forces(ahead, covariance), nnls(root.T, np.linalg.solve(root, ahead))
            assert found == pytest.approx(forces, abs=1e-8)
            means = ahead - covariance @ found  # the nearest of which none is positive: forces pull to bounds alone
            assert means.max() <= 1e-9
            assert found @ means == pytest.approx(0, abs=1e-9)
            assert found @ ahead == pytest.approx(np.sum(np.linalg.solve(root, ahead - means) ** 2))
    for freedom in (1, 2, 3, 8, 199):
        for value in (0.0, 0.01, 1.0, 50.0, 1e5):
            assert _chi_squared_tail(value, freedom) == pytest.approx(chi2.sf(value, freedom), abs=1e-14)


@pytest.mark.parametrize("gap", [0.0, 0.3], ids=["equal", "spread"])
@pytest.mark.parametrize("number", [2, 10, 40])
def test_the_best_one_is_refuted_in_at_most_five_percent(number, gap):
    covariance = np.ones((number - 1, number - 1)) + np.eye(number - 1)
    draws = np.random.default_rng(number).standard_normal((1500, number)) + gap * np.arange(number)
    wrong = np.mean([_refuted(values[0] - values[1:], covariance, 0.05) for values in draws])
    assert wrong <= 0.0615  # two standard errors more
    if not gap:
        assert wrong >= 0.0385  # and no less: it is exact where all are equal


def test_a_covariance_of_shared_noise_counts_differences_alone():
    covariance = 0.99 * np.ones((10, 10)) + 0.01 * np.eye(10)
    truth, held, sizes = np.arange(10) * 1.0, [], []
    for repeat in range(REPEATS):
        found = best_set(drawn(truth, repeat, covariance), covariance)
        held.append(found[0])
        sizes.append(found.sum())
    assert np.mean(held) == 1
    assert np.mean(sizes) < 1.1  # independent errors of size 1 would leave several in
    values = drawn(truth, 0, covariance)
    found = winner(values, covariance)
    assert found.place == 0
    assert found.low < 0 < found.high


@pytest.mark.parametrize(("level", "z"), [(0.8, 1.282), (0.95, 1.96), (0.999, 3.291)])
def test_of_one_value_and_of_far_ones_the_interval_is_the_usual_one(level, z):
    for values in ([3.0], [3.0, 50.0]):
        found = winner(values, [0.5] * len(values), level)
        assert found.place == 0
        assert found.median == pytest.approx(3.0, abs=1e-3)
        half = z * 0.5
        assert [found.low, found.high] == pytest.approx([3 - half, 3 + half], abs=0.05)


def test_equal_checkpoints_are_called_inverted_in_few_repetitions():
    wrong = []
    for repeat in range(REPEATS):
        pair = [drawn(np.zeros(10), 2 * repeat + side) for side in (0, 1)]
        wrong.append(bool(inverted_pairs(*pair, errors=(np.ones(10), np.ones(10)), seed=repeat)))
    assert np.mean(wrong) <= 0.05


def test_clear_inversions_are_found_with_who_is_better_by_which():
    first, second = [0.0, 5.0, 10.0], [10.0, 5.1, 20.0]
    assert inverted_pairs(first, second, errors=([0.3] * 3, [0.3] * 3)) == [(0, 1)]
    assert inverted_pairs(first, second, errors=([0.3] * 3, [9.0] * 3)) == []
    assert inverted_pairs(second, first, errors=([0.3] * 3, [0.3] * 3)) == [(1, 0)]


def test_values_without_errors_are_taken_as_exact_and_infinite_ones_left_out():
    assert best_set([2.0, 1.0, 1.0, np.inf, np.nan], [0.0] * 5).tolist() == [False, True, True, False, False]
    found = winner([2.0, 1.0, np.nan], [0.0] * 3)
    assert (found.place, found.low, found.high) == (1, 1.0, 1.0)
    assert inverted_pairs([1.0, 2.0, np.inf], [2.0, 1.0, 0.0], errors=([0.0] * 3, [0.0] * 3))[0] == (0, 1)


def test_the_same_seed_gives_the_same_and_bad_errors_are_refused():
    values = drawn(EQUAL, 1)
    assert winner(values, np.ones(20)) == winner(values, np.ones(20))
    with pytest.raises(ValueError, match="finite errors"):
        best_set([1.0, 2.0], [1.0])
    with pytest.raises(ValueError, match="finite errors"):
        winner([1.0, 2.0], [1.0, np.nan])
    with pytest.raises(ValueError, match="none of the values"):
        winner([np.nan, np.inf], [1.0, 1.0])
