"""Draws in proportion to size: their distribution, and the unbiased mean that they make."""

from collections import Counter
from itertools import product

import pytest
import torch

from fedgen.clients.samplers import SizeSampler, UniformSampler
from fedgen.federated import Mean

SIZES = [10, 30, 60]
ROUNDS = 4000


def drawn(size=2, rounds=ROUNDS, sizes=SIZES):
    return [SizeSampler().draw(sizes, size, seed=3, round=round) for round in range(rounds)]


@pytest.mark.slow
def test_every_pair_is_drawn_as_often_as_two_independent_draws_say():
    """Clients 0 and 2, in either order, have the probability 2 * 0.1 * 0.6; deviations within 4.5 standard errors."""
    found = Counter(map(tuple, drawn()))
    expected = Counter()
    for pair in product(range(3), repeat=2):
        expected[tuple(sorted(pair))] += SIZES[pair[0]] * SIZES[pair[1]] / 100**2
    assert found.keys() == expected.keys()
    for pair, chance in expected.items():
        error = (chance * (1 - chance) / ROUNDS) ** 0.5
        assert abs(found[pair] / ROUNDS - chance) < 4.5 * error, pair


def mean_of(cohort, values, weigh=lambda client: 1.0):
    """The mean of a round's clients, each with one update of the weight of all its draws."""
    rule = Mean()
    rule.start([torch.zeros(1, dtype=torch.float64)])
    for client, times in Counter(cohort).items():
        rule.add(client, [torch.tensor([values[client]], dtype=torch.float64)], times * weigh(client))
    return rule.result()[0].item()


@pytest.mark.slow
def test_the_mean_over_draws_is_that_of_all_clients_by_size():
    """0.1 * 1 + 0.3 * 5 + 0.6 * -2 = 0.4, by enumeration of all draws and in 4,000 rounds. Uniform draws weighted by
    size have another: weights are normalised in each cohort, to (1 + 15) / 4, (1 - 12) / 7 and (15 - 12) / 9."""
    values = [1.0, 5.0, -2.0]
    pairs = list(product(range(3), repeat=2))
    exact = sum(SIZES[a] * SIZES[b] / 100**2 * mean_of([a, b], values) for a, b in pairs)
    assert exact == pytest.approx(0.4, abs=1e-12)
    found = torch.tensor([mean_of(cohort, values) for cohort in drawn()])
    error = found.std() / ROUNDS**0.5
    assert abs(found.mean() - 0.4) < 4.5 * error

    uniform = [UniformSampler().draw(SIZES, 2, seed=3, round=round) for round in range(ROUNDS)]
    weighted = torch.tensor([mean_of(cohort, values, SIZES.__getitem__) for cohort in uniform])
    error = weighted.std() / ROUNDS**0.5
    assert abs(weighted.mean() - (16 / 4 - 11 / 7 + 3 / 9) / 3) < 4.5 * error
    assert abs(weighted.mean() - 0.4) > 10 * error


def test_cohorts_are_functions_of_seed_and_round():
    first = SizeSampler().draw(SIZES, 5, seed=1, round=5)
    torch.manual_seed(0)
    assert SizeSampler().draw(SIZES, 5, seed=1, round=5) == first == sorted(first)
    assert len(first) == 5
    assert SizeSampler().draw(SIZES, 20, seed=1, round=5) != SizeSampler().draw(SIZES, 20, seed=2, round=5)
    assert SizeSampler().draw(SIZES, 20, seed=1, round=5) != SizeSampler().draw(SIZES, 20, seed=1, round=6)
    assert all(type(client) is int for client in first)


def test_without_a_size_there_are_as_many_draws_as_clients():
    assert all(len(cohort) == 3 for cohort in drawn(size=None, rounds=10))
