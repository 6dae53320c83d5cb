"""Images of an experiment by name, and their features."""

import pytest
import torch
from PIL import Image

from fedgen.experiments.engine import features as sources
from fedgen.experiments.engine.features import ImageChoice, chosen, halves, open_data, pick_classes


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_features_are_embedded_once_and_kept_on_disk(monkeypatch):
    source = ImageChoice(data="digits", embedding="pixels").source()
    assert source.features.shape == (1797, 64)
    assert torch.equal(source.features[5], source.examples.inputs[5].flatten() / 255)
    again = ImageChoice(data="digits", embedding="pixels").source()
    monkeypatch.setattr(type(again.embedding), "forward", None)
    assert torch.equal(again.features, source.features)
    other = source.with_embedding(again.embedding)
    assert other.examples is source.examples


def test_a_folder_of_class_folders_is_data_too(tmp_path):
    for name, grey in (("black", 0), ("white", 255)):
        (tmp_path / "images" / name).mkdir(parents=True)
        Image.new("L", (4, 4), grey).save(tmp_path / "images" / name / "1.png")
    source = ImageChoice(data=str(tmp_path / "images"), embedding="pixels").source()
    assert source.positions("white").tolist() == [1]


def test_unknown_data_or_class_are_named(tmp_path):
    with pytest.raises(ValueError, match="cifar11"):
        open_data("cifar11")
    with pytest.raises(ValueError, match="digits"):
        ImageChoice(data="digits", embedding="pixels").source().positions("ten")
    with pytest.raises(ValueError, match="class"):
        pick_classes(["a", "a"], ["a", "b"], [])
    with pytest.raises(ValueError, match="class"):
        pick_classes(["c"], ["a", "b"], [])
    assert pick_classes(None, ["a", "b"], ["b"]) == ("b",)


def test_every_name_opens_what_it_says(tmp_path):
    assert {name: type(sources.DATA[name](tmp_path)).__name__ for name in sources.DATA} == {
        "digits": "Digits",
        "mnist5k": "MNIST5k",
        "mnist": "MNIST",
        "fashion-mnist": "FashionMNIST",
        "cifar10": "CIFAR10",
        "cifar100": "CIFAR100",
        "imagenet32": "ImageNet32",
    }


def test_halves_share_nothing_and_choices_have_their_size():
    positions = torch.arange(100, 111)
    first, second = halves(positions, 0, "shirt")
    assert sorted([*first.tolist(), *second.tolist()]) == positions.tolist()
    assert abs(len(first) - len(second)) == 1
    assert not torch.equal(first, halves(positions, 1, "shirt")[0])
    some = chosen(positions, 4, 0)
    assert len(some) == 4
    assert torch.equal(some, some.sort().values)
    assert chosen(positions, None, 0) is positions
    with pytest.raises(ValueError, match="asked"):
        chosen(positions, 12, 0)
