import time

import numpy as np
import pytest

from fedgen.clients.partitions import Dirichlet, by_label
from fedgen.clients.partitions.by_label import draw_labels, take_examples, take_turns, until_exhausted
from tests.clients.partitions.test_partition import labelled


def balanced(count, classes=10):
    return labelled([index % classes for index in range(count)])


def label_counts(examples, clients):
    return np.array([np.bincount(examples.labels[client], minlength=len(examples.classes)) for client in clients])


def draw_one_by_one(shares, counts, turns, random, repeats):
    """The rule as it is stated, in a plain loop over turns, for many repeats [repeats, turns] at once."""
    remaining, drawn = np.tile(counts, (repeats, 1)), []
    for client in turns:
        weights = shares[client] * (remaining > 0)
        weights = np.where(weights.sum(1, keepdims=True) > 0, weights, remaining)
        below = weights.cumsum(1) / weights.sum(1, keepdims=True) <= random.random((repeats, 1))
        drawn.append(below.sum(1))
        remaining[np.arange(repeats), drawn[-1]] -= 1
    return np.stack(drawn, 1)


def test_clients_have_equal_sizes_and_the_rest_belongs_to_none():
    clients = Dirichlet(7, alpha=1.0).assign(balanced(100), seed=0)
    assert [len(client) for client in clients] == [14] * 7


@pytest.mark.parametrize(
    ("alpha", "largest", "present"), [(1, 0.64, 5.3), (10, 0.30, 9.6), (100, 0.16, 10), (1000, 0.14, 10)]
)
def test_label_shares_agree_with_the_released_code(alpha, largest, present):
    """Means over clients measured with a port of google-research/federated on 60,000 images of ten classes."""
    examples = balanced(60_000)
    counts = label_counts(examples, Dirichlet(300, alpha).assign(examples, seed=0))
    assert abs((counts.max(axis=1) / 200).mean() - largest) < 0.03
    assert abs((counts > 0).sum(axis=1).mean() - present) < 0.3


def test_60000_images_are_dealt_to_300_clients_in_seconds():
    examples = balanced(60_000)
    start = time.perf_counter()
    Dirichlet(300, alpha=0.1).assign(examples, seed=0)
    assert time.perf_counter() - start < 5


@pytest.mark.parametrize("rotate", [True, False])
@pytest.mark.parametrize("alpha", [1e-6, 0.01])
def test_tiny_alphas_work_and_use_up_every_image(alpha, rotate):
    examples = balanced(2000)
    clients = Dirichlet(20, alpha, rotate).assign(examples, seed=0)
    assert sorted(np.concatenate(clients)) == list(range(2000))


@pytest.mark.parametrize(("rotate", "shares"), [(True, [0.25, 0.5, 0.25]), (False, [0.5, 0.0, 0.5])])
def test_two_clients_at_alpha_001_want_one_class_each(rotate, shares):
    """q ~ Beta(0.005, 0.005) lies within 0.01 of 0 or 1 in 97.7 % of draws, so a client wants a single class.

    Half the time both want the same one: taking turns they halve it, and then the other; filled one after the other the
    second is left with what the first did not want.
    """
    examples, repeats = balanced(200, classes=2), 400
    parts = [Dirichlet(2, 0.01, rotate).assign(examples, seed)[0] for seed in range(repeats)]
    found = np.array([examples.labels[part].float().mean() for part in parts])
    near = [(np.abs(found - share) < 0.05).mean() for share in (0, 0.5, 1)]
    # Standard errors are at most sqrt(0.25 / 400) = 0.025; a few draws lie between.
    assert np.abs(np.array(near) - shares).max() < 0.09
    assert sum(near) > 0.93


def test_concentrations_follow_the_label_frequencies():
    examples = labelled([0] * 9000 + [1] * 1000)
    shares = label_counts(examples, Dirichlet(500, alpha=2.0).assign(examples, seed=0))[:, 1] / 20
    # q ~ Beta(1.8, 0.2): mean 0.1, variance 0.1 * 0.9 / 3 = 0.03; drawing 20 images adds 0.06 / 20.
    assert abs(shares.mean() - 0.1) < 1e-9
    assert abs(shares.var() - 0.033) < 0.01


def test_a_class_without_images_is_left_out():
    examples = labelled([0, 2] * 10)
    counts = label_counts(examples, Dirichlet(2, alpha=1.0).assign(examples, seed=0))
    assert counts[:, 1].tolist() == [0, 0]
    assert counts.sum() == 20


