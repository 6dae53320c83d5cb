import pickle

import numpy as np
import pytest

from fedgen.data import ImageNet32


def write_batch(path, labels, size=32):
    """A batch in the form of the published ones (pickled by Python 3); image i has the value of its label mod 256."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = np.repeat(np.array(labels)[:, None] % 256, 3 * size**2, axis=1).astype(np.uint8)
    data[:, -1] = 77  # the last pixel in blue
    contents = {"data": data, "labels": labels}
    if path.name.startswith("train"):
        contents["mean"] = np.full(3 * size**2, 123.4)
    path.write_bytes(pickle.dumps(contents, protocol=3))


def write_train(folder, labels=None, size=32):
    for part, file in enumerate(ImageNet32.train_files):
        write_batch(folder / file, labels or [part + 1, 1000 - part], size)


@pytest.mark.parametrize("place", [".", "Imagenet32_train"])
def test_ten_batches_make_the_train_split_with_labels_from_zero(tmp_path, place):
    write_train(tmp_path / place)
    train = ImageNet32(tmp_path).load()
    assert train.inputs.shape == (20, 3, 32, 32)
    assert train.labels.tolist() == [label for part in range(10) for label in (part, 999 - part)]
    assert train.inputs[:, 0, 0, 0].tolist() == [(label + 1) % 256 for label in train.labels.tolist()]
    assert train.inputs[0, :, 31, 31].tolist() == [1, 1, 77]
    assert (train.name, train.classes[0], train.classes[999]) == ("imagenet32/train", "1", "1000")


@pytest.mark.parametrize("place", [".", "Imagenet32_val"])
def test_the_validation_images_are_the_test_split(tmp_path, place):
    write_batch(tmp_path / place / "val_data", [1, 1000, 5])
    test = ImageNet32(tmp_path).load("test")
    assert test.labels.tolist() == [0, 999, 4]
    assert test.name == "imagenet32/test"


def test_the_first_classes_can_be_kept_alone(tmp_path):
    write_train(tmp_path)
    few = ImageNet32(tmp_path, classes=3).load()
    assert few.labels.tolist() == [0, 1, 2]
    assert few.inputs[:, 0, 0, 0].tolist() == [1, 2, 3]
    assert (few.name, few.classes) == ("imagenet32-first3/train", ("1", "2", "3"))


@pytest.mark.parametrize("size", [8, 16, 64])
def test_other_sizes_are_read_and_named(tmp_path, size):
    write_batch(tmp_path / f"Imagenet{size}_val" / "val_data", [1, 2], size)
    test = ImageNet32(tmp_path, size=size).load("test")
    assert test.inputs.shape == (2, 3, size, size)
    assert test.name == f"imagenet{size}/test"


def test_batches_of_another_size_than_asked_for_are_named(tmp_path):
    write_batch(tmp_path / "val_data", [1, 2], size=16)
    with pytest.raises(ValueError, match="val_data"):
        ImageNet32(tmp_path).load("test")


@pytest.mark.parametrize(("labels", "span"), [([0, 1], "0 to 1"), ([1, 1001], "1 to 1001")])
def test_labels_out_of_range_are_named_even_if_only_few_classes_are_kept(tmp_path, labels, span):
    write_batch(tmp_path / "val_data", labels)
    with pytest.raises(ValueError, match=f"val_data: 'labels' run from {span}, not 1 to 1000"):
        ImageNet32(tmp_path, classes=1).load("test")


def test_a_batch_that_is_cut_short_is_named(tmp_path):
    write_train(tmp_path)
    path = tmp_path / "train_data_batch_7"
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(ValueError, match="train_data_batch_7"):
        ImageNet32(tmp_path).load()


def test_missing_batches_say_that_an_account_is_needed(tmp_path):
    write_train(tmp_path)
    (tmp_path / "train_data_batch_10").unlink()
    with pytest.raises(FileNotFoundError, match="account") as caught:
        ImageNet32(tmp_path).load()
    assert f"train_data_batch_1 to train_data_batch_10 into {tmp_path / 'Imagenet32_train'}" in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 48}, "size=48 is not published; use one of 8, 16, 32, 64"),
        ({"classes": 0}, "classes=0: keep 1 to 1000"),
    ],
)
def test_settings_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        ImageNet32(**options)
