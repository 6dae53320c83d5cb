import numpy as np
import pytest

from fedgen.data import MNIST
from fedgen.io import regular_files as download
from tests.data.published import write_idx_split


def test_both_splits_have_ten_digits_as_classes(tmp_path, offline):
    write_idx_split(tmp_path / "MNIST" / "raw", count=4, labels=[9, 0, 0, 3])
    write_idx_split(tmp_path / "MNIST" / "raw", prefix="t10k", count=2, zipped=False)
    train, test = MNIST(tmp_path).load(), MNIST(tmp_path).load("test")
    assert train.label_counts().tolist() == [2, 0, 0, 1, 0, 0, 0, 0, 0, 1]
    assert (train.name, test.name, len(test)) == ("mnist/train", "mnist/test", 2)
    assert train.classes == tuple("0123456789")


def test_padding_adds_black_borders_and_shows_in_the_name(tmp_path, offline):
    images = write_idx_split(tmp_path)
    padded = MNIST(tmp_path, pad_to=32).load()
    assert np.array_equal(padded.inputs[:, 0, 2:-2, 2:-2].numpy(), images)
    assert int(padded.inputs.sum()) == int(images.sum())
    assert padded.name == "mnist-32/train"


def test_the_second_mirror_is_asked_when_the_first_fails(tmp_path, monkeypatch):
    asked = []

    def fetch(url, folder, md5):
        asked.append(url.split("/")[2])
        if len(asked) == 1:
            raise OSError("server is down")
        write_idx_split(folder)

    monkeypatch.setattr(download, "fetch", fetch)
    assert len(MNIST(tmp_path).load()) == 3
    assert asked[0] != asked[1]
    assert len(asked) == 5


def test_missing_files_point_to_the_set_that_needs_none(tmp_path, offline):
    with pytest.raises(FileNotFoundError, match="MNIST5k"):
        MNIST(tmp_path).load()