def test_rotation_takes_turns_in_a_fresh_order_each_pass():
    random = np.random.default_rng(0)
    passes = take_turns(4, 50, True, random).reshape(50, 4)
    assert all(sorted(turn) == [0, 1, 2, 3] for turn in passes.tolist())
    assert len({tuple(turn) for turn in passes.tolist()}) > 10
    assert sorted(take_turns(2, 3, False, random).reshape(2, 3).tolist()) == [[0] * 3, [1] * 3]


def test_clients_filled_one_after_the_other_see_fewer_labels():
    """The first ones take all they want; with rotation every client meets the labels that ran out."""
    examples = balanced(6000)
    present = [
        (label_counts(examples, Dirichlet(30, 0.01, rotate).assign(examples, seed=0)) > 0).sum(axis=1).mean()
        for rotate in (True, False)
    ]
    assert present[1] < 2 < present[0]


@pytest.mark.slow
@pytest.mark.parametrize("block", [1, 4, 1024])
def test_draws_in_blocks_have_the_distribution_of_draws_one_by_one(monkeypatch, block):
    monkeypatch.setattr(by_label, "BLOCK", block)
    shares = np.array([[0.7, 0.3, 0.0], [0.2, 0.2, 0.6]])
    counts, turns = np.array([2, 2, 4]), np.array([0, 1, 0, 1, 1, 0])
    repeats = 4000
    random = np.random.default_rng(1)
    ours = np.stack([draw_labels(shares, counts, turns, random) for _ in range(repeats)])
    plain = draw_one_by_one(shares, counts, turns, np.random.default_rng(2), repeats)
    tables = [np.stack([(drawn == label).mean(axis=0) for label in range(3)]) for drawn in (ours, plain)]
    # Standard error of a difference: sqrt(2 * 0.25 / 4000) = 0.011.
    assert np.abs(tables[0] - tables[1]).max() < 0.045


def test_no_label_is_drawn_more_often_than_it_is_there():
    shares, counts = np.array([[1.0, 0.0]]), np.array([3, 5])
    drawn = draw_labels(shares, counts, np.zeros(8, dtype=int), np.random.default_rng(0))
    # Its own label first; once that is used up, what remains.
    assert drawn.tolist() == [0, 0, 0, 1, 1, 1, 1, 1]


def test_picks_count_until_the_first_label_runs_out():
    assert until_exhausted(np.array([0, 1, 0, 1, 0]), np.array([3, 5])) == 5
    assert until_exhausted(np.array([0, 1, 0, 1, 0]), np.array([3, 2])) == 4
    assert until_exhausted(np.array([0, 1, 0]), np.array([1, 0, 9])) == 1
    assert until_exhausted(np.array([0, 1]), np.array([9, 9])) == 2


def test_labels_of_weight_zero_are_never_sampled():
    shares, counts = np.array([[0.0, 1.0, 0.0, 3.0, 0.0]]), np.full(5, 2001)
    picks = draw_labels(shares, counts, np.zeros(2000, dtype=int), np.random.default_rng(0))
    assert set(picks) == {1, 3}
    assert abs((picks == 3).mean() - 0.75) < 0.05


def test_images_of_a_label_are_taken_at_random():
    """The released code takes them in reverse order of the data set."""
    labels = np.zeros(100, dtype=int)
    turns, drawn = np.repeat([0, 1], 50), np.zeros(100, dtype=int)
    first, second = take_examples(labels, turns, drawn, 2, np.random.default_rng(0))
    assert sorted([*first, *second]) == list(range(100))
    assert 30 < first.mean() < 70


def test_each_client_gets_the_examples_of_its_own_draws():
    """The i-th draw of a label takes the i-th of its examples in random order, whoever draws; one client draws none."""
    random = np.random.default_rng(1)
    labels, turns, drawn = np.repeat([0, 1], 30), random.choice([0, 1, 3], 40), random.integers(2, size=40)
    order = np.random.default_rng(0).permutation(60)
    pools = [iter(order[labels[order] == label]) for label in (0, 1)]
    expected = [[], [], [], []]
    for client, label in zip(turns, drawn):
        expected[client].append(next(pools[label]))
    found = take_examples(labels, turns, drawn, 4, np.random.default_rng(0))
    assert [part.tolist() for part in found] == expected
    assert expected[2] == []


@pytest.mark.parametrize("alpha", [0, -1.0, float("inf"), float("nan")])
def test_an_alpha_that_is_not_positive_and_finite_is_refused(alpha):
    with pytest.raises(ValueError, match="finite"):
        Dirichlet(3, alpha)
