import gzip

import numpy as np
import pytest

from fedgen.data import MNIST
from fedgen.data.sets.small_images import read_idx
from fedgen.io import regular_files as download
from tests.data.published import idx, write_idx_split


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("place", [".", "MNIST/raw"])
def test_images_are_read_from_the_root_or_torchvisions_place(tmp_path, offline, zipped, place):
    images = write_idx_split(tmp_path / place, zipped=zipped)
    examples = MNIST(tmp_path).load()
    assert np.array_equal(examples.inputs[:, 0].numpy(), images)
    assert examples.labels.tolist() == [0, 1, 2]


def test_a_download_puts_all_four_files_in_torchvisions_place(tmp_path, monkeypatch):
    fetched = []

    def fetch(url, folder, md5):
        assert folder == tmp_path / "MNIST" / "raw"
        fetched.append((url.rpartition("/")[2], len(md5)))
        write_idx_split(folder)

    monkeypatch.setattr(download, "fetch", fetch)
    assert len(MNIST(tmp_path).load()) == 3
    assert sorted(name for name, _ in fetched) == [
        f"{split}-{kind}-ubyte.gz" for split in ("t10k", "train") for kind in ("images-idx3", "labels-idx1")
    ]
    assert {length for _, length in fetched} == {32}


def test_missing_files_name_the_folders_searched_and_the_way_to_get_them(tmp_path, offline):
    with pytest.raises(FileNotFoundError, match="service") as caught:
        MNIST(tmp_path).load()
    message = str(caught.value)
    assert all(f"{place}, " in message or f"{place};" in message for place in (tmp_path, tmp_path / "MNIST" / "raw"))
    assert f"into {tmp_path}" in message


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not an idx file"),
        (gzip.compress(idx(np.zeros((2, 28, 28), np.uint8)))[:-9], "cut short or damaged"),
        (b"plain text", "cut short or damaged"),
        (gzip.compress(b"no idx file"), "not an idx file"),
        (gzip.compress(idx(np.zeros((3, 28, 28), np.uint8))[:-1]), r"holds 2351 values, but its header says \(3, 28"),
    ],
    ids=["empty", "cut short", "no gzip", "no idx", "one value short"],
)
def test_damaged_files_are_named(tmp_path, offline, content, message):
    write_idx_split(tmp_path)
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(content)
    with pytest.raises(ValueError, match=f"train-images-idx3-ubyte.gz.*{message}"):
        MNIST(tmp_path).load()


def test_images_and_labels_of_different_number_are_refused(tmp_path, offline):
    write_idx_split(tmp_path, count=3, labels=[0, 1])
    with pytest.raises(ValueError, match="labels"):
        MNIST(tmp_path).load()


def test_a_label_out_of_range_is_refused(tmp_path, offline):
    write_idx_split(tmp_path, labels=[0, 10, 1])
    with pytest.raises(ValueError, match="labels"):
        MNIST(tmp_path).load()


def test_an_array_that_was_read_can_be_written(tmp_path):
    (tmp_path / "a").write_bytes(idx(np.array([[1, 2]], np.uint8)))
    array = read_idx(tmp_path / "a")
    array += 1
    assert array.tolist() == [[2, 3]]
