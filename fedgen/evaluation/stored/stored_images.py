"""Samples on disk, read a batch at a time: the files of a folder, or one array of an .npz or .npy file."""

import hashlib
import math
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import chain, groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from fedgen.data.examples import RANKS
from fedgen.data.formats.image_files import Unread, fit, images_below, read_header, read_image, to_tensor
from fedgen.data.text import encode_all
from fedgen.embeddings.base import TextEmbedding
from fedgen.foreign_text import printable
from fedgen.io.files import ARRAYS, Header, open_archive, open_array, read_headers, read_npz
from fedgen.io.regular_files import open_regular, read_regular
from fedgen.progress import track

WORKERS = min(8, os.cpu_count() or 1)  # Pillow decodes outside Python's lock
LISTED = 20  # files named in an error
LOOKED_AT = 1000  # texts at a time
BLAKE = partial(hashlib.blake2b, digest_size=16)


@dataclass(frozen=True)
class Reading:
    """Options for reading image files as pixels.

    Args:
        resize: side to which each image is fitted (bicubic, antialiased; the shorter side, then the centre is cut out).
        recursive: whether images in subfolders count, too.
        skip_unreadable: whether to leave out files that cannot be read, instead of an error.
        mixed_sizes: whether one set may hold images of several sizes, which the embedding then resizes one by one.
        upright: whether to turn images as their EXIF tag says.
    """

    resize: int | None = None
    recursive: bool = False
    skip_unreadable: bool = False
    mixed_sizes: bool = False
    upright: bool = True

    def __post_init__(self) -> None:
        if self.resize is not None and self.resize < 1:
            raise ValueError(f"resize must be at least 1 pixel, got {self.resize}")


class UnreadableFilesError(ValueError):
    def __init__(self, reasons: Sequence[str], total: int) -> None:
        self.reasons, self.total = list(reasons), total
        listed = [*self.reasons[:LISTED], *([f"and {len(reasons) - LISTED} more"] if len(reasons) > LISTED else [])]
        super().__init__(
            f"{len(self.reasons)} of {total} image files cannot be read; --skip_unreadable leaves them out (in Python:"
            " Reading(skip_unreadable=True)):\n  " + "\n  ".join(listed)
        )


class FolderImages:
    """The image files of a folder, in the order of their real paths; their headers are read at once."""

    kind = "images"

    def __init__(self, folder: Path, reading: Reading) -> None:
        self.reading = reading
        # by real path, as torch-fidelity: its KID draws subsets by place
        self.unread = Unread()
        files = sorted(images_below(folder, reading.recursive, self.unread), key=os.path.realpath)
        self.found, self.files = len(files), list[Path]()
        self.sizes: dict[tuple[int, int], str] = {}
        self.grey, self.deep = True, False
        self.suffixes, self.skipped = set[str](), list[str]()
        for file in track(files, f"looking at {folder.name}", len(files), "files"):
            try:
                header = read_header(file, reading.upright, self.unread)
            except ValueError as error:
                self.skipped.append(str(error))
                continue
            self.files.append(file)
            self.grey = self.grey and header.grey
            self.deep = self.deep or header.deep
            self.suffixes.add(file.suffix.lower())
            self.sizes.setdefault((reading.resize, reading.resize) if reading.resize else header.size, str(file))

    def __len__(self) -> int:
        return len(self.files)

    def batches(self, channels: int, batch_size: int) -> Iterator[Tensor]:
        """Images uint8 [n, channels, H, W], each batch of one size."""
        before = len(self.skipped)
        for part in self._read(channels, batch_size):
            images = [image for image in part if isinstance(image, Tensor)]
            self.skipped += [image for image in part if isinstance(image, str)]
            # else what is left is only read to list all broken ones
            if len(self.skipped) == before or self.reading.skip_unreadable:
                yield from (torch.stack(list(run)) for _, run in groupby(images, lambda image: image.shape))
        if len(self.skipped) > before and not self.reading.skip_unreadable:
            raise UnreadableFilesError(self.skipped, self.found)

    def _read(self, channels: int, batch_size: int) -> Iterator[list[Tensor | str]]:
        def read(file: Path) -> Tensor | str:
            try:
                return read_image(file, channels, self.reading.resize, self.reading.upright, Unread())
            except ValueError as error:
                return str(error)

        with ThreadPoolExecutor(WORKERS) as pool:
            coming = [pool.submit(read, file) for file in self.files[:batch_size]]
            for start in range(batch_size, len(self.files) + batch_size, batch_size):
                batch = coming
                # the next batch is read while the caller embeds this one
                coming = [pool.submit(read, file) for file in self.files[start : start + batch_size]]
                yield [image.result() for image in batch]

    def digest(self) -> str:
        digest = BLAKE()
        for file in track(self.files, "hashing", len(self.files), "files"):
            with open_regular(file) as stream:
                digest.update(hashlib.file_digest(stream, BLAKE).digest())
        return digest.hexdigest()


