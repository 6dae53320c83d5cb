"""A client holds positions, and keeps some of its examples from training."""

import pytest
import torch

from fedgen.clients import Client
from fedgen.clients.client import hold_out
from fedgen.data import Examples


@pytest.mark.parametrize(
    ("fraction", "count", "expected"),
    [
        (0.2, 10, 2),
        (0.2, 9, 1),
        (0.2, 4, 0),
        (0.0, 10, 0),
        (0.29, 100, 29),  # 28.999999999999996 in floating point
        (0.58, 50, 29),
        (1 / 3, 9, 3),
        (0.99, 10, 9),
        (0.999999, 2, 1),
        (0.5, 1, 0),
    ],
)
def test_the_floor_of_the_fraction_is_held_out_and_at_least_one_trains(fraction, count, expected):
    train, held_out = hold_out(torch.arange(count), fraction, seed=0, client=0)
    assert len(held_out) == expected
    assert len(train) == count - expected >= 1


def test_the_two_parts_are_the_whole_and_keep_its_order():
    indices = torch.tensor([4, 9, 11, 30, 31, 77])
    train, held_out = hold_out(indices, 0.5, seed=0, client=2)
    assert sorted(train.tolist() + held_out.tolist()) == indices.tolist()
    assert train.tolist() == sorted(train.tolist())
    assert held_out.tolist() == sorted(held_out.tolist())


def test_the_split_is_a_function_of_seed_and_client():
    def split(seed, client):
        return hold_out(torch.arange(100), 0.3, seed, client)[1].tolist()

    assert split(0, 1) == split(0, 1)
    assert split(0, 1) != split(0, 2)
    assert split(0, 1) != split(1, 1)


def test_every_example_may_be_held_out():
    counts = torch.zeros(10)
    for client in range(1000):
        counts[hold_out(torch.arange(10), 0.3, 0, client)[1]] += 1
    assert (counts - 300).abs().max() < 5 * 14.5


def test_a_clients_examples_are_those_at_its_positions():
    data = Examples(torch.arange(8.0).view(4, 2), torch.tensor([0, 1, 0, 1]), "toy/train", ("a", "b"))
    client = Client("c", data, torch.tensor([0, 3]), torch.tensor([2]))
    assert client.train_examples.inputs.tolist() == [[0, 1], [6, 7]]
    assert client.train_examples.labels.tolist() == [0, 1]
    assert client.held_out_examples.inputs.tolist() == [[4, 5]]
    assert client.held_out_examples.name == "toy/train"
