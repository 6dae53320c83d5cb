import numpy as np
import pytest
import torch

from fedgen.data import MedMNIST


def write(path, size=28, channels=3, classes=4, findings=1, **changes):
    """A small file in the published form: train, val and test images uint8, labels [N, 1] (uint8, as published)."""
    draws = np.random.default_rng(0)
    arrays = {}
    for split, count in (("train", 8), ("val", 3), ("test", 4)):
        shape = (count, size, size, channels) if channels > 1 else (count, size, size)
        arrays[f"{split}_images"] = draws.integers(0, 256, shape, dtype=np.uint8)
        arrays[f"{split}_labels"] = (np.arange(count * findings).reshape(count, findings) % classes).astype(np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **{**arrays, **changes})
    return arrays


def test_colour_images_and_their_labels(tmp_path):
    arrays = write(tmp_path / "pathmnist.npz")
    data = MedMNIST("pathmnist", tmp_path)
    train, test = data.load(), data.load("test")
    assert (train.name, test.name) == ("pathmnist/train", "pathmnist/test")
    assert torch.equal(train.inputs[2, :, 5, 7], torch.from_numpy(arrays["train_images"][2, 5, 7]))
    assert train.labels.tolist() == [0, 1, 2, 3] * 2
    assert test.classes == train.classes == ("0", "1", "2", "3")
    assert test.shape == (3, 28, 28)


def test_grey_images_of_another_size_padded(tmp_path):
    write(tmp_path / "medmnist" / "organamnist_64.npz", 64, channels=1)
    assert MedMNIST("organamnist", tmp_path, size=64).load().shape == (1, 64, 64)
    write(tmp_path / "organamnist.npz", channels=1)
    padded = MedMNIST("organamnist", tmp_path, pad_to=32).load()
    assert (padded.shape, padded.name) == ((1, 32, 32), "organamnist-32/train")
    assert padded.inputs[:, :, :2].max() == 0


def test_images_of_several_findings_have_no_labels(tmp_path):
    write(tmp_path / "chestmnist.npz", channels=1, findings=14, classes=2)
    assert not MedMNIST("chestmnist", tmp_path).load().is_labelled


def test_a_file_that_is_not_there_is_downloaded_and_its_checksum_is_that_of_its_size(tmp_path, monkeypatch):
    asked = []

    def fetch(url, folder, md5):
        asked.append((url, md5))
        write(folder / url.rpartition("/")[2], 64)
        return folder / url.rpartition("/")[2]

    monkeypatch.setattr("fedgen.data.sets.small_images.fetch", fetch)
    assert MedMNIST("pathmnist", tmp_path, size=64).load().shape == (3, 64, 64)
    address = "https://zenodo.org/records/10519652/files/pathmnist_64.npz"
    assert asked == [(address, "55aa9c1e0525abe5a6b9d8343a507616")]
    assert MedMNIST("pathmnist", tmp_path, size=64).load().name == "pathmnist-64/train"
    assert len(asked) == 1  # what is there is read


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("bloodmnist", r"bloodmnist\.npz.*downloading it failed \(no network\).*zenodo"),
        ("unheardmnist", r"unheardmnist\.npz was not found in [^;]*\. To get it: get unheardmnist\.npz from .*zenodo"),
    ],
)
def test_a_missing_file_says_where_to_get_it(tmp_path, monkeypatch, name, words):
    def fetch(*arguments):
        raise OSError("no network")

    monkeypatch.setattr("fedgen.data.sets.small_images.fetch", fetch)
    with pytest.raises(FileNotFoundError, match=words):
        MedMNIST(name, tmp_path).load()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"train_images": np.zeros((8, 28, 28), np.float32)},
            r"train_images must be uint8 \[N, 28, 28\] or .* float32",
        ),
        ({"train_images": np.zeros((8, 28, 28, 28), np.uint8)}, "sets of 3D images cannot be used"),
        ({"train_images": np.zeros((8, 64, 64), np.uint8)}, r"got uint8 \[8, 64, 64\]"),
        ({"train_labels": np.zeros((7, 1), np.uint8)}, r"train_labels must be integers \[8, 1\], got uint8 \[7, 1\]"),
        ({"train_labels": np.zeros((8, 1))}, "train_labels must be integers"),
    ],
)
def test_another_form_is_named(tmp_path, changes, words):
    write(tmp_path / "pathmnist.npz", **changes)
    with pytest.raises(ValueError, match=words):
        MedMNIST("pathmnist", tmp_path).load()


@pytest.mark.parametrize(
    ("name", "options", "words"), [("path", {"size": 32}, "size=32"), ("../path", {}, r"name='\.\./path'")]
)
def test_settings_are_checked(name, options, words):
    with pytest.raises(ValueError, match=words):
        MedMNIST(name, **options)


@pytest.mark.parametrize("split", ["train", "test"])
def test_a_label_beyond_the_published_classes_is_refused_with_its_row(tmp_path, split):
    labels = np.array([[0], [1], [250], [1]] * (2 if split == "train" else 1), dtype=np.uint8)
    write(tmp_path / "breastmnist.npz", classes=2, **{f"{split}_labels": labels})
    with pytest.raises(ValueError, match=rf"breastmnist\.npz: row 2 of {split}_labels is 250, and .* classes 0 to 1"):
        MedMNIST("breastmnist", tmp_path).load(split)
