"""One image file to pixels: what its header says, and uint8 pixels of photographs and graphics of the usual formats."""

import io
import os
import re
import struct
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor
from torch.nn import functional as F

from fedgen.io.regular_files import check_unpacked, open_regular
from fedgen.own_code import warn

SUFFIXES = frozenset({".png", ".apng", ".jpg", ".jpeg", ".jpe", ".jfif", ".bmp", ".webp", ".tif", ".tiff", ".gif"})
SUFFIXES |= {".ppm", ".pgm", ".pbm", ".pnm", ".pfm", ".avif"}
# Pillow goes by a file's content, and would run Ghostscript on PostScript under any suffix
FORMATS = ("PNG", "JPEG", "BMP", "WEBP", "TIFF", "PPM", "GIF", "AVIF")
GREY = ("1", "L", "LA", "La")  # Pillow's modes of 8 bits and fewer
TWELVE_BITS = 4096
ORIENTATION, SIDEWAYS = 0x0112, (5, 6, 7, 8)  # EXIF tag, and where upright means rows and columns swapped
_PIXEL = {"WEBP": 16, "AVIF": 8}  # bytes that decoders keep of a pixel, where these are more than its colours
_AT_ONCE = 2**20  # pixels
MOST_SCANS = 100  # of a JPEG, as libtiff has it; cameras and tools write twelve at most
_JPEG_MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")  # those that do not stand among coded pixels
_JPEG_SCAN, _JPEG_END, _JPEG_ALONE = 0xDA, 0xD9, (0x01, 0xD8)


@dataclass
class Unread:
    """The part of a folder and its images that is not read, or not as it was meant."""

    files: Counter[str] = field(default_factory=Counter)  # by suffix, those that are no images
    folders: int = 0  # that were not looked into
    frames: int = 0  # and pages after an image's first
    animated: int = 0  # images that have them
    brightest: int = 0  # the largest value of images of 16 bits; 0 without such images

    def add_frames(self, frames: int) -> None:
        self.frames, self.animated = self.frames + frames - 1, self.animated + (frames > 1)

    def remarks(self) -> list[str]:
        total, kinds = self.files.total(), sorted(self.files.items(), key=lambda one: (-one[1], one[0]))
        named = ", ".join(f"{suffix} {count}" for suffix, count in kinds[:5]) + ", ..." * (len(kinds) > 5)
        parts = [f"{total} other file{'s' * (total > 1)} ({named})"] if total else []
        parts += [f"{self.folders} subfolder{'s' * (self.folders > 1)}"] if self.folders else []
        parts += [f"{self.frames} further frames or pages of {self.animated} images"] if self.frames else []
        found = [f"not read: {', '.join(parts)}"] if parts else []
        if 0 < self.brightest < TWELVE_BITS:
            found.append(
                f"images of 16 bits whose largest value is {self.brightest} become levels 0 to {self.brightest >> 8};"
                " if they hold 12 bits, store them times 16"
            )
        return found


def total_unread(parts: Iterable[Unread]) -> Unread:
    found = Unread()
    for part in parts:
        found.files += part.files
        for name in ("folders", "frames", "animated"):
            setattr(found, name, getattr(found, name) + getattr(part, name))
        found.brightest = max(found.brightest, part.brightest)
    return found


def images_below(folder: Path, recursive: bool, unread: Unread | None = None) -> list[Path]:
    """The image files of a folder in the order of their paths, none hidden; `unread` counts what else there is."""
    # a link to nowhere is among them: whoever reads it learns that it cannot be read
    unread, found = unread or Unread(), []
    for path in folder.glob("**/*" if recursive else "*"):
        if any(part.startswith(".") for part in path.relative_to(folder).parts):
            continue
        if path.is_dir():
            unread.folders += not recursive
        elif path.suffix.lower() not in SUFFIXES:
            unread.files[path.suffix.lower() or "without a suffix"] += 1
        elif path.is_file() or (path.is_symlink() and not path.exists()):
            found.append(path)
    return sorted(found)


def check_form(channels: int, size: int | None) -> None:
    """Raises ValueError unless images can be read with so many channels and fitted to this size."""
    if channels not in (1, 3):
        raise ValueError(f"channels must be 1 (grey) or 3 (RGB), got {channels}")
    if size is not None and size < 1:
        raise ValueError(f"size must be at least 1 pixel, got {size}")


