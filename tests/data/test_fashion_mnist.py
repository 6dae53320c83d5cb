import pytest

from fedgen.data import FashionMNIST
from tests.data.published import write_idx_split


@pytest.fixture
def debian(tmp_path, monkeypatch):
    monkeypatch.setattr(FashionMNIST, "more_folders", (tmp_path / "debian",))
    return tmp_path / "debian"


def test_images_are_read_from_torchvisions_place_with_their_classes(tmp_path, debian, offline):
    write_idx_split(tmp_path / "FashionMNIST" / "raw")
    examples = FashionMNIST(tmp_path).load()
    assert examples.inputs.shape == (3, 1, 28, 28)
    assert (examples.name, examples.classes[9]) == ("fashion_mnist/train", "Ankle boot")


def test_images_are_read_from_debians_package(tmp_path, debian, offline):
    write_idx_split(debian, prefix="t10k", count=2)
    examples = FashionMNIST(tmp_path / "none", pad_to=32).load("test")
    assert examples.inputs.shape == (2, 1, 32, 32)
    assert examples.name == "fashion_mnist-32/test"


def test_missing_files_name_debians_package(tmp_path, debian, offline):
    with pytest.raises(FileNotFoundError, match="install") as caught:
        FashionMNIST(tmp_path).load()
    assert str(debian) in str(caught.value)
