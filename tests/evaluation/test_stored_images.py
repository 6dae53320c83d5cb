"""Images on disk, a batch at a time."""

import threading

import numpy as np
import pytest
import torch
from PIL import Image

from fedgen.data.formats.image_files import read_image
from fedgen.evaluation import Reading
from fedgen.evaluation.stored.stored_images import ArrayImages, FolderImages, UnreadableFilesError
from fedgen.io.files import read_headers
from tests.evaluation.folders import save_grey

PIXELS = np.random.default_rng(0).integers(0, 256, (5, 8, 6, 3), dtype=np.uint8)


@pytest.fixture
def folder(tmp_path):
    for i, image in enumerate(PIXELS):
        Image.fromarray(image).save(tmp_path / f"{i}.png")
    return tmp_path


def array(path, pixels, reading=None):
    np.savez(path / "a.npz", arr_0=pixels)
    return ArrayImages(path / "a.npz", "arr_0", read_headers(path / "a.npz")["arr_0"], reading or Reading())


def test_a_folder_comes_in_batches_in_the_order_of_paths(folder):
    images = FolderImages(folder, Reading())
    parts = list(images.batches(3, 2))
    assert [len(part) for part in parts] == [2, 2, 1]
    assert torch.equal(torch.cat(parts), torch.from_numpy(PIXELS).permute(0, 3, 1, 2))
    assert (len(images), images.grey, list(images.sizes)) == (5, False, [(8, 6)])


def test_the_next_batch_is_read_while_the_caller_embeds_the_last(folder, monkeypatch):
    read_next = threading.Event()

    def read(file, *arguments):
        if file.name == "2.png":
            read_next.set()
        return read_image(file, *arguments)

    monkeypatch.setattr("fedgen.evaluation.stored.stored_images.read_image", read)
    batches = FolderImages(folder, Reading()).batches(3, 2)
    next(batches)
    assert read_next.wait(10)
    batches.close()


@pytest.mark.parametrize("layout", ["NHWC", "NCHW", "NHWC with alpha"])
def test_an_array_gives_the_same_images_in_any_layout(tmp_path, layout):
    pixels = {
        "NHWC": PIXELS,
        "NCHW": PIXELS.transpose(0, 3, 1, 2),
        "NHWC with alpha": np.concatenate([PIXELS, PIXELS[..., :1]], 3),
    }[layout]
    images = array(tmp_path, np.ascontiguousarray(pixels))
    assert torch.equal(torch.cat(list(images.batches(3, 2))), torch.from_numpy(PIXELS).permute(0, 3, 1, 2))
    assert (len(images), images.grey, list(images.sizes)) == (5, False, [(8, 6)])


@pytest.mark.parametrize("channels", [1, 3])
def test_grey_arrays_are_repeated_and_colour_ones_made_grey_as_files_are(tmp_path, channels):
    grey = array(tmp_path, PIXELS[..., :1])
    assert grey.grey
    expected = torch.from_numpy(PIXELS[:, None, :, :, 0]).expand(-1, channels, -1, -1)
    assert torch.equal(torch.cat(list(grey.batches(channels, 2))), expected)
    Image.fromarray(PIXELS[0]).save(tmp_path / "a.png")
    assert torch.equal(next(array(tmp_path, PIXELS).batches(channels, 1))[0], read_image(tmp_path / "a.png", channels))


def test_files_and_arrays_are_fitted_alike(folder, tmp_path):
    reading = Reading(resize=4)
    files = FolderImages(folder, reading)
    images = array(tmp_path, PIXELS, reading)
    assert list(files.sizes) == list(images.sizes) == [(4, 4)]
    assert torch.equal(torch.cat(list(files.batches(3, 2))), torch.cat(list(images.batches(3, 3))))


def test_a_batch_holds_images_of_one_size(tmp_path):
    for name, side in (("a", 4), ("b", 4), ("c", 6), ("d", 4)):
        save_grey(tmp_path / f"{name}.png", side, side)
    images = FolderImages(tmp_path, Reading())
    assert [tuple(part.shape) for part in images.batches(1, 10)] == [(2, 1, 4, 4), (1, 1, 6, 6), (1, 1, 4, 4)]
    assert sorted(images.sizes) == [(4, 4), (6, 6)]
    assert images.grey


def damage(folder):
    """One file that is no image, and one whose pixels end early."""
    (folder / "x.png").write_bytes(b"no image")
    Image.effect_noise((64, 64), 50).save(folder / "y.png")
    (folder / "y.png").write_bytes((folder / "y.png").read_bytes()[:2000])


def test_unreadable_files_are_listed_by_header_and_by_pixels(folder):
    damage(folder)
    images = FolderImages(folder, Reading(mixed_sizes=True))
    named = "no image of PNG, JPEG, BMP, WEBP, TIFF, PPM, GIF or AVIF, or damaged at its beginning"
    assert images.skipped == [f"{folder / 'x.png'} ({named})"]
    with pytest.raises(UnreadableFilesError, match="read") as caught:
        list(images.batches(3, 2))
    assert str(folder / "y.png") in str(caught.value)


def test_unreadable_files_are_left_out_if_asked(folder):
    damage(folder)
    images = FolderImages(folder, Reading(skip_unreadable=True))
    assert sum(len(part) for part in images.batches(3, 2)) == 5
    assert len(images.skipped) == 2


def test_an_error_lists_twenty_files_and_counts_the_rest():
    error = UnreadableFilesError([f"{i}.png" for i in range(33)], 50)
    assert str(error).startswith("33 of 50 image files cannot be read")
    assert "19.png" in str(error)
    assert "20.png" not in str(error)
    assert str(error).endswith("and 13 more")


def test_a_digest_follows_the_bytes_and_nothing_else(folder):
    first = FolderImages(folder, Reading()).digest()
    (folder / "4.png").rename(folder / "9.png")
    assert FolderImages(folder, Reading()).digest() == first
    save_grey(folder / "9.png", 8, 6)
    assert FolderImages(folder, Reading()).digest() != first


def test_a_size_without_pixels_is_refused():
    with pytest.raises(ValueError, match="pixel"):
        Reading(resize=0)
