"""A client's own data that are read from disk."""

from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import Dataset

from fedgen.clients.turn import LazyTurn
from fedgen.data import ImageFolder
from fedgen.federated import FedAvgStrategy
from fedgen.flower.app.run_config import RunLabels
from fedgen.flower.client.local_data import LocalDataModule
from fedgen.flower.server.remote_data import RemoteClients
from fedgen.flower.wire.messages import Hello
from tests.data.test_image_folder import write_image
from tests.flower.connected import connection_to


@pytest.fixture
def pets(tmp_path):
    for number in range(6):
        write_image(tmp_path / "pets" / ("cat", "dog")[number % 2] / f"{number}.png", 40 * number)
    return tmp_path / "pets"


def turn_of(data, classes):
    own = LocalDataModule(data, batch_size=2, held_out=0.0, seed=0)
    own.enroll(3, classes)
    own.trainer = SimpleNamespace(strategy=FedAvgStrategy(2, seed=0), current_epoch=1)
    (turn,) = own.train_dataloader().turns
    return turn


def test_its_turn_is_that_of_the_same_images_in_memory(pets):
    kept, lazy = (turn_of(ImageFolder(pets, in_memory=in_memory), ("cat", "dog")) for in_memory in (True, False))
    assert isinstance(lazy, LazyTurn)
    for ours, theirs in zip(lazy.batches(4), kept.batches(4), strict=True):
        assert torch.equal(ours[0], theirs[0])
        assert torch.equal(ours[1], theirs[1])


class Pets(Dataset):
    """Labels that are positions among its own classes."""

    def __init__(self, *classes):
        self.classes, self.targets = classes, [number % len(classes) for number in range(6)]

    def __len__(self):
        return 6

    def __getitem__(self, position):
        return torch.full((1, 4, 4), position / 6), self.targets[position]


def test_labels_that_the_federation_numbers_otherwise_are_renumbered_in_the_kits_batches_and_else_refused(pets):
    classes = ("bird", "cat", "dog")
    kept, lazy = (turn_of(ImageFolder(pets, in_memory=in_memory), classes) for in_memory in (True, False))
    for ours, theirs in zip(lazy.batches(4), kept.batches(4), strict=True):
        assert torch.equal(ours[1], theirs[1])
        assert set(ours[1].tolist()) <= {1, 2}
    assert set(torch.cat([batch[1] for batch in turn_of(Pets("bird", "cat"), classes).batches(3)]).tolist()) == {0, 1}
    with pytest.raises(ValueError, match="label"):
        turn_of(Pets("cat", "dog"), classes)
    with pytest.raises(ValueError, match="federation"):
        turn_of(Pets("cat", "fox"), classes)


def test_labels_that_are_given_are_not_those_of_batches():
    own = LocalDataModule(Pets("cat", "dog"), held_out=0.0, labels=lambda position: ("cat", "dog")[position // 3])
    own.enroll(0, ("bird", "cat", "dog"))
    assert own.client.train_examples.labels.tolist() == [1, 1, 1, 2, 2, 2]


def test_integer_labels_are_in_order_of_size_whoever_has_the_largest():
    def hello(name, *classes):
        return Hello(name, 5, (1, 4, 4), classes)

    numbers = tuple(map(str, range(12)))
    assert RunLabels().names([hello("a", *numbers[:3]), hello("b", *numbers)]) == numbers
    folders = [hello("a", "1", "10", "2"), hello("b", "0")]
    assert RunLabels().names(folders) == ("0", "1", "10", "2")
    assert RunLabels().names([hello("a", "10"), hello("b", "2")]) == ("10", "2")


def test_data_without_images_have_no_shape():
    class Words(Pets):
        def __getitem__(self, position):
            return {"word": "cat", "length": 3}

    assert LocalDataModule(Words("cat")).image_shape == ()
    data = RemoteClients(_connection=connection_to(Hello("a", 5, (), ("cat",))))
    assert getattr(data, "image_shape", None) is None
