import numpy as np
import pytest

from fedgen.clients.partitions.clustered import fill_small

pytestmark = pytest.mark.filterwarnings("ignore:.*min_examples:UserWarning")


def test_a_small_client_takes_the_nearest_of_those_who_can_spare_them():
    # one label; client 0 around 0, client 1 around 10, client 2 (empty) at 4
    points = np.array([[0.0], [1.0], [3.0], [9.0], [10.0], [5.5]])
    owner = np.array([0, 0, 0, 1, 1, 1])
    centres = np.array([[[0.0], [10.0], [4.0]]])
    filled = fill_small(owner, np.zeros(6, dtype=int), points, centres, least=2)
    # 5.5 costs 1.5^2 - 4.5^2 = -18, 3 costs 1 - 9 = -8
    assert filled.tolist() == [0, 0, 2, 1, 1, 2]
    assert owner.tolist() == [0, 0, 0, 1, 1, 1]


def test_centres_are_those_of_the_examples_own_label():
    points = np.array([[0.0], [0.0], [50.0], [50.0]])
    labels = np.array([0, 0, 1, 1])
    centres = np.array([[[0.0], [1.0]], [[50.0], [90.0]]])
    assert fill_small(np.zeros(4, dtype=int), labels, points, centres, least=1).tolist() == [1, 0, 0, 0]


def test_nobody_gives_below_the_least_and_enough_is_left_for_all():
    random = np.random.default_rng(0)
    owner, labels = np.zeros(12, dtype=int), random.integers(0, 2, 12)
    owner[0] = 1
    filled = fill_small(owner, labels, random.standard_normal((12, 3)), random.standard_normal((2, 4, 3)), least=3)
    assert np.bincount(filled).tolist() == [3, 3, 3, 3]


def test_nothing_changes_where_nobody_is_small():
    owner = np.array([0, 1, 0, 1])
    assert np.array_equal(fill_small(owner, np.zeros(4, int), np.zeros((4, 1)), np.zeros((1, 2, 1)), 2), owner)
