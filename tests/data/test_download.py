import hashlib
from pathlib import Path

import pytest

from fedgen.data import CIFAR10, CIFAR100, MNIST, FashionMNIST
from fedgen.io import regular_files as download
from fedgen.io.regular_files import fetch, fetch_any, missing


def test_without_a_network_every_download_ends_in_a_clear_error(tmp_path, offline, monkeypatch):
    monkeypatch.setattr(FashionMNIST, "more_folders", ())
    for data in (CIFAR10(tmp_path), CIFAR100(tmp_path), MNIST(tmp_path), FashionMNIST(tmp_path)):
        with pytest.raises(FileNotFoundError, match="downloading"):
            data.load()


def test_a_failed_download_leaves_no_empty_folder(tmp_path, offline):
    (tmp_path / "kept").mkdir()
    for folder in (tmp_path / "data" / "raw", tmp_path / "kept" / "raw"):
        with pytest.raises(OSError, match="service"):
            fetch("https://example.org/x/a.gz", folder, "0" * 32)
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")] == ["kept"]


def test_a_complete_file_is_not_fetched_again(tmp_path, offline):
    (tmp_path / "a.gz").write_bytes(b"content")
    md5 = hashlib.md5(b"content").hexdigest()
    assert fetch("https://example.org/x/a.gz", tmp_path, md5) == tmp_path / "a.gz"


def test_when_every_address_fails_the_error_has_each_ones_reason(tmp_path, monkeypatch):
    def fail(url, folder, md5):
        raise RuntimeError("wrong checksum") if "first" in url else OSError("no answer")

    monkeypatch.setattr(download, "fetch", fail)
    with pytest.raises(OSError, match="checksum"):
        fetch_any(["https://first/a", "https://second/a"], tmp_path, "0" * 32)


def test_the_error_names_every_folder_and_the_remedy():
    error = missing("toy", [Path("/a"), Path("/b")], "make it")
    assert str(error) == "toy was not found in /a, /b. To get it: make it"
