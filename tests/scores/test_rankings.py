import pytest
from scipy.stats import kendalltau

from fedgen.scores import Inversion, inversions, kendall_tau


def test_tau_by_hand_and_against_scipy() -> None:
    assert kendall_tau([1, 2, 3], [10, 20, 30]) == 1
    assert kendall_tau([1, 2, 3], [3, 2, 1]) == -1
    assert kendall_tau([1, 2, 3, 4], [1, 3, 2, 4]) == pytest.approx(4 / 6)
    for b in ([1.0, 1.0, 2.0, 5.0, 4.0], [2.0, 1.0, 2.0, 2.0, 9.0]):
        a = [3.0, 1.0, 1.0, 2.0, 5.0]
        assert kendall_tau(a, b) == pytest.approx(float(kendalltau(a, b).statistic))


def test_inversions_name_the_pairs_and_whether_they_are_beyond_error() -> None:
    a, b = [1.0, 2.0, 3.0], [5.0, 9.0, 4.0]
    assert inversions(a, b) == [Inversion(0, 2, True), Inversion(1, 2, True)]
    wide = inversions(a, b, [0.1, 0.1, 0.1], [0.4, 0.4, 0.4])
    assert wide == [Inversion(0, 2, False), Inversion(1, 2, True)]
    assert not any(pair.beyond_error for pair in inversions(a, b, [1.0] * 3, [0.0] * 3))


def test_the_better_in_the_first_column_comes_first() -> None:
    assert inversions([2.0, 1.0], [1.0, 2.0]) == [Inversion(1, 0, True)]


def test_ties_are_no_inversions() -> None:
    assert inversions([1.0, 1.0], [1.0, 2.0]) == []


def test_columns_that_rank_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="same length"):
        kendall_tau([1.0, 2.0], [1.0])
    with pytest.raises(ValueError, match="equal values"):
        kendall_tau([1.0, 1.0], [1.0, 2.0])
    with pytest.raises(ValueError, match="NaN"):
        inversions([1.0, float("nan")], [1.0, 2.0])