class ArrayImages:
    """The images of one array of an .npz or .npy file, uint8 [N, H, W, C] or [N, C, H, W]; ValueError if neither."""

    kind = "images"

    def __init__(self, path: Path, name: str, header: Header, reading: Reading) -> None:
        self.path, self.name, self.count = path, name, header.shape[0]
        _check_rows(header)
        self.last = channels_last(header.shape)
        height, width, self.colours = header.shape[1:] if self.last else (*header.shape[2:], header.shape[1])
        side = reading.resize
        self.resize = side if side and (side, side) != (height, width) else None
        self.sizes = {(side, side) if side else (height, width): str(path)}
        self.grey, self.deep = self.colours == 1, False
        self.suffixes: set[str] = set()
        self.unread, self.skipped = Unread(), list[str]()

    def __len__(self) -> int:
        return self.count

    def batches(self, channels: int, batch_size: int) -> Iterator[Tensor]:
        """Images uint8 [n, channels, H, W]."""
        for rows in read_rows(self.path, self.name, batch_size):
            rows = (rows if self.last else rows.transpose(0, 2, 3, 1))[..., :3]  # no transparency
            if self.resize or channels < rows.shape[3]:
                yield torch.stack([self._fitted(row, channels) for row in rows])
            else:
                images = torch.from_numpy(rows.transpose(0, 3, 1, 2).copy())  # the file's bytes are read-only
                yield images.expand(-1, channels, -1, -1).contiguous()

    def _fitted(self, row: np.ndarray, channels: int) -> Tensor:
        image: Any = Image.fromarray(np.ascontiguousarray(row[..., 0] if row.shape[2] == 1 else row))
        image = image.convert("RGB" if channels == 3 else "L")
        return to_tensor(fit(image, self.resize) if self.resize else image)

    def digest(self) -> str:
        with open_regular(self.path) as stream:
            return hashlib.file_digest(stream, BLAKE).hexdigest() + self.name


class TextLines:
    """The texts of a file, one a line: whole lines of a .txt file, of a .smi file what comes before the first space."""

    kind = "texts"

    def __init__(self, path: Path) -> None:
        self.path, self.sizes = path, dict[tuple[int, int], str]()
        self.grey, self.deep, self.suffixes = True, False, set[str]()
        self.unread, self.skipped = Unread(), list[str]()
        try:
            lines = read_regular(path).decode().split("\n")
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is not UTF-8 ({error}); convert it") from error
        is_smiles = path.suffix.lower() == ".smi"
        texts = [line.split(maxsplit=1)[0] if is_smiles and line.strip() else line.rstrip("\r") for line in lines]
        self.lines = [(number, text) for number, text in enumerate(texts, 1) if text]
        if not self.lines:
            raise ValueError(f"{path} has no lines of text")

    def __len__(self) -> int:
        return len(self.lines)

    def batches(self, channels: int, batch_size: int) -> Iterator[Tensor]:
        """Tokens int64 [n, T] of the lines."""
        for start in range(0, len(self.lines), batch_size):
            yield encode_all([text for _, text in self.lines[start : start + batch_size]])

    def keep_usable(self, embedding: TextEmbedding) -> None:
        """Leave out the lines that an embedding has no features of, and name them among those skipped."""
        texts = [text for _, text in self.lines]
        kept = (embedding.usable(texts[start : start + LOOKED_AT]) for start in range(0, len(texts), LOOKED_AT))
        good = track(chain.from_iterable(kept), f"looking at {self.path.name}", len(texts), "lines")
        marked = list(zip(self.lines, good))
        where, what = printable(str(self.path)), f"has no features in {embedding.name}"
        self.skipped += [
            f"{where}, line {number}: {printable(text, 40)} {what}" for (number, text), good in marked if not good
        ]
        self.lines = [line for line, good in marked if good]

    def digest(self) -> str:
        digest = BLAKE()
        for _, text in self.lines:
            digest.update(text.encode() + b"\n")
        return digest.hexdigest()


