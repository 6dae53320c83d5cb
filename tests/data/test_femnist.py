import json

import pytest

from fedgen.clients.partitions import Natural
from fedgen.data import FEMNIST
from tests.data.published import page, write_femnist


@pytest.fixture
def root(tmp_path):
    write_femnist(tmp_path / "femnist" / "train", {"f0001_41": [(255, 3), (128, 10)], "f0000_14": [(7, 61)]})
    write_femnist(tmp_path / "femnist" / "train", {"f0001_41": [(9, 0)]}, "all_data_1.json")
    return tmp_path


def test_writers_are_owners_and_keep_their_images_over_files(root):
    train = FEMNIST(root).load()
    assert train.inputs.shape == (4, 1, 28, 28)
    assert train.inputs[:, 0, 5, 5].tolist() == [255, 128, 7, 9]
    assert [train.classes[label] for label in train.labels] == ["3", "A", "z", "0"]
    assert (train.owners.tolist(), train.owner_names) == ([0, 0, 1, 0], ("f0001_41", "f0000_14"))
    assert [client.tolist() for client in Natural().assign(train, seed=0)] == [[0, 1, 3], [2]]


def test_digits_alone_leave_out_letters_and_writers_without_digits(root):
    digits = FEMNIST(root, digits_only=True).load()
    assert (digits.labels.tolist(), digits.owner_names) == ([3, 0], ("f0001_41",))
    assert (digits.name, len(digits.classes)) == ("femnist-digits/train", 10)


def test_ink_can_be_white_as_in_mnist_and_borders_are_paper(root):
    white = FEMNIST(root, ink="white", pad_to=32).load()
    assert white.inputs[:, 0, 16, 16].tolist() == [0, 127, 248, 246]
    assert white.inputs[:, 0, 0, 0].tolist() == [0] * 4
    assert white.name == "femnist-32-white/train"
    assert FEMNIST(root, pad_to=32).load().inputs[:, 0, 0, 0].tolist() == [255] * 4
    with pytest.raises(ValueError, match="known"):
        FEMNIST(root, ink="red")


def test_splits_lie_in_folders_and_a_missing_one_says_how_to_make_it(root):
    with pytest.raises(FileNotFoundError, match="FEMNIST"):
        FEMNIST(root).load("test")
    write_femnist(root / "plain" / "test", {"a": [(1, 1)]})
    assert FEMNIST(root / "plain").load("test").name == "femnist/test"


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"x": [page(1)], "y": [1, 2]}, r"'ann': x has the shape \(1, 784\), but 2 labels need \(2, 784\)"),
        ({"x": [[0.5] * 3], "y": [1]}, r"x has the shape \(1, 3\)"),
        ({"x": [page(300)], "y": [1]}, "not in 0 to 1"),
        ({"x": [page(1)], "y": [62]}, "y must be integers from 0 to 61"),
        ({"x": [page(1)]}, "user 'ann': 'y'"),
    ],
)
def test_a_writer_who_does_not_fit_is_named(tmp_path, own, message):
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "a.json").write_text(json.dumps({"users": ["ann"], "user_data": {"ann": own}}))
    with pytest.raises(ValueError, match=message):
        FEMNIST(tmp_path).load()


def test_a_writer_without_images_is_no_owner_and_none_at_all_are_refused(tmp_path):
    write_femnist(tmp_path / "train", {"ann": [], "bob": [(1, 20)]})
    assert FEMNIST(tmp_path).load().owner_names == ("bob",)
    with pytest.raises(ValueError, match="femnist"):
        FEMNIST(tmp_path, digits_only=True).load()


@pytest.mark.parametrize("content", ["{", "[]", '{"users": []}'])
def test_a_file_of_another_form_is_refused(tmp_path, content):
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "a.json").write_text(content)
    with pytest.raises(ValueError, match="LEAF"):
        FEMNIST(tmp_path).load()


def test_a_writer_who_is_listed_twice_is_refused(tmp_path):
    (tmp_path / "train").mkdir()
    own = {"x": [page(1)], "y": [1]}
    (tmp_path / "train" / "a.json").write_text(json.dumps({"users": ["ann", "ann"], "user_data": {"ann": own}}))
    with pytest.raises(ValueError, match="users"):
        FEMNIST(tmp_path).load()
