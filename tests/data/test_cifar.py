import pickle
import tarfile

import numpy as np
import pytest

from fedgen.data import CIFAR10
from fedgen.data.sets import pickled_images
from tests.data.published import write_cifar10


@pytest.mark.parametrize("place", [".", "cifar-10-batches-py"])
def test_batches_are_read_from_the_root_or_its_folder(tmp_path, offline, place):
    write_cifar10(tmp_path / place)
    assert len(CIFAR10(tmp_path).load()) == 10


def test_the_archive_is_downloaded_and_unpacked(tmp_path, monkeypatch):
    def fetch(url, folder, md5):
        write_cifar10(tmp_path / "source" / CIFAR10.folder)
        folder.mkdir()
        with tarfile.open(folder / "cifar.tar.gz", "w:gz") as archive:
            archive.add(tmp_path / "source" / CIFAR10.folder, CIFAR10.folder)
        return folder / "cifar.tar.gz"

    monkeypatch.setattr(pickled_images, "fetch", fetch)
    assert len(CIFAR10(tmp_path / "root").load()) == 10


def test_missing_batches_name_the_folders_searched_and_the_way_to_get_them(tmp_path, offline):
    write_cifar10(tmp_path, files=CIFAR10.train_files)
    with pytest.raises(FileNotFoundError, match="service") as caught:
        CIFAR10(tmp_path).load("test")
    message = str(caught.value)
    assert str(tmp_path / CIFAR10.folder) in message
    assert f"tar xzf cifar-10-python.tar.gz -C {tmp_path}" in message


def test_a_batch_that_would_run_code_is_refused_and_does_not_run(tmp_path, offline):
    class Hostile:
        def __reduce__(self):
            return open, (str(tmp_path / "sentinel"), "w")

    write_cifar10(tmp_path)
    (tmp_path / "data_batch_3").write_bytes(pickle.dumps({"data": Hostile(), "labels": []}, protocol=2))
    with pytest.raises(ValueError, match="data_batch_3"):
        CIFAR10(tmp_path).load()
    assert not (tmp_path / "sentinel").exists()


def test_a_batch_of_another_size_names_the_file_and_its_source(tmp_path, offline):
    write_cifar10(tmp_path)
    (tmp_path / "data_batch_1").write_bytes(pickle.dumps({"data": np.zeros((2, 10), np.uint8), "labels": [0, 0]}, 2))
    with pytest.raises(ValueError, match="data_batch_1"):
        CIFAR10(tmp_path).load()
