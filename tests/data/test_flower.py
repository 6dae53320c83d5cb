"""Images of flwr-datasets' partitioners, and of stand-ins without that library."""

import datasets
import numpy as np
import pytest
import torch

from fedgen.clients import FederatedDataModule
from fedgen.clients.partitions import Natural
from fedgen.clients.turn import LazyTurn, Turn
from fedgen.data import FlowerDataset
from fedgen.data.formats import huggingface
from fedgen.data.lazy_examples import LazyExamples
from tests.data.flower import ByColumn, Columns, Deal
from tests.data.tables import levels, picture, table

TEXT = datasets.Value("string")


def writers(*names, values=(10, 20, 30, 40), labels=(0, 2, 1, 1)):
    return table(list(values), list(labels), writer=(TEXT, list(names)))


def given(partitioner, data):
    partitioner.dataset = data
    return partitioner


def test_each_partition_is_an_owner_and_its_natural_id_the_name():
    data = FlowerDataset({"train": given(ByColumn("writer"), writers("eve", "adam", "eve", "bob"))}, "letters")
    train = data.load()
    assert train.owner_names == ("adam", "bob", "eve")
    assert (levels(train), train.owners.tolist()) == ([20, 40, 10, 30], [0, 1, 2, 2])
    assert (train.labels.tolist(), train.classes) == ([2, 1, 0, 1], ("cat", "dog", "fox"))
    assert (train.name, train.inputs.shape) == ("letters/train", (4, 3, 4, 6))
    clients = FederatedDataModule(data, Natural(), held_out=0.0).clients
    assert [client.name for client in clients] == ["adam", "bob", "eve"]


def test_partitions_without_natural_ids_are_numbered_and_may_be_empty():
    partitioner = given(Deal(5), writers(*"abcd"))
    train = FlowerDataset({"train": partitioner}, "letters", size=8, channels=1).load()
    assert train.owner_names == tuple(f"partition {number}" for number in range(5))
    assert train.owners.tolist() == [0, 1, 2, 3]
    assert (train.name, train.inputs.shape) == ("letters-8/train", (4, 1, 8, 8))


def test_images_are_read_when_they_are_needed_and_are_those_in_memory(monkeypatch):
    decoded = []
    plain = huggingface.decode
    monkeypatch.setattr(huggingface, "decode", lambda *given: decoded.append(given) or plain(*given))
    rows = writers("eve", "adam", "eve", "bob")
    lazy, kept = (
        FlowerDataset({"train": given(ByColumn("writer"), rows)}, "letters", channels=1, in_memory=in_memory)
        for in_memory in (False, True)
    )
    modules = [FederatedDataModule(data, Natural(), held_out=0.0, seed=0) for data in (lazy, kept)]
    assert isinstance(modules[0].examples, LazyExamples)
    assert [client.name for client in modules[0].clients] == ["adam", "bob", "eve"]
    assert not decoded
    found, wanted = (
        next(kind(one.data, one.train, 2, 0, 2, one.name, 0).batches(1))
        for kind, one in zip((LazyTurn, Turn), (module.clients[2] for module in modules))
    )
    assert torch.equal(found[0], wanted[0])
    assert torch.equal(found[1], wanted[1])
    assert torch.equal(modules[0].examples.inputs[:], modules[1].examples.inputs)
    paths = writers("eve", "adam", values=(10, {"bytes": b"no image", "path": None}), labels=(0, 1))
    broken = FlowerDataset({"train": given(ByColumn("writer"), paths)}, "letters", in_memory=False).load()
    with pytest.raises(ValueError, match="letters"):
        _ = broken.inputs[:]


def test_the_test_split_has_the_classes_of_the_train_split():
    integers = datasets.Value("int64")
    train = given(Deal(2), table(labels=(7, 9, 7), kind=integers))
    test = given(Deal(1), table([50], [9], kind=integers))
    data = FlowerDataset({"train": train, "test": test}, "letters")
    assert (data.load("test").labels.tolist(), data.load("test").classes) == ([9], tuple("0123456789"))
    with pytest.raises(ValueError, match="letters"):
        FlowerDataset({"train": train}, "letters").load("test")


def test_what_cannot_be_read_is_refused(tmp_path):
    with pytest.raises(ValueError, match="partitioners"):
        FlowerDataset({"train": Deal(2)}, "letters").load()
    with pytest.raises(ValueError, match="partition"):
        FlowerDataset({"train": given(Columns(2), table())}, "letters").load()
    with pytest.raises(ValueError, match="partitions"):
        FlowerDataset({"train": given(Deal(2), table([], []))}, "letters").load()
    with pytest.raises(ValueError, match="partitioners"):
        FlowerDataset({"test": Deal(2)}, "letters")
    picture(3).save(tmp_path / "a.png")
    paths = datasets.Dataset.from_dict({"image": [str(tmp_path / "a.png")]}).cast_column("image", datasets.Image())
    with pytest.raises(ValueError, match="save_to_disk"):
        FlowerDataset({"train": given(Deal(1), paths)}, "letters").load()


def test_the_partitioners_of_flwr_datasets_are_read():
    partitioner = pytest.importorskip("flwr_datasets.partitioner")
    names = ["eve", "adam", "eve", "bob"] * 10
    rows = writers(*names, values=range(40), labels=[0, 1] * 20)
    natural = given(partitioner.NaturalIdPartitioner(partition_by="writer"), rows)
    train = FlowerDataset({"train": natural}, "letters").load()
    assert train.owner_names == ("adam", "bob", "eve")
    assert [train.owner_names[owner] for owner in train.owners] == [names[level] for level in levels(train)]
    dirichlet = partitioner.DirichletPartitioner(3, partition_by="label", alpha=1.0, min_partition_size=2)
    train = FlowerDataset({"train": given(dirichlet, rows)}, "letters").load()
    assert sorted(levels(train)) == list(range(40))
    assert train.owners.bincount().tolist() == [len(dirichlet.load_partition(number)) for number in range(3)]
    assert np.array_equal(train.labels, np.array(levels(train)) % 2)
