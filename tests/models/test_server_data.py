"""A server's own images: batches that follow from (seed, round), and the shape of a data module."""

import pytest
import torch

from fedgen.data import Examples
from fedgen.images import from_uint8
from fedgen.models.distributed_fine_tuning import ServerData
from fedgen.models.label_frequencies import LabelFrequencies


def examples(count=5):
    inputs = torch.arange(count, dtype=torch.uint8).view(-1, 1, 1, 1)
    return Examples(inputs, torch.arange(count) % 2, "numbers", ("even", "odd"))


def seen(data, round, iterations=5):
    return [batch[0].flatten().tolist() for batch in data.batches(round, iterations)]


def test_batches_follow_from_seed_and_round_and_show_every_image_equally_often():
    data = ServerData(examples(), 2, seed=0)
    assert seen(data, 0) == seen(ServerData(examples(), 2, seed=0), 0)
    assert seen(data, 0) != seen(data, 1)
    assert seen(data, 0) != seen(ServerData(examples(), 2, seed=1), 0)
    flat = [value for batch in seen(data, 3) for value in batch]
    assert sorted(flat) == sorted(2 * from_uint8(examples().inputs).flatten().tolist())
    assert seen(data, 3, iterations=2) == seen(data, 3)[:2]


def test_it_looks_like_a_data_module_of_one_owner():
    data = ServerData(examples(), 2, seed=0)
    assert data.image_shape == (1, 1, 1)
    assert data.clients == [data]
    assert len(data.train) == 5
    frequencies = LabelFrequencies(2)
    frequencies.fit(data)
    assert frequencies.counts.tolist() == [3, 2]


def test_some_of_its_images():
    data = ServerData(examples(), 2, seed=0)
    assert len(set(data.some(3).flatten().tolist())) == 3
    assert torch.equal(data.some(3), data.some(3))
    assert len(data.some(100)) == 5


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match="data"):
        ServerData(examples(0), 2, seed=0)
    with pytest.raises(ValueError, match="batch"):
        ServerData(examples(), 0, seed=0)
