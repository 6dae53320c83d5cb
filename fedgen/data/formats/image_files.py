"""One image file to pixels: what its header says, and uint8 pixels of photographs and graphics of the usual formats."""

import io
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from fedgen.io.regular_files import check_unpacked, open_regular

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm"})
# Pillow goes by a file's content, and would run Ghostscript on PostScript under any suffix
FORMATS = ("PNG", "JPEG", "BMP", "WEBP", "TIFF", "PPM", "GIF")
ORIENTATION, SIDEWAYS = 0x0112, (5, 6, 7, 8)  # EXIF tag, and where upright means rows and columns swapped
MOST_SCANS = 100  # of a JPEG, as libtiff has it; cameras and tools write twelve at most
_JPEG_MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")  # those that do not stand among coded pixels
_JPEG_SCAN, _JPEG_END, _JPEG_ALONE = 0xDA, 0xD9, (0x01, 0xD8)


def images_below(folder: Path, recursive: bool) -> list[Path]:
    """The image files of a folder, with those of its subfolders if asked, in the order of their paths.

    Hidden files and folders are left out, and so is whatever has no image's suffix. A link to nowhere counts: whoever
    reads it learns that it cannot be read.
    """
    found = (path for path in folder.glob("**/*" if recursive else "*") if path.suffix.lower() in SUFFIXES)
    files = (path for path in found if path.is_file() or (path.is_symlink() and not path.exists()))
    return sorted(path for path in files if not _is_hidden(path.relative_to(folder)))


def check_form(channels: int, size: int | None) -> None:
    """Raises ValueError unless images can be read with so many channels and fitted to this size."""
    if channels not in (1, 3):
        raise ValueError(f"channels must be 1 (grey) or 3 (RGB), got {channels}")
    if size is not None and size < 1:
        raise ValueError(f"size must be at least 1 pixel, got {size}")


def read_image(source: Path | bytes, channels: int, size: int | None = None, upright: bool = True) -> Tensor:
    """One image as uint8 [channels, H, W].

    Palettes are looked up and transparency is dropped. Pixels of 16 bits keep their high byte, v // 256: 0..255 for
    0..65535, and x for an 8-bit x that was stored as 257 x. Pillow does so for colour, and here grey follows. (Peers
    clip grey of 16 bits at 255, which is nearly all white.)

    Args:
        source: the file, or its content.
        channels: 3 for RGB, 1 for grey; images are converted.
        size: side to which it is fitted, see `fit`; as it is if None.
        upright: whether to turn it as its EXIF tag says; the peers' tools do not. Pillow turns TIFFs in any case.

    Raises:
        ValueError: if it is damaged or of none of `FORMATS`, or its pixels are floats or have more than 16 bits.
    """
    from PIL import Image, ImageOps

    try:
        with _opened(source) as stream, Image.open(stream, formats=FORMATS) as file:
            _check_mode(file)
            _check_pixels(file, stream)
            _check_scans(file, stream)
            image = _eight_bits(ImageOps.exif_transpose(file) if upright else file)
            image = image.convert("RGB" if channels == 3 else "L")
    except Exception as error:  # what Pillow raises for damaged files may be anything
        name = "the image cannot be read" if isinstance(source, bytes) else source
        raise ValueError(f"{name} ({_reason(error)})") from error
    return to_tensor(image if size is None else fit(image, size))


@dataclass(frozen=True)
class ImageHeader:
    """The facts of an image before its pixels are decoded.

    Args:
        size: height and width.
        grey: whether it is grey.
        deep: whether it is grey of 16 bits, which `read_image` reads otherwise than peers do.
    """

    size: tuple[int, int]
    grey: bool
    deep: bool = False


def read_header(path: Path, upright: bool = True) -> ImageHeader:
    """The size and kind of an image from the file's first bytes; see `read_image`.

    Raises:
        ValueError: if Pillow does not know the file for an image, or its pixels are floats or have more than 16 bits.
    """
    from PIL import Image

    try:
        with _opened(path) as stream, Image.open(stream, formats=FORMATS) as file:
            _check_mode(file)
            _check_pixels(file, stream)
            width, height = file.size
            deep = file.mode.startswith("I")
            grey = deep or file.mode in ("L", "LA", "La", "1")
            # Pillow turns TIFFs by itself; for the tag of a PNG that has none it would decode all pixels
            at_hand = upright and file.format != "TIFF" and (file.format != "PNG" or "exif" in file.info)
            turned = at_hand and file.getexif().get(ORIENTATION) in SIDEWAYS  # which may be of any type
    except Exception as error:
        raise ValueError(f"{path} ({_reason(error)})") from error
    return ImageHeader((width, height) if turned else (height, width), grey, deep)


def fit(image: Any, size: int) -> Any:
    """A Pillow image resized (bicubic, antialiased; the shorter side to `size`) and cut to its centre, size x size."""
    from PIL import Image, ImageOps

    return ImageOps.fit(image, (size, size), method=Image.Resampling.BICUBIC)


def to_tensor(image: Any) -> Tensor:
    """The uint8 pixels [C, H, W] of a Pillow image in mode L or RGB."""
    pixels = np.array(image)
    return torch.from_numpy(pixels if pixels.ndim == 3 else pixels[:, :, None]).permute(2, 0, 1).contiguous()


def _eight_bits(image: Any) -> Any:
    from PIL import Image

    if image.mode.startswith("I"):
        return Image.fromarray((np.array(image) >> 8).astype(np.uint8))
    # Pillow warns where a palette's transparency is dropped in one step
    return image.convert("RGBA") if image.mode == "P" and "transparency" in image.info else image


def _reason(error: Exception) -> str:
    """Return why a file is no image; Pillow names its own stream there."""
    from PIL import UnidentifiedImageError

    if isinstance(error, UnidentifiedImageError):
        return f"no image of {', '.join(FORMATS[:-1])} or {FORMATS[-1]}, or damaged at its beginning"
    return str(error)


def _opened(source: Path | bytes) -> IO[bytes]:
    return io.BytesIO(source) if isinstance(source, bytes) else open_regular(source)


def _check_pixels(image: Any, stream: IO[bytes]) -> None:
    """ValueError for an image that a few bytes make enormous, before its pixels are decoded."""
    place = stream.tell()
    stored = stream.seek(0, os.SEEK_END)
    stream.seek(place)
    width, height = image.size
    check_unpacked(3 * width * height, stored)


def _check_scans(image: Any, stream: IO[bytes]) -> None:
    """ValueError for a JPEG that has a few bytes go over all pixels again and again."""
    if image.format != "JPEG":
        return
    before = stream.tell()
    stream.seek(0)
    content, place, scans = stream.read(), 0, 0
    stream.seek(before)
    while found := _JPEG_MARKER.search(content, place):
        kind, place = content[found.start() + 1], found.end()
        if kind == _JPEG_END:
            return
        if kind not in _JPEG_ALONE:
            place += int.from_bytes(content[place : place + 2])
        scans += kind == _JPEG_SCAN
        if scans > MOST_SCANS:
            raise ValueError(f"it goes over its pixels more than {MOST_SCANS} times; save it anew")


def _check_mode(image: Any) -> None:
    """ValueError for pixels whose range is unknown: floats, and integers of 32 bits."""
    # a 16-bit PGM or PNG may come as 32-bit integers, within 0..65535
    if image.mode == "F" or (image.mode == "I" and image.format not in ("PNG", "PPM")):
        raise ValueError(
            f"its pixels (Pillow mode {image.mode}) are floats or have more than 16 bits; convert it first"
        )


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)
