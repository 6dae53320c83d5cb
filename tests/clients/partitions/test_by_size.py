import numpy as np
import pytest

from fedgen.clients.partitions import BySize
from fedgen.clients.partitions.partition import apportion
from tests.clients.partitions.test_partition import labelled


def sizes(rule, count, seed=0):
    return np.array([len(client) for client in rule.assign(labelled([0] * count), seed)])


def test_shares_are_rounded_to_the_total_by_largest_remainders():
    assert apportion(16, np.array([1.0, 2.0, 5.0])).tolist() == [2, 4, 10]
    # 0.9, 1.8, 6.3: floors 0, 1, 6 leave two, for the remainders 0.9 and 0.8.
    assert apportion(9, np.array([1.0, 2.0, 7.0])).tolist() == [1, 2, 6]
    assert apportion(11, np.ones(3)).tolist() == [4, 4, 3]
    assert apportion(0, np.ones(2)).tolist() == [0, 0]


def test_all_examples_are_dealt_and_no_client_is_below_the_minimum():
    clients = BySize(20, spread=3.0, min_examples=7).assign(labelled([0] * 500), seed=0)
    assert sorted(np.concatenate(clients)) == list(range(500))
    assert min(map(len, clients)) == 7


def test_logarithms_of_sizes_are_normal_with_the_spread():
    logarithms = np.log(sizes(BySize(1000, spread=0.8), 200_000))
    # The standard error of a standard deviation is 0.8 / sqrt(2000) = 0.018.
    assert abs(logarithms.std() - 0.8) < 0.06
    centred = (logarithms - logarithms.mean()) / logarithms.std()
    assert abs((centred**3).mean()) < 0.3
    assert abs((centred > 1).mean() - 0.159) < 0.04


def test_no_spread_gives_equal_sizes_and_the_widest_one_client_nearly_all():
    assert sizes(BySize(4, spread=0.0), 103).tolist() == [26, 26, 26, 25]
    assert sorted(sizes(BySize(4, spread=1e6), 103)) == [1, 1, 1, 100]


def test_labels_are_those_of_the_whole():
    examples = labelled([0] * 15_000 + [1] * 5000)
    shares = [examples.labels[part].float().mean() for part in BySize(4, spread=0.2).assign(examples, seed=0)]
    # The standard error of a share is about sqrt(0.25 * 0.75 / 4000) = 0.007.
    assert all(abs(share - 0.25) < 0.03 for share in shares)


def test_more_than_there_is_for_every_client_is_refused():
    with pytest.raises(ValueError, match="min_examples"):
        BySize(3, min_examples=4).assign(labelled([0] * 11), seed=0)
    assert sizes(BySize(3, min_examples=4), 12).tolist() == [4, 4, 4]


@pytest.mark.parametrize("spread", [-0.1, float("inf"), float("nan")])
def test_a_spread_that_is_negative_or_not_finite_is_refused(spread):
    with pytest.raises(ValueError, match="spread"):
        BySize(3, spread)
