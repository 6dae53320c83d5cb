import pickle

import numpy as np
import pytest

from fedgen.data import CIFAR100
from fedgen.data.sets.pickled_images import COARSE_CLASSES, COARSE_OF_FINE, FINE_CLASSES

# The mapping as the example labels of the published files have it, fine labels 0 to 99.
PUBLISHED = """
    4 1 14 8 0 6 7 7 18 3 3 14 9 18 7 11 3 9 7 11 6 11 5 10 7 6 13 15 3 15 0 11 1 10 12 14 16 9 11 5
    5 19 8 8 15 13 14 17 18 10 16 4 17 4 2 0 17 4 18 17 10 3 2 12 12 16 12 1 9 19 2 10 0 1 16 12 9 13 15 13
    16 19 2 4 6 19 5 5 8 19 18 1 2 15 6 0 17 8 14 13
"""


def write_file(path, fine, coarse=None, count=None):
    """A file in the form of the published ones (protocol 2, keys as bytes); image i has the value i in red."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = np.zeros((count or len(fine), 3072), np.uint8)
    data[:, :1024] = np.arange(len(data))[:, None]
    contents = {
        b"filenames": [b"apple_s_000022.png"] * len(data),
        b"batch_label": b"training batch 1 of 1",
        b"fine_labels": fine,
        b"coarse_labels": coarse or [COARSE_OF_FINE[label] for label in fine],
        b"data": data,
    }
    path.write_bytes(pickle.dumps(contents, protocol=2))


def test_the_group_of_each_class_is_the_published_one():
    assert list(COARSE_OF_FINE) == [int(label) for label in PUBLISHED.split()]
    assert (len(set(FINE_CLASSES)), len(COARSE_CLASSES)) == (100, 20)
    assert (FINE_CLASSES[0], FINE_CLASSES[99]) == ("apple", "worm")
    assert np.bincount(COARSE_OF_FINE).tolist() == [5] * 20


@pytest.mark.parametrize("place", [".", "cifar-100-python"])
def test_fine_labels_are_the_100_classes(tmp_path, offline, place):
    write_file(tmp_path / place / "train", [19, 0, 99])
    write_file(tmp_path / place / "test", [1])
    train, test = CIFAR100(tmp_path).load(), CIFAR100(tmp_path).load("test")
    assert train.inputs.shape == (3, 3, 32, 32)
    assert train.inputs[2, :, 5, 7].tolist() == [2, 0, 0]
    assert [train.classes[label] for label in train.labels] == ["cattle", "apple", "worm"]
    assert (train.name, test.name, len(test)) == ("cifar100/train", "cifar100/test", 1)


def test_coarse_labels_are_the_20_groups(tmp_path, offline):
    write_file(tmp_path / "train", [19, 0, 99])
    train = CIFAR100(tmp_path, labels="coarse").load()
    assert train.labels.tolist() == [11, 4, 13]
    assert train.classes[4] == "fruit_and_vegetables"
    assert train.name == "cifar100-coarse/train"


def test_unknown_labels_are_refused():
    with pytest.raises(ValueError, match="labels"):
        CIFAR100(labels="medium")


@pytest.mark.parametrize(
    ("fine", "coarse", "message"),
    [
        ([0, 100], [4, 4], "'fine_labels' run from 0 to 100, not 0 to 99"),
        ([0, 1], [4, 20], "'coarse_labels' run from 4 to 20, not 0 to 19"),
        ([0, 1], [4, 4], r"fine label 1 with coarse label 4 \(image 1\) is not in CIFAR-100"),
        ([0, 1, 2], [4, 1, 14], "'fine_labels' must be a list of 2 integers"),
    ],
)
def test_labels_that_cannot_be_are_named(tmp_path, offline, fine, coarse, message):
    write_file(tmp_path / "train", fine, coarse, count=2)
    with pytest.raises(ValueError, match=f"{tmp_path}/train: {message}"):
        CIFAR100(tmp_path).load()


def test_missing_files_name_the_archive(tmp_path, offline):
    with pytest.raises(FileNotFoundError, match=f"tar xzf cifar-100-python.tar.gz -C {tmp_path}"):
        CIFAR100(tmp_path).load()
