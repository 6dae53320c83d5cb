import gzip

import numpy as np
import pytest

from fedgen.data import FashionMNIST, fashion_mnist


def idx(array):
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.tobytes()


def write_split(folder, prefix="train", count=3, zipped=True):
    folder.mkdir(parents=True, exist_ok=True)
    images = np.arange(count * 784).reshape(count, 28, 28).astype(np.uint8)
    for name, array in (("images-idx3", images), ("labels-idx1", np.arange(count, dtype=np.uint8))):
        path = folder / f"{prefix}-{name}-ubyte"
        if zipped:
            path.with_name(path.name + ".gz").write_bytes(gzip.compress(idx(array)))
        else:
            path.write_bytes(idx(array))
    return images


@pytest.fixture
def debian(tmp_path, monkeypatch):
    monkeypatch.setattr(fashion_mnist, "DEBIAN_FOLDER", tmp_path / "debian")
    return tmp_path / "debian"


@pytest.fixture
def offline(monkeypatch):
    def fail(url, folder, md5):
        raise OSError("no network")

    monkeypatch.setattr(fashion_mnist, "fetch", fail)


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("place", [".", "FashionMNIST/raw"])
def test_images_are_read_from_the_root_or_torchvisions_place(tmp_path, debian, offline, zipped, place):
    images = write_split(tmp_path / place, zipped=zipped)
    examples = FashionMNIST(tmp_path).load()
    assert np.array_equal(examples.inputs[:, 0].numpy(), images)
    assert examples.labels.tolist() == [0, 1, 2]
    assert (examples.name, examples.classes[9]) == ("fashion_mnist/train", "Ankle boot")


def test_images_are_read_from_debians_package(tmp_path, debian, offline):
    write_split(debian, prefix="t10k", count=2)
    examples = FashionMNIST(tmp_path / "none", pad_to=32).load("test")
    assert examples.inputs.shape == (2, 1, 32, 32)
    assert examples.name == "fashion_mnist-32/test"


def test_a_download_puts_all_four_files_in_torchvisions_place(tmp_path, debian, monkeypatch):
    fetched = []

    def fetch(url, folder, md5):
        fetched.append((url.rpartition("/")[2], len(md5)))
        write_split(folder)

    monkeypatch.setattr(fashion_mnist, "fetch", fetch)
    assert len(FashionMNIST(tmp_path).load()) == 3
    assert sorted(name for name, _ in fetched) == [
        f"{split}-{kind}-ubyte.gz" for split in ("t10k", "train") for kind in ("images-idx3", "labels-idx1")
    ]
    assert {length for _, length in fetched} == {32}


def test_missing_files_name_the_folders_searched_and_the_way_to_get_them(tmp_path, debian, offline):
    with pytest.raises(FileNotFoundError, match="no network") as caught:
        FashionMNIST(tmp_path).load()
    message = str(caught.value)
    assert all(str(place) in message for place in (tmp_path, tmp_path / "FashionMNIST" / "raw", debian))
    assert "apt-get install dataset-fashion-mnist" in message


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
def test_damaged_files_are_named(tmp_path, debian, offline, content, message):
    write_split(tmp_path)
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(content)
    with pytest.raises(ValueError, match=f"train-images-idx3-ubyte.gz.*{message}"):
        FashionMNIST(tmp_path).load()
