"""Patches of scikit-image's photographs."""

import sys

import pytest
import torch

from fedgen.clients.partitions import Dirichlet, Natural
from fedgen.data import PhotoPatches
from fedgen.data.formats.image_files import read_image
from fedgen.data.sets.without_download import COLOUR, GREY, find_photo, places


def test_every_photo_is_an_owner_and_a_client():
    patches = PhotoPatches().load()
    assert patches.inputs.shape[1:] == (3, 32, 32)
    assert patches.owner_names == tuple(COLOUR)
    assert patches.name == "photo_patches-32/train"
    clients = Natural().assign(patches, seed=0)
    assert [len(client) for client in clients] == patches.owners.bincount().tolist()
    assert Natural().names(patches) == list(COLOUR)


def test_in_grey_there_are_all_photos():
    patches = PhotoPatches(channels=1).load("test")
    assert patches.inputs.shape[1:] == (1, 32, 32)
    assert patches.owner_names == (*COLOUR, *GREY)
    assert patches.owners.bincount().min() >= 5
    assert patches.name == "photo_patches-32-grey/test"


def test_the_splits_are_all_of_a_photos_patches_and_a_fifth_is_the_test_splits():
    counts = {photo: [] for photo in COLOUR}
    for split in ("train", "test"):
        for photo, count in zip(COLOUR, PhotoPatches().load(split).owners.bincount().tolist()):
            counts[photo].append(count)
    assert sum(counts["cat"]) == (300 // 32) * (451 // 32) == 126
    assert sum(counts["retina"]) == (1411 // 32) ** 2 == 1936
    train, test = map(sum, zip(*counts.values()))
    assert 0.19 < test / (train + test) < 0.21
    assert all(0.15 < test / (train + test) < 0.25 for train, test in counts.values())


@pytest.mark.parametrize("stride", [None, 5, 13, 40])
def test_no_pixel_is_in_both_splits(stride, monkeypatch):
    """In a picture whose pixels tell where they are, as 16-bit numbers in two channels."""
    position = torch.arange(200 * 150).reshape(200, 150)
    picture = torch.stack([position // 256, position % 256, torch.zeros_like(position)]).to(torch.uint8)
    monkeypatch.setattr("fedgen.data.sets.without_download.read_image", lambda path, channels: picture)
    data = PhotoPatches(16, stride, photos=["cat"])
    seen = []
    for split in ("train", "test"):
        high, low, _ = data.load(split).inputs.long().unbind(1)
        found = high * 256 + low
        # each patch is a square of the picture as it is
        assert torch.equal(found - found[:, :1, :1], (position[:16, :16])[None].expand_as(found))
        seen.append(set(found.flatten().tolist()))
    assert seen[0].isdisjoint(seen[1])
    if stride is None:
        assert len(seen[0] | seen[1]) == (200 // 16 * 16) * (150 // 16 * 16)


def test_patches_do_not_leave_their_tile():
    assert places(100, 16, 16).tolist() == [0, 16, 32, 48, 64, 80]
    assert places(60, 16, 8).tolist() == [0, 8, 16, 32, 40]
    assert places(60, 16, 100).tolist() == [0, 32]
    assert places(15, 16, 1).tolist() == []


def test_chosen_photos_stand_in_the_order_given_and_in_the_name():
    data = PhotoPatches(24, 12, photos=["moon", "cat"])
    patches = data.load()
    assert patches.owner_names == ("moon", "cat")
    assert patches.name == "photo_patches-24-stride12-moon+cat/train"
    moon = patches.inputs[patches.owners == 0]
    assert torch.equal(moon[:, 0], moon[:, 2])
    # the first tile is the test split's, so that the first train patch starts at column 48
    assert torch.equal(moon[0], read_image(find_photo("moon"), 3)[:, :24, 48:72])


def test_there_are_no_labels():
    patches = PhotoPatches(photos=["cat"]).load()
    assert not patches.is_labelled
    with pytest.raises(ValueError, match="photo_patches"):
        Dirichlet(2, 1.0).assign(patches, seed=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 0}, "size must be at least 1 pixel, got 0"),
        ({"stride": 0}, "stride must be at least 1 pixel, got 0"),
        ({"channels": 2}, "channels must be 1"),
        ({"photos": ["dog"]}, "photo 'dog' is not known; use astronaut, cat"),
        ({"photos": ["cat", "cat"]}, "name it once"),
    ],
)
def test_wrong_settings_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        PhotoPatches(**options)


def test_a_photo_too_small_for_the_patches_is_named():
    with pytest.raises(ValueError, match="smaller"):
        PhotoPatches(172, photos=["text"]).load()
    assert len(PhotoPatches(172, photos=["text"]).load("test")) == 2


def test_without_scikit_image_or_its_photo_the_remedy_is_named(monkeypatch):
    monkeypatch.setitem(GREY, "sea", "sea.png")
    with pytest.raises(FileNotFoundError, match="install"):
        find_photo("sea")
    monkeypatch.setitem(sys.modules, "skimage", None)
    with pytest.raises(ImportError, match="skimage"):
        PhotoPatches().load()
