"""Large arrays in .npz files: what they are without reading them, and their rows a batch at a time.

np.load reads an array of an .npz file whole; 50,000 images of 256 x 256 are 10 GB.
"""

import math
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
from numpy.lib import format as npy


@dataclass(frozen=True)
class Header:
    """Shape, dtype and memory order of an array."""

    shape: tuple[int, ...]
    dtype: np.dtype
    fortran: bool

    @property
    def bytes(self) -> int:
        """The size of all elements; unlike NumPy's product, never more than an integer holds."""
        return math.prod(self.shape) * self.dtype.itemsize


def read_headers(path: str | Path) -> dict[str, Header]:
    """The arrays of an .npz file by name, none of them read.

    Raises:
        ValueError: if it is not an .npz file, or one whose arrays are shorter than they say.
    """
    with _explained(path), zipfile.ZipFile(path) as archive:
        headers = {}
        for member in archive.infolist():
            name = member.filename.removesuffix(".npy")
            with archive.open(member) as file:
                headers[name] = header = _read_header(file)
                held = member.file_size - file.tell()
            if not header.dtype.hasobject and held != header.bytes:
                raise ValueError(f"array {name} of shape {list(header.shape)} has {held} bytes, not {header.bytes}")
        return headers


def read_rows(path: str | Path, name: str, batch_size: int) -> Iterator[np.ndarray]:
    """The rows of one array, `batch_size` at a time.

    Raises:
        ValueError: for pickled objects, column-major arrays and damaged files.
    """
    with _explained(path), zipfile.ZipFile(path) as archive, archive.open(f"{name}.npy") as file:
        header = _read_header(file)
        check_rows(header)
        row = math.prod(header.shape[1:]) * header.dtype.itemsize
        for start in range(0, header.shape[0], batch_size):
            count = min(batch_size, header.shape[0] - start)
            data = file.read(count * row)
            if len(data) < count * row:
                raise ValueError(f"it ends after {start} of {header.shape[0]} rows")
            yield np.frombuffer(data, header.dtype).reshape(count, *header.shape[1:])


def check_rows(header: Header) -> None:
    """Nothing, for an array that has its rows one after another; ValueError otherwise."""
    if header.dtype.hasobject or header.fortran:
        raise ValueError("its array is of Python objects, or column-major; store it with np.ascontiguousarray")


def _read_header(file: IO[bytes]) -> Header:
    version = npy.read_magic(file)
    shape, fortran, dtype = npy.read_array_header_1_0(file) if version == (1, 0) else npy.read_array_header_2_0(file)
    return Header(shape, dtype, fortran)


@contextmanager
def _explained(path: str | Path) -> Iterator[None]:
    try:
        yield
    # RuntimeError: encrypted archives, and unknown ways of compression
    except (ValueError, EOFError, KeyError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{path} is not an .npz file of plain arrays, or it is damaged ({error})") from error
