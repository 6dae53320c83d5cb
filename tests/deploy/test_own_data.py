"""A client's own data that are read from disk."""

from types import SimpleNamespace

import pytest
import torch

from fedgen.clients.lazy_turn import LazyTurn
from fedgen.data import ImageFolder
from fedgen.deploy.own_data import OwnData
from fedgen.federated import FedAvgStrategy
from tests.data.test_image_folder import write_image


@pytest.fixture
def pets(tmp_path):
    for number in range(6):
        write_image(tmp_path / "pets" / ("cat", "dog")[number % 2] / f"{number}.png", 40 * number)
    return tmp_path / "pets"


def turn_of(data, classes):
    own = OwnData(data, batch_size=2, held_out=0.0, seed=0)
    own.enroll(3, classes)
    own.trainer = SimpleNamespace(strategy=FedAvgStrategy(2, seed=0), current_epoch=1)
    (turn,) = own.train_dataloader()
    return turn


def test_its_turn_is_that_of_the_same_images_in_memory(pets):
    kept, lazy = (turn_of(ImageFolder(pets, in_memory=in_memory), ("cat", "dog")) for in_memory in (True, False))
    assert isinstance(lazy, LazyTurn)
    for ours, theirs in zip(lazy.batches(4), kept.batches(4), strict=True):
        assert torch.equal(ours[0], theirs[0])
        assert torch.equal(ours[1], theirs[1])


def test_labels_that_the_federation_numbers_otherwise_are_refused(pets):
    with pytest.raises(ValueError, match="batches that are read from disk have the data's own numbers; use in_memory"):
        turn_of(ImageFolder(pets, in_memory=False), ("bird", "cat", "dog"))
