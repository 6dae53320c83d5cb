import hashlib
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from fedgen.data import CIFAR10, FashionMNIST, fashion_mnist
from fedgen.data.download import fetch, missing


@pytest.fixture
def unplugged(monkeypatch):
    def fail(*args, **options):
        raise urllib.error.URLError("Name or service not known")

    monkeypatch.setattr(urllib.request, "urlopen", fail)


def test_without_a_network_every_download_ends_in_a_clear_error(tmp_path, unplugged, monkeypatch):
    monkeypatch.setattr(fashion_mnist, "DEBIAN_FOLDER", tmp_path / "none")
    for data in (CIFAR10(tmp_path), FashionMNIST(tmp_path)):
        with pytest.raises(FileNotFoundError, match=r"downloading it failed .*Name or service not known.* To get it: "):
            data.load()


def test_a_complete_file_is_not_fetched_again(tmp_path, unplugged):
    (tmp_path / "a.gz").write_bytes(b"content")
    md5 = hashlib.md5(b"content").hexdigest()
    assert fetch("https://example.org/x/a.gz", tmp_path, md5) == tmp_path / "a.gz"


def test_the_error_names_every_folder_and_the_remedy():
    error = missing("toy", [Path("/a"), Path("/b")], "make it")
    assert str(error) == "toy was not found in /a, /b. To get it: make it"
