"""Zip archives, which .npz files and torch's checkpoints are: opened if their directory is whole, read with checksums.

Python's zipfile compares a member's CRC-32 with its content, but takes a directory that lost entries for a shorter one.
"""

import math
import os
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import IO, cast

import numpy as np
from numpy.lib import format as npy

from fedgen.foreign_text import printable
from fedgen.io.field_types import fault
from fedgen.io.regular_files import check_unpacked, open_regular

_STORED, _DEFLATED = zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED
_EXPANSION = 1032  # bytes that DEFLATE makes of one, at most
_FOLDER = 0x10  # of MS-DOS
_END, _END_64 = b"PK\5\6", b"PK\6\6"
_LONGEST_END = 2**16 + 256  # a comment, and the fixed parts
# RuntimeError: encrypted archives, and unknown ways of compression
_DAMAGE = (OSError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error, struct.error)


@dataclass(frozen=True)
class Header:
    shape: tuple[int, ...]
    dtype: np.dtype
    fortran: bool

    @property
    def bytes(self) -> int:
        """The size of all elements; unlike NumPy's product, never more than an integer holds."""
        return math.prod(self.shape) * self.dtype.itemsize


class DamageError(ValueError):
    """A file is not what it should be, and the message names it."""


@contextmanager
def open_archive(path: str | Path, wanted: str, file: IO[bytes] | None = None) -> Iterator[zipfile.ZipFile]:
    """A zip archive (or .npy, as one member) for reading; DamageError, also while it is open, if it is damaged."""
    # Its directory is complete and promises no more than the file can hold. The path only names a `file` that is open
    # already; `wanted` says what it should be, for messages: "an .npz file".
    with open_regular(path) if file is None else nullcontext(file) as opened:
        try:
            if file is None and Path(path).suffix.lower() == ".npy":
                wanted, names = wanted.replace(".npz", ".npy"), [f"{Path(path).stem}.npy"]
                info = SimpleNamespace(file_size=os.fstat(opened.fileno()).st_size)
                one = SimpleNamespace(namelist=lambda: names, getinfo=lambda _: info, open=lambda _: opened)
                yield cast(zipfile.ZipFile, one)
                return
            with zipfile.ZipFile(opened) as archive:
                _check_directory(opened, archive)
                yield archive
        except _DAMAGE as error:
            reason = str(error) or type(error).__name__
            raise DamageError(f"{path} is not {wanted}, or it is damaged ({reason})") from error


def open_array(archive: zipfile.ZipFile, name: str) -> tuple[IO[bytes], Header]:
    """The member that holds an array in NumPy's format, open behind its header, and the header."""
    if f"{name}.npy" not in archive.namelist():
        raise ValueError(f"it has no array {name}, but {', '.join(map(printable, array_names(archive))) or 'none'}")
    member = archive.open(f"{name}.npy")
    return member, read_header(member, archive.getinfo(f"{name}.npy").file_size, name)


def read_header(file: IO[bytes], size: int, name: str) -> Header:
    """The header of an array of `size` bytes in NumPy's format; the file, open at its start, then stands behind it."""
    try:
        version = npy.read_magic(file)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, fortran, dtype = read(file)
    except Exception as error:  # NumPy parses it as Python's literals, which may fail in any way
        raise ValueError(f"array {name} has a damaged header ({error})") from error
    if wrong := fault(shape, tuple[int, ...]):
        raise ValueError(f"array {name} has a shape that {wrong}")
    header = Header(shape, dtype, fortran)
    held = size - file.tell()
    if not header.dtype.hasobject and held != header.bytes:
        raise ValueError(f"array {name} of shape {list(header.shape)} has {held} bytes, not {header.bytes}")
    return header


def array_names(archive: zipfile.ZipFile) -> list[str]:
    """The names of an archive's arrays; ValueError if it holds anything else."""
    others = [name for name in archive.namelist() if not name.endswith(".npy")]
    if others:
        raise ValueError(f"it holds {printable(others[0], 60)}, which is no array")
    return [name.removesuffix(".npy") for name in archive.namelist()]


def _check_directory(file: IO[bytes], archive: zipfile.ZipFile) -> None:
    members = archive.infolist()
    size, declared = file.seek(0, os.SEEK_END), _declared_members(file)
    if len(members) != declared or len(set(archive.namelist())) != declared:
        raise ValueError(f"its directory lists {len(members)} parts and should list {declared} different ones")
    check_unpacked(sum(member.file_size for member in members), size)
    for member in members:
        name = printable(member.filename, 60)
        most = {_STORED: member.compress_size, _DEFLATED: _EXPANSION * member.compress_size}
        if member.compress_type not in most:
            raise ValueError(f"its part {name} is compressed otherwise than by DEFLATE")
        if member.external_attr & _FOLDER or member.filename.endswith("/"):
            raise ValueError(f"its part {name} is marked as a folder")
        if member.file_size > most[member.compress_type]:
            raise ValueError(f"its part {name} cannot have {member.file_size} bytes")
    if sum(member.compress_size for member in members) > size:
        raise ValueError(f"its parts need more than its {size} bytes")


def _declared_members(file: IO[bytes]) -> int:
    """Return how many members the end of an archive says that there are."""
    file.seek(max(0, file.seek(0, os.SEEK_END) - _LONGEST_END))
    tail = file.read()
    end = tail.rfind(_END)
    count = int.from_bytes(tail[end + 10 : end + 12], "little")
    if count < 0xFFFF:
        return count
    start = tail.rfind(_END_64, 0, end)
    return int.from_bytes(tail[start + 32 : start + 40], "little")
