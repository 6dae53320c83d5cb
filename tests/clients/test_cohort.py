"""Which clients take part in a round."""

from collections import Counter

import pytest
import torch

from fedgen.clients import sample_cohort


def test_without_a_size_everybody_takes_part():
    assert sample_cohort(4, None, seed=0, round=7) == [0, 1, 2, 3]


def test_a_cohort_of_everybody_is_everybody():
    assert sample_cohort(4, 4, seed=0, round=7) == [0, 1, 2, 3]


def test_a_cohort_is_sorted_and_without_repeats():
    for round in range(50):
        cohort = sample_cohort(20, 5, seed=0, round=round)
        assert cohort == sorted(set(cohort))
        assert len(cohort) == 5
        assert set(cohort) <= set(range(20))


def test_a_cohort_is_plain_integers():
    assert all(type(client) is int for client in sample_cohort(10, 3, seed=0, round=0))


def test_every_client_and_every_pair_is_drawn_equally_often():
    """In 4,000 rounds of 2 of 5: a client in 1,600 +- 31 rounds, a pair in 400 +- 19."""
    pairs = Counter(tuple(sample_cohort(5, 2, seed=3, round=round)) for round in range(4000))
    clients = Counter(client for pair in pairs.elements() for client in pair)
    assert max(abs(clients[client] - 1600) for client in range(5)) < 4.5 * 31
    assert max(abs(count - 400) for count in pairs.values()) < 4.5 * 19
    assert len(pairs) == 10


def test_a_cohort_is_a_function_of_seed_and_round_whatever_is_drawn_in_between():
    first = sample_cohort(100, 10, seed=1, round=5)
    torch.manual_seed(0)
    sample_cohort(100, 10, seed=1, round=6)
    assert sample_cohort(100, 10, seed=1, round=5) == first
    assert sample_cohort(100, 10, seed=1, round=6) != first
    assert sample_cohort(100, 10, seed=2, round=5) != first


@pytest.mark.parametrize("size", [0, 4, -1])
def test_a_size_out_of_range_is_named_with_the_number_of_clients(size):
    with pytest.raises(ValueError, match=f"cohort_size={size}, but there are 3 clients; choose 1 to 3"):
        sample_cohort(3, size, seed=0, round=0)
