import numpy as np
import pytest
import torch
from scipy.stats import kendalltau

from fedgen.scores import FrechetReference, Inversion, excess_inversions, inversions, kendall_tau
from fedgen.scores.rankings import best_set


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


def test_a_column_where_larger_is_better_ranks_the_other_way() -> None:
    fid, precision = [1.0, 2.0, 3.0], [0.9, 0.5, 0.7]
    assert inversions(fid, precision, higher_is_better=(False, True)) == [Inversion(1, 2, True)]
    assert inversions(precision, fid, higher_is_better=(True, False)) == [Inversion(2, 1, True)]
    assert inversions(precision, precision, higher_is_better=(True, True)) == []
    spread = [0.2, 0.2, 0.2]
    assert inversions(fid, precision, None, spread, (False, True)) == [Inversion(1, 2, False)]
    assert inversions(precision, [-v for v in precision]) == inversions(precision, precision, None, None, (False, True))


def test_excess_over_a_control_takes_columns_of_both_kinds() -> None:
    columns, control = ([1.0, 2.0, 3.0], [0.7, 0.8, 0.9]), ([1.0, 2.0, 3.0], [0.9, 0.7, 0.8])
    result = excess_inversions(columns, control, higher_is_better=(False, True))
    assert (len(result.found), len(result.control), result.excess) == (3, 1, 2)
    assert result.evidence == [Inversion(0, 1, True), Inversion(0, 2, True)]


def test_ties_are_no_inversions() -> None:
    assert inversions([1.0, 1.0], [1.0, 2.0]) == []


def test_columns_that_rank_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="length"):
        kendall_tau([1.0, 2.0], [1.0])
    with pytest.raises(ValueError, match="equal values"):
        kendall_tau([1.0, 1.0], [1.0, 2.0])
    with pytest.raises(ValueError, match="NaN"):
        inversions([1.0, float("nan")], [1.0, 2.0])


def test_excess_is_what_the_control_does_not_show() -> None:
    avg, pooled = [1.0, 2.0, 3.0], [9.0, 8.0, 7.0]  # all three pairs inverted
    control = [1.0, 2.0, 3.0], [5.0, 4.0, 6.0]  # the first pair alone
    result = excess_inversions((avg, pooled), control)
    assert (len(result.found), len(result.control), result.excess, result.excess_beyond_error) == (3, 1, 2, 2)
    assert result.evidence == [Inversion(0, 2, True), Inversion(1, 2, True)]


def test_excess_beyond_error_counts_on_both_sides() -> None:
    columns, control = ([1.0, 2.0, 3.0], [9.0, 8.0, 7.0]), ([2.0, 1.0, 3.0], [5.0, 6.0, 7.0])
    errors = ([0.5, 0.5, 0.5], [0.0, 0.0, 0.0])  # 1.96 * 0.71 lies between differences of 1 and 2
    result = excess_inversions(columns, control, errors, ([0.0] * 3, [0.0] * 3))
    assert (result.excess, result.excess_beyond_error) == (2, 0)
    assert result.evidence == [Inversion(0, 2, True)]
    quiet = excess_inversions(control, columns, ([0.0] * 3, [0.0] * 3), errors)
    assert (quiet.excess, quiet.excess_beyond_error, quiet.evidence) == (-2, 0, [])


def test_the_control_must_fit() -> None:
    pair = [1.0, 2.0], [2.0, 1.0]
    with pytest.raises(ValueError, match="length"):
        excess_inversions(pair, ([1.0, 2.0, 3.0], [1.0, 2.0, 3.0]))
    with pytest.raises(ValueError, match="neither"):
        excess_inversions(pair, pair, errors=([0.1, 0.1], [0.1, 0.1]))


def test_heterogeneous_clients_invert_more_than_iid_ones_of_their_sizes() -> None:
    """The toy: between var_x = 1 and 2 FD-avg rises and FD-all falls; over IID clients both fall."""
    random = torch.Generator().manual_seed(0)

    def draw(count: int, var_x: float) -> torch.Tensor:
        return torch.randn(count, 2, generator=random) * torch.tensor([var_x**0.5, 1.0])

    clients = [draw(4000, 1.0) + torch.tensor([x, 0.0]) for x in (-1.0, 1.0)]
    iid = list(torch.cat(clients)[torch.randperm(8000, generator=random)].split(4000))
    generators = [draw(4000, var_x) for var_x in (1.0, 1.2, 1.4, 1.6, 1.8, 2.0)]
    columns = []
    for parts in (clients, iid):
        reference = FrechetReference.from_features(parts)
        values = [reference.score(made, errors=False).values for made in generators]
        columns.append(([value["avg"] for value in values], [value["all"] for value in values]))
    result = excess_inversions(*columns)
    assert len(result.control) == 0
    assert result.excess >= 13  # of 15; neighbours may be within their noise


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_a_set_of_values_that_hang_together_is_found_too(rank):
    """Differences of which some are certain: the bounds that hold them have no one solution."""
    draws = np.random.default_rng(rank)
    for _ in range(20):
        shared = draws.normal(size=(8, rank))
        assert best_set(draws.normal(size=8).tolist(), shared @ shared.T).any()
