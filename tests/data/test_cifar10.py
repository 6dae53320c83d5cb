import pickle
import tarfile

import numpy as np
import pytest

from fedgen.data import CIFAR10, cifar10


def write_batches(folder, as_bytes=True, splits=("train", "test"), count=2, labels=None):
    """A tiny folder in the form of the published one: batch i holds the value 10 i + its number, label i by default."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [file for split in splits for file in cifar10.FILES[split]]
    for label, file in enumerate(files):
        data = np.repeat(10 * label + np.arange(count, dtype=np.uint8)[:, None], 3072, axis=1)
        data[:, 1024:2048] += 100  # the green plane follows the red one
        batch = {"batch_label": file, "labels": labels or [label] * count, "data": data, "filenames": ["a.png"] * count}
        if as_bytes:
            batch = {key.encode(): value for key, value in batch.items()}
        (folder / file).write_bytes(pickle.dumps(batch, protocol=2))


@pytest.fixture
def offline(monkeypatch):
    def fail(url, folder, md5):
        raise OSError("no network")

    monkeypatch.setattr(cifar10, "fetch", fail)


@pytest.mark.parametrize("as_bytes", [True, False])
@pytest.mark.parametrize("place", [".", "cifar-10-batches-py"])
def test_batches_are_read_from_the_root_or_its_folder(tmp_path, offline, place, as_bytes):
    write_batches(tmp_path / place, as_bytes)
    train, test = CIFAR10(tmp_path).load(), CIFAR10(tmp_path).load("test")
    assert train.inputs.shape == (10, 3, 32, 32)
    assert train.labels.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert train.inputs[3, :, 5, 7].tolist() == [11, 111, 11]
    assert (test.name, len(test), test.classes[5]) == ("cifar10/test", 2, "dog")


def test_the_archive_is_downloaded_and_unpacked(tmp_path, monkeypatch):
    def fetch(url, folder, md5):
        write_batches(tmp_path / "source" / cifar10.FOLDER)
        folder.mkdir()
        with tarfile.open(folder / "cifar.tar.gz", "w:gz") as archive:
            archive.add(tmp_path / "source" / cifar10.FOLDER, cifar10.FOLDER)
        return folder / "cifar.tar.gz"

    monkeypatch.setattr(cifar10, "fetch", fetch)
    assert len(CIFAR10(tmp_path / "root").load()) == 10


def test_missing_batches_name_the_folders_searched_and_the_way_to_get_them(tmp_path, offline):
    write_batches(tmp_path, splits=("train",))
    with pytest.raises(FileNotFoundError, match="no network") as caught:
        CIFAR10(tmp_path).load("test")
    message = str(caught.value)
    assert str(tmp_path / cifar10.FOLDER) in message
    assert f"tar xzf cifar-10-python.tar.gz -C {tmp_path}" in message


def test_a_batch_that_would_run_code_is_refused_and_does_not_run(tmp_path, offline):
    class Hostile:
        def __reduce__(self):
            return open, (str(tmp_path / "sentinel"), "w")

    write_batches(tmp_path)
    (tmp_path / "data_batch_3").write_bytes(pickle.dumps({"data": Hostile(), "labels": []}, protocol=2))
    with pytest.raises(ValueError, match=r"data_batch_3.*not allowed"):
        CIFAR10(tmp_path).load()
    assert not (tmp_path / "sentinel").exists()


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ([1, 2], "'data' must be uint8"),
        ({"data": np.zeros((2, 10), np.uint8), "labels": [0, 0]}, "'data' must be uint8"),
        ({"data": np.zeros((2, 3072)), "labels": [0, 0]}, "'data' must be uint8"),
        ({"data": np.zeros((2, 3072), np.uint8), "labels": [0]}, "'labels' must be 2 integers"),
        ({"data": np.zeros((2, 3072), np.uint8), "labels": [0, "1"]}, "'labels' must be 2 integers"),
    ],
)
def test_a_pickle_that_is_no_batch_is_named(tmp_path, offline, batch, message):
    write_batches(tmp_path)
    (tmp_path / "data_batch_1").write_bytes(pickle.dumps(batch, protocol=2))
    with pytest.raises(ValueError, match=f"data_batch_1.*{message}"):
        CIFAR10(tmp_path).load()
