"""Every kind of image file that people have, read into the same 8-bit pixels."""

import io
import re
import struct
import zlib

import numpy as np
import pytest
import torch
from PIL import Image

from fedgen.data.formats.image_files import (
    ImageHeader,
    Unread,
    _pages,
    eight_bits,
    images_below,
    read_header,
    read_image,
    total_unread,
)

DEEP = np.array([[0, 255, 256, 511], [257 * 7, 32768, 65279, 65535]], np.uint16)
SHALLOW = [[0, 0, 1, 1], [7, 128, 254, 255]]  # the high bytes


def save_deep_png(path, pixels):
    """A PNG of 16 bits from uint16 [H, W, channels], which Pillow does not write in colour."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    height, width, channels = pixels.shape
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in pixels)
    header = struct.pack(">IIBBBBB", width, height, 16, {1: 0, 2: 4, 3: 2, 4: 6}[channels], 0, 0, 0)
    signature = b"\x89PNG\r\n\x1a\n"
    path.write_bytes(signature + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


@pytest.mark.parametrize("suffix", ["png", "tif", "pgm"])
def test_grey_of_16_bits_keeps_its_high_byte(tmp_path, suffix):
    Image.fromarray(DEEP).save(tmp_path / f"a.{suffix}")
    assert read_image(tmp_path / f"a.{suffix}", channels=1).tolist() == [SHALLOW]
    assert read_image(tmp_path / f"a.{suffix}", channels=3).tolist() == [SHALLOW] * 3
    assert read_header(tmp_path / f"a.{suffix}") == ImageHeader((2, 4), grey=True, deep=True)


def test_big_endian_grey_of_16_bits_is_the_same(tmp_path):
    Image.fromarray(DEEP.astype(">u2")).save(tmp_path / "a.tif")
    assert read_image(tmp_path / "a.tif", channels=1).tolist() == [SHALLOW]


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_colour_of_16_bits_and_grey_of_16_bits_agree(tmp_path, channels):
    save_deep_png(tmp_path / "a.png", DEEP[:, :, None].repeat(channels, 2))
    assert read_image(tmp_path / "a.png", channels=3).tolist() == [SHALLOW] * 3


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK"])
def test_grey_repeated_is_the_same_in_every_mode(tmp_path, mode):
    levels = np.array([[0, 255], [255, 0]], np.uint8)
    image = Image.fromarray(levels)
    (image.convert("RGB").quantize(4) if mode == "P" else image.convert(mode)).save(tmp_path / "a.tif")
    assert read_image(tmp_path / "a.tif", channels=3).tolist() == [levels.tolist()] * 3
    assert read_header(tmp_path / "a.tif") == ImageHeader((2, 2), mode in ("1", "L", "LA"))


def test_transparency_is_dropped_and_not_blended(tmp_path):
    Image.new("RGBA", (2, 2), (10, 20, 30, 0)).save(tmp_path / "a.png")
    assert read_image(tmp_path / "a.png", channels=3)[:, 0, 0].tolist() == [10, 20, 30]
    palette = Image.new("RGB", (2, 2), (10, 20, 30)).quantize(2)
    palette.save(tmp_path / "b.png", transparency=b"\x00\x80")
    assert read_image(tmp_path / "b.png", channels=3)[:, 0, 0].tolist() == [10, 20, 30]


@pytest.mark.parametrize("suffix", ["jpg", "png", "tif", "webp"])
def test_headers_know_the_size_after_turning(tmp_path, suffix):
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter
    Image.new("RGB", (6, 4)).save(tmp_path / f"a.{suffix}", exif=exif)
    path = tmp_path / f"a.{suffix}"
    assert read_header(path) == ImageHeader((6, 4), grey=False)
    assert read_image(path, 3).shape == (3, 6, 4)
    as_stored = (6, 4) if suffix == "tif" else (4, 6)  # Pillow turns TIFFs by itself
    assert read_header(path, upright=False) == ImageHeader(as_stored, grey=False)
    assert read_image(path, 3, upright=False).shape == (3, *as_stored)


@pytest.mark.parametrize(
    ("pixels", "words"),
    [
        (np.int32([[0, 70_000]]), "int32 from 0 to 70000"),
        (np.int32([[0, 200]]), "8 or 16 bits"),
        (np.float32([[-1, 1]]), "floats from -1 to 1"),
        (np.float32([[0, 256]]), "floats from 0 to 256"),
        (np.float32([[0, np.nan]]), "floats from nan"),
    ],
)
def test_pixels_of_unknown_range_are_refused_by_header_and_reader(pixels, words, tmp_path):
    Image.fromarray(pixels).save(tmp_path / "a.tif")
    for read in (read_header, lambda path: read_image(path, 3), lambda path: eight_bits(Image.open(path))):
        with pytest.raises(ValueError, match=words):
            read(tmp_path / "a.tif")


FRACTIONS = [[0, 1 / 255, 0.5, 1]]


@pytest.mark.parametrize(
    ("pixels", "levels"),
    [
        (np.float32(FRACTIONS), [[0, 1, 128, 255]]),
        (np.float32([[0, 1, 127.5, 255]]), [[0, 1, 128, 255]]),
        (np.int32([[0, 256, 65535]]), [[0, 1, 255]]),
        (np.zeros((1, 2), np.int32), [[0, 0]]),
    ],
)
def test_floats_and_wide_integers_become_levels_by_their_range(pixels, levels, tmp_path):
    """A folder refused floats and a Dataset clipped them: [0, 1] became black, 16 bits white."""
    Image.fromarray(pixels).save(tmp_path / "a.tif")
    assert read_image(tmp_path / "a.tif", 1).tolist() == [levels]
    assert np.array(eight_bits(Image.fromarray(pixels))).tolist() == levels


def test_twelve_bits_in_sixteen_are_named(tmp_path):
    """They became levels 0 to 15 without a word: KID 0.88 between identical images."""
    Image.fromarray(np.uint16([[0, 4095]])).save(tmp_path / "a.png")
    seen = Unread()
    read_header(tmp_path / "a.png", unread=seen)
    assert seen.remarks() == [
        "images of 16 bits whose largest value is 4095 become levels 0 to 15; if they hold 12 bits, store them times 16"
    ]
    with pytest.warns(UserWarning, match="bits"):
        assert read_image(tmp_path / "a.png", 1).tolist() == [[[0, 15]]]
    Image.fromarray(np.uint16([[0, 4096]])).save(tmp_path / "b.png")
    read_image(tmp_path / "b.png", 1, unread=seen)  # among brighter ones it is one dark image
    assert seen.remarks() == []


@pytest.mark.parametrize("suffix", ["jfif", "jpe", "gif", "avif", "apng", "pnm"])
def test_images_of_every_suffix_that_can_be_decoded_are_read(suffix, tmp_path):
    """30 of 40 files of such a folder were left out without a word."""
    kind = {"jfif": "JPEG", "jpe": "JPEG", "apng": "PNG", "pnm": "PPM"}.get(suffix, suffix.upper())
    Image.new("RGB", (4, 2), (200, 200, 200)).save(tmp_path / f"a.{suffix}", kind)
    (path,) = images_below(tmp_path, recursive=False)
    assert (read_image(path, 3).float() - 200).abs().max() <= 1
    assert read_header(path).size == (2, 4)


@pytest.mark.parametrize("form", ["<", ">", "big"])
def test_pages_of_a_tiff_are_counted_by_its_directories_however_they_are_linked(form):
    """Pillow reads all tags of every page: a file of 2 MB with 20,000 took six seconds."""
    made = io.BytesIO()
    pages = [Image.new("L", (4, 4))] * 5
    pages[0].save(made, "TIFF", save_all=True, append_images=pages[1:], big_tiff=form == "big")
    assert _pages(made) == 5
    if form != "big":
        links = [8, 14, 20, 8]  # the third names the first again
        raw = (b"II*\0" if form == "<" else b"MM\0*") + struct.pack(f"{form}I", 8)
        raw += b"".join(struct.pack(f"{form}HI", 0, link) for link in links[1:])
        assert _pages(io.BytesIO(raw)) == 3
        assert _pages(io.BytesIO(raw[:16])) == 2  # cut off
    assert _pages(io.BytesIO(b"")) == 1


@pytest.mark.parametrize("suffix", ["tif", "png", "webp", "gif", "avif"])
def test_frames_and_pages_after_the_first_are_counted(suffix, tmp_path):
    first, *others = [Image.new("L", (8, 8), level) for level in (0, 80, 160)]
    first.save(tmp_path / f"a.{suffix}", save_all=True, append_images=others)
    headers, pixels = Unread(), Unread()
    read_header(tmp_path / f"a.{suffix}", unread=headers)
    assert read_image(tmp_path / f"a.{suffix}", 1, unread=pixels).max() <= 2
    assert headers.remarks() == pixels.remarks() == ["not read: 2 further frames or pages of 1 images"]
    with pytest.warns(UserWarning, match="several"):
        read_image(tmp_path / f"a.{suffix}", 1)


def test_the_previews_in_a_photographs_file_are_no_frames(tmp_path):
    made = Image.new("RGB", (8, 8))
    made.save(tmp_path / "a.jpg", "MPO", save_all=True, append_images=[made])
    with Image.open(tmp_path / "a.jpg") as file:
        assert file.format == "MPO"
    read_image(tmp_path / "a.jpg", 3, unread=(seen := Unread()))
    assert not seen.frames


def test_what_is_not_read_is_counted_by_suffix(tmp_path):
    for name in ("a.png", ".hidden.txt", "b.txt", "c.TXT", "d.mp4", "e", "sub/f.png", "sub/g.csv", ".git/h"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    images_below(tmp_path, recursive=False, unread=(flat := Unread()))
    assert flat.remarks() == ["not read: 4 other files (.txt 2, .mp4 1, without a suffix 1), 1 subfolder"]
    images_below(tmp_path, recursive=True, unread=(deep := Unread()))
    assert (deep.files.total(), deep.folders) == (5, 0)
    both = total_unread([flat, deep])
    assert (both.files[".txt"], both.files[".csv"], both.folders) == (4, 1, 1)


def test_files_are_listed_in_order_without_hidden_ones(tmp_path):
    for name in ("b.png", "a.PNG", ".hidden.png", "notes.txt", "sub/c.jpg", ".thumbs/d.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    assert [path.name for path in images_below(tmp_path, recursive=False)] == ["a.PNG", "b.png"]
    assert [path.name for path in images_below(tmp_path, recursive=True)] == ["a.PNG", "b.png", "c.jpg"]


def test_a_fitted_image_has_the_size_asked_for(tmp_path):
    Image.new("L", (10, 6), 7).save(tmp_path / "a.png")
    assert torch.equal(read_image(tmp_path / "a.png", 1, size=4), torch.full((1, 4, 4), 7, dtype=torch.uint8))


def test_a_link_to_nowhere_is_a_file_that_cannot_be_read(tmp_path):
    (tmp_path / "a.png").symlink_to(tmp_path / "gone.png")
    (tmp_path / "b.png").symlink_to(tmp_path)  # a folder
    assert images_below(tmp_path, recursive=False) == [tmp_path / "a.png"]
    with pytest.raises(ValueError, match=r"a\.png .*No such file"):
        read_header(tmp_path / "a.png")


def test_an_image_that_would_fill_the_memory_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    Image.new("L", (50, 50)).save(tmp_path / "a.png")
    for read in (read_header, lambda path: read_image(path, 1)):
        with pytest.raises(ValueError, match="decompression"):
            read(tmp_path / "a.png")


ODD_TURNS = {
    "text": (2, 4, b"abc\0"),
    "bytes": (7, 1, b"\6\0\0\0"),
    "no number": (11, 1, b"\0\0\xc0\x7f"),
    "none": (3, 0, bytes(4)),
}


@pytest.mark.parametrize("name", ODD_TURNS)
def test_an_image_whose_exif_tag_is_no_turn_stays_as_it_is(name, tmp_path):
    """One such image among thousands ended an evaluation with an error that named no file."""
    kind, count, value = ODD_TURNS[name]
    tags = struct.pack("<4sIHHHI4sI", b"II*\0", 8, 1, 0x112, kind, count, value, 0)
    Image.new("RGB", (4, 2)).save(tmp_path / "a.jpg", exif=b"Exif\0\0" + tags)
    assert read_header(tmp_path / "a.jpg").size == (2, 4)
    assert read_image(tmp_path / "a.jpg", 3).shape == (3, 2, 4)


def test_a_jpeg_that_goes_over_its_pixels_without_end_is_refused(tmp_path):
    """300 kB took a minute: each scan of 100 bytes visits all 64 million pixels."""
    made = io.BytesIO()
    Image.new("L", (64, 64)).save(made, "JPEG", progressive=True)
    whole = made.getvalue()
    start = [found.start() for found in re.finditer(b"\xff\xda", whole)][-1]
    for scans, fits in ((94, True), (95, False)):  # Pillow writes six
        (tmp_path / "a.jpg").write_bytes(whole[:-2] + whole[start:-2] * scans + whole[-2:])
        if fits:
            assert read_image(tmp_path / "a.jpg", 1).shape == (1, 64, 64)
        else:
            with pytest.raises(ValueError, match="pixels"):
                read_image(tmp_path / "a.jpg", 1)
