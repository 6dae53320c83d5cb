import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedgen.clients.partitions import ByClass, Dirichlet, Natural, SavedPartition, load_partition, save_partition
from fedgen.io.files import read_npz
from tests.clients.partitions.test_partition import labelled

EXAMPLES = labelled([index % 4 for index in range(41)])


def rewrite(path, **changes):
    arrays = read_npz(path)
    settings = json.loads(str(arrays["settings"])) | changes.pop("settings", {})
    np.savez(path, **(arrays | {"settings": json.dumps(settings)} | changes))


@pytest.fixture
def path(tmp_path):
    return save_partition(tmp_path / "clients.npz", Dirichlet(5, 1.0), EXAMPLES, seed=7)


def test_a_saved_partition_comes_back_whatever_the_seed(path):
    expected = Dirichlet(5, 1.0).assign(EXAMPLES, seed=7)
    partition = SavedPartition(path)
    assert all(np.array_equal(a, b) for a, b in zip(partition.assign(EXAMPLES, seed=99), expected))
    assert partition.names(EXAMPLES) == [f"client {client}" for client in range(5)]
    assert partition.settings() == {"class": "SavedPartition", "path": str(path)}


def test_the_file_tells_how_it_was_made(path):
    stored = load_partition(path)
    assert (stored.data, stored.num_examples, stored.seed) == ("toy/train", 41, 7)
    assert stored.partition == {"class": "Dirichlet", "num_clients": 5, "alpha": 1.0, "rotate": True}
    assert [len(client) for client in stored.assignment] == [8] * 5


def test_names_are_kept(tmp_path):
    examples = labelled([0, 1], ("cat", "dog"))
    path = save_partition(tmp_path / "clients.npz", ByClass(), examples, seed=0)
    assert SavedPartition(path).names(examples) == ["cat", "dog"]


def test_a_saved_partition_can_be_saved_again(path, tmp_path):
    again = save_partition(tmp_path / "again.npz", SavedPartition(path), EXAMPLES, seed=0)
    assert load_partition(again).assignment[0].tolist() == load_partition(path).assignment[0].tolist()


@pytest.mark.parametrize(
    "labels",
    [[index % 4 for index in range(40)], [(index + 1) % 4 for index in range(41)]],
    ids=["fewer", "other order"],
)
def test_other_data_are_refused(path, labels):
    message = f"assigns the 41 examples of toy/train, but got other labels: {len(labels)} examples of toy/train"
    with pytest.raises(ValueError, match=message):
        SavedPartition(path).assign(labelled(labels), seed=7)
    with pytest.raises(ValueError, match=message):
        SavedPartition(path).names(labelled(labels))


def test_a_newer_format_is_refused(path):
    rewrite(path, settings={"version": 3})
    with pytest.raises(ValueError, match="upgrade"):
        load_partition(path)


def by_writers(*owners, names=("ann", "bob", "cleo")):
    return replace(labelled([0, 1] * 2), owners=torch.tensor(owners), owner_names=names)


def test_other_owners_are_refused_though_the_labels_are_the_same(tmp_path):
    path = save_partition(tmp_path / "clients.npz", Natural(), by_writers(0, 1, 1, 0), seed=0)
    partition = SavedPartition(path)
    assert [own.tolist() for own in partition.assign(by_writers(0, 1, 1, 0), seed=1)] == [[0, 3], [1, 2]]
    for other in (by_writers(0, 1, 0, 1), by_writers(0, 2, 2, 0), labelled([0, 1] * 2)):
        with pytest.raises(ValueError, match="owners"):
            partition.assign(other, seed=0)
    without = save_partition(tmp_path / "without.npz", ByClass(), labelled([0, 1] * 2), seed=0)
    with pytest.raises(ValueError, match="owners"):
        SavedPartition(without).names(by_writers(0, 1, 1, 0))


def test_owners_may_be_numbered_otherwise(tmp_path):
    path = save_partition(tmp_path / "clients.npz", Natural(), by_writers(0, 1, 1, 0), seed=0)
    same = by_writers(2, 0, 0, 2, names=("bob", "dan", "ann"))
    assert SavedPartition(path).names(same) == ["ann", "bob"]


def test_a_file_of_format_1_does_not_say_whose_the_examples_are(tmp_path):
    examples = by_writers(0, 1, 1, 0)
    path = save_partition(tmp_path / "clients.npz", Natural(), examples, seed=0)
    arrays = read_npz(path)
    settings = json.loads(str(arrays["settings"])) | {"version": 1}
    del settings["owners_fingerprint"]
    np.savez(path, **(arrays | {"settings": json.dumps(settings)}))
    assert load_partition(path).owners_fingerprint is None
    assert SavedPartition(path).names(by_writers(0, 1, 0, 1)) == ["ann", "bob"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"indices": np.arange(3)}, "is damaged: offsets end at 40 for 3 positions"),
        ({"indices": np.zeros(40, dtype=int)}, "client 0 has example 0 more than once"),
        ({"settings": {"num_examples": 20}}, "outside the 20 examples"),
        ({"settings": {"names": ["a"]}}, "got 1 for 5 clients"),
    ],
)
def test_damaged_files_are_refused(path, changes, message):
    rewrite(path, **changes)
    with pytest.raises(ValueError, match=message):
        load_partition(path)


def test_other_files_are_refused(tmp_path):
    np.savez(tmp_path / "other.npz", mu=np.zeros(3))
    with pytest.raises(ValueError, match="partition"):
        load_partition(tmp_path / "other.npz")
    (tmp_path / "text.npz").write_text("hello")
    with pytest.raises(ValueError, match="text"):
        load_partition(tmp_path / "text.npz")
    with pytest.raises(FileNotFoundError, match="partition"):
        load_partition(tmp_path / "none.npz")
