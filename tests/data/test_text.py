"""Text in windows, by owner."""

import pytest
import torch

from fedgen.data import TextFolder
from fedgen.data.text import cut_windows, decode, encode, windows_of


def test_tokens_are_bytes_and_come_back():
    assert encode("Ab\n").tolist() == [65, 98, 10]
    assert encode("é").tolist() == [0xC3, 0xA9]
    assert decode(encode("In the beginning, é\n")) == "In the beginning, é\n"
    assert decode(torch.tensor([97, 255])) == "a�"


def test_windows_do_not_overlap_and_the_rest_is_dropped():
    assert cut_windows(torch.arange(8), 2).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert cut_windows(torch.arange(2), 2).shape == (0, 3)


def test_every_window_has_its_owner_and_class():
    kinds = {"zoe": "none", "bob": "short", "ann": "long"}
    found = windows_of({"ann": "abcdef", "bob": "xyz"}, 2, "notes/train", kinds)
    assert [decode(window) for window in found.inputs] == ["abc", "def", "xyz"]
    assert found.owners.tolist() == [0, 0, 1]
    assert found.owner_names == ("ann", "bob")
    assert found.classes == ("short", "long")
    assert [found.classes[label] for label in found.labels] == ["long", "long", "short"]
    assert found.kind == "texts"
    assert not found.is_images


def test_a_text_shorter_than_one_window_is_refused_by_its_owner():
    with pytest.raises(ValueError, match="tokens"):
        windows_of({"ann": "abcdef", "bob": "xyz"}, 3, "notes/train")


def test_the_text_files_of_a_folder_are_their_owners(tmp_path):
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "bob.txt").write_text("xyzx")
    (tmp_path / "ann.txt").write_text("abcdef")
    (tmp_path / "notes.md").write_text("no text of this set")
    found = TextFolder(tmp_path, 1, name="notes").load()
    assert found.name == "notes-1/train"
    assert found.owner_names == ("ann", "letters/bob")
    assert [decode(window) for window in found.inputs] == ["ab", "cd", "ef", "xy", "zx"]


def test_a_folder_without_texts_and_other_encodings_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="folder"):
        TextFolder(tmp_path / "nowhere").load()
    with pytest.raises(FileNotFoundError, match="folder"):
        TextFolder(tmp_path).load()
    (tmp_path / "ann.txt").write_bytes(b"caf\xe9")
    with pytest.raises(ValueError, match="UTF"):
        TextFolder(tmp_path, 1).load()
    with pytest.raises(ValueError, match="length"):
        TextFolder(tmp_path, 0)