def read_image(
    source: Path | bytes, channels: int, size: int | None = None, upright: bool = True, unread: Unread | None = None
) -> Tensor:
    """One image, a file or its content, as uint8 [channels, H, W], its first frame; ValueError if it is damaged."""
    # `upright` turns it as its EXIF tag says, which peers do not (Pillow turns TIFFs in any case). `unread` counts
    # further frames, and learns the range of 16 bits; without it a warning says so.
    known = unread or Unread()
    with _opened(source) as (file, stream):
        _check_scans(file, stream)
        known.add_frames(_frames(file, stream))
        file.load()
        turned = upright and file.getexif().get(ORIENTATION, 1) != 1  # else Pillow would copy it
        image = eight_bits(ImageOps.exif_transpose(file) if turned else file, channels, known)
    if unread is None:
        _warn(known)
    return to_tensor(image if size is None else fit(image, size))


@contextmanager
def _opened(source: Path | bytes) -> Iterator[tuple[Any, IO[bytes]]]:
    """An image by Pillow, whose pixels are not read yet, and its stream; ValueError if it is damaged or enormous."""
    name = "the image cannot be read" if isinstance(source, bytes) else source
    try:
        with (
            io.BytesIO(source) if isinstance(source, bytes) else open_regular(source) as stream,
            Image.open(stream, formats=_formats()) as file,
        ):
            place = stream.tell()
            stored = stream.seek(0, os.SEEK_END)
            stream.seek(place)
            # a few bytes can make an image enormous, once its pixels are decoded
            check_unpacked(_PIXEL.get(str(file.format), 3) * file.width * file.height, stored)
            yield file, stream
    except UnidentifiedImageError as error:  # Pillow names its own stream there
        known = f"{', '.join(_formats()[:-1])} or {_formats()[-1]}"
        raise ValueError(f"{name} (no image of {known}, or damaged at its beginning)") from error
    except Exception as error:  # what Pillow raises for damaged files may be anything
        raise ValueError(f"{name} ({error})") from error


@dataclass(frozen=True)
class ImageHeader:
    """The facts of an image before its pixels are read."""

    size: tuple[int, int]  # height and width
    grey: bool
    deep: bool = False  # of more than 8 bits, which `read_image` reads otherwise than peers do


def read_header(path: Path, upright: bool = True, unread: Unread | None = None) -> ImageHeader:
    """The size and kind of an image by the file's first bytes, as `read_image` reads it; deep pixels are looked at."""
    known = unread or Unread()
    with _opened(path) as (file, stream):
        width, height = file.size
        deep = _is_deep(file.mode)
        # Pillow turns TIFFs by itself; for the tag of a PNG that has none it would decode all pixels
        at_hand = upright and file.format != "TIFF" and (file.format != "PNG" or "exif" in file.info)
        turned = at_hand and file.getexif().get(ORIENTATION) in SIDEWAYS  # which may be of any type
        known.add_frames(_frames(file, stream))
        if deep:
            eight_bits(file, 1, known)
    return ImageHeader((width, height) if turned else (height, width), deep or file.mode in GREY, deep)


def fit(image: Any, size: int) -> Any:
    """A Pillow image resized (bicubic, antialiased; the shorter side to `size`) and cut to its centre, size x size."""
    return ImageOps.fit(image, (size, size), method=Image.Resampling.BICUBIC)


def pad_images(images: Tensor, side: int | None) -> Tensor:
    """The images [N, C, side, side] with equal black borders, as 28 x 28 for networks of 32; unchanged for None."""
    if side is None:
        return images
    border, rest = divmod(side - images.shape[-1], 2)
    if border < 0 or rest or images.shape[-1] != images.shape[-2]:
        height, width = images.shape[-2:]
        raise ValueError(f"pad_to={side} does not leave equal borders around {height} x {width} images; use 32 for 28")
    return F.pad(images, (border,) * 4)


def join(parts: list[Tensor]) -> Tensor:
    """The parts after each other in one tensor; the list is emptied, so that memory never holds all of them twice."""
    joined = torch.empty(sum(map(len, parts)), *parts[0].shape[1:], dtype=parts[0].dtype)
    for start in accumulate([len(part) for part in parts[:-1]], initial=0):
        part = parts.pop(0)
        joined[start : start + len(part)] = part
    return joined