class FloatArrays:
    """Floats as they are: the rows of one array, or the .npy files of a folder, one sample each.

    Args:
        path: a file of arrays, or a folder.
        name: the array of a file.

    Raises:
        ValueError: for arrays of a folder that are no floats, of several shapes, or of three axes, as images have.
    """

    def __init__(self, path: Path, name: str = "") -> None:
        self.path, self.name, self.sizes = path, name, dict[tuple[int, int], str]()
        self.grey, self.deep, self.suffixes = True, False, set[str]()
        self.unread, self.skipped = Unread(), list[str]()
        self.files = [path] if name else sorted(file for file in path.glob("*.npy") if not file.name.startswith("."))
        headers = [read_headers(file)[name or file.stem] for file in self.files]
        for header in headers if name else ():
            _check_rows(header)
        shapes = dict.fromkeys(header.shape if name else (len(self.files), *header.shape) for header in headers)
        self.shape = next(iter(shapes))
        self.kind = RANKS.get(len(self.shape), "arrays")
        if len(shapes) > 1 or any(h.dtype.kind != "f" for h in headers) or self.kind == "images" or 0 in self.shape:
            found = ", ".join(f"{header.dtype} {list(header.shape)}" for header in headers[:3])
            raise ValueError(f"{path}: .npy files are samples if they are floats of one shape, got {found}")

    def __len__(self) -> int:
        return self.shape[0]

    def batches(self, channels: int, batch_size: int) -> Iterator[Tensor]:
        """Floats float32 [n, ...]; ValueError for NaN or infinity."""
        starts = range(0, len(self.files), batch_size)
        parts = ([read_npz(file)[file.stem] for file in self.files[start : start + batch_size]] for start in starts)
        for rows in read_rows(self.path, self.name, batch_size) if self.name else map(np.stack, parts):
            if not np.isfinite(rows).all():
                raise ValueError(f"{self.path}: {self.kind} hold NaN or infinity")
            yield torch.from_numpy(rows.astype(np.float32))

    def digest(self) -> str:
        digest = BLAKE(f"{self.name} {self.shape}".encode())
        for file in self.files:
            with open_regular(file) as stream:
                digest.update(hashlib.file_digest(stream, BLAKE).digest())
        return digest.hexdigest()


Images = FolderImages | ArrayImages | TextLines | FloatArrays


def read_rows(path: str | Path, name: str, batch_size: int) -> Iterator[np.ndarray]:
    """The rows of one array, `batch_size` at a time; np.load would read 10 GB of 50,000 images at once."""
    with open_archive(path, ARRAYS) as archive:
        member, header = open_array(archive, name)
        _check_rows(header)
        row = math.prod(header.shape[1:]) * header.dtype.itemsize
        with member:
            for start in range(0, header.shape[0], batch_size):
                count = min(batch_size, header.shape[0] - start)
                data = member.read(count * row)
                if len(data) < count * row:
                    raise ValueError(f"it ends after {start} of {header.shape[0]} rows")
                yield np.frombuffer(data, header.dtype).reshape(count, *header.shape[1:])


def _check_rows(header: Header) -> None:
    if header.dtype.hasobject or header.fortran:  # whose images are nowhere in one piece
        raise ValueError("its array is of Python objects, or column-major; store it with np.ascontiguousarray")


def channels_last(shape: tuple[int, ...]) -> bool:
    """Whether images of this shape [N, ., ., .] have their channels last; ValueError if they are nowhere."""
    if 0 not in shape[1:]:
        if shape[3] in (1, 3, 4):
            return True
        if shape[1] in (1, 3):
            return False
    raise ValueError(
        f"shape {list(shape)} is neither [N, H, W, C] with 1, 3 or 4 channels nor [N, C, H, W] with 1 or 3"
    )