def to_tensor(image: Any) -> Tensor:
    """The uint8 pixels [C, H, W] of a Pillow image in mode L or RGB."""
    width, height = image.size
    levels = torch.empty(len(image.getbands()), height, width, dtype=torch.uint8)
    rows = max(1, _AT_ONCE // width)  # Pillow copies what it gives away several times
    for top in range(0, height, rows):
        pixels = np.array(image if rows >= height else image.crop((0, top, width, min(top + rows, height))))
        levels[:, top : top + rows] = torch.from_numpy(pixels.reshape(*pixels.shape[:2], -1)).permute(2, 0, 1)
    return levels


def eight_bits(image: Any, channels: int | None = None, unread: Unread | None = None) -> Any:
    """Any Pillow image as one of mode L (channels=1) or RGB (3); None keeps grey images grey. See `levels_of`."""
    grey = channels == 1 if channels else _is_deep(image.mode) or image.mode in GREY
    if _is_deep(image.mode):
        pixels = np.array(image)
        # a 16-bit PGM or PNG may come as 32-bit integers
        pixels = pixels.astype(np.uint16) if getattr(image, "format", None) in ("PNG", "PPM") else pixels
        image = Image.fromarray(levels_of(pixels, unread))
    elif image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")  # Pillow warns where a palette's transparency is dropped in one step
    mode = "L" if grey else "RGB"
    return image if image.mode == mode else image.convert(mode)


def levels_of(pixels: np.ndarray, unread: Unread | None = None) -> np.ndarray:
    """Grey levels uint8 of pixels of any type, in the same shape; ValueError for NaN and ranges of no meaning."""
    # 16 bits keep their high byte, as Pillow does for colour: 257 x becomes x again. (Peers clip grey of 16 bits at
    # 255, which is nearly all white.) Floats from 0 to 1 are times 255, others up to 255 are levels, both rounded.
    if pixels.dtype == np.uint8 or not pixels.size:
        return pixels.astype(np.uint8)
    low, high = pixels.min(), pixels.max()
    if pixels.dtype.kind == "f":
        if not 0 <= low <= high <= 255:
            raise ValueError(f"its pixels are floats from {low:g} to {high:g}; convert them to 0 to 1, or 0 to 255")
        return np.floor(pixels * (255 if high <= 1 else 1) + 0.5).astype(np.uint8)
    short = pixels.dtype.kind == "u" and pixels.itemsize == 2
    if not short and not (low == high == 0 or (low >= 0 and 255 < high < 65536)):
        raise ValueError(f"its pixels are {pixels.dtype} from {low} to {high}; convert them to 8 or 16 bits")
    known = unread or Unread()
    known.brightest = max(known.brightest, int(high))
    if unread is None:
        _warn(known)
    return (pixels >> 8).astype(np.uint8)


def _warn(seen: Unread) -> None:
    """Warns of an image that is not read whole; Python shows each of these texts once."""
    if seen.frames:
        warn("images of several frames or pages: only the first of each is read")
    if 0 < seen.brightest < TWELVE_BITS:
        warn(
            "an image of 16 bits has no value of 4,096 or more and becomes levels 0 to 15; if it holds 12 bits, store"
            " it times 16"
        )


@cache
def _formats() -> list[str]:
    Image.init()
    return [name for name in FORMATS if name in Image.OPEN]


def _frames(image: Any, stream: IO[bytes]) -> int:
    """The frames or pages of an image; a JPEG's further ones are previews and depths of the same photograph."""
    if image.format == "TIFF":
        return _pages(stream)
    return 1 if image.format in ("JPEG", "MPO") else getattr(image, "n_frames", 1)  # formats of one frame have none


def _pages(stream: IO[bytes]) -> int:
    """The length of a TIFF's chain of directories; Pillow would read all tags of each."""
    before = stream.tell()
    stream.seek(0)
    head, seen = stream.read(16), set[int]()
    order, is_big = "<" if head[:1] == b"I" else ">", b"+" in head[2:4]
    number, link, entry = ("Q", "Q", 20) if is_big else ("H", "I", 12)
    raw = head[8:16] if is_big else head[4:8]
    while len(raw) == struct.calcsize(link) and (place := struct.unpack(order + link, raw)[0]) and place not in seen:
        seen.add(place)
        stream.seek(place)
        entries = int.from_bytes(stream.read(struct.calcsize(number)), "little" if order == "<" else "big")
        stream.seek(entries * entry, os.SEEK_CUR)
        raw = stream.read(struct.calcsize(link))
    stream.seek(before)
    return max(1, len(seen))


def _is_deep(mode: str) -> bool:
    return mode.startswith(("I", "F"))


def _check_scans(image: Any, stream: IO[bytes]) -> None:
    """ValueError for a JPEG that has a few bytes go over all pixels again and again."""
    if image.format not in ("JPEG", "MPO"):  # as Pillow calls a JPEG with further pictures
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
