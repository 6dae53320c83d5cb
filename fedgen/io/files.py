"""Atomic writers and readers that never execute what they read."""

import csv
import fcntl
import json
import math
import os
import re
import secrets
import stat
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO, TextIOWrapper
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any, cast

import numpy as np
import yaml
from numpy.lib import format as npy

from fedgen.foreign_text import printable
from fedgen.io.field_types import fault
from fedgen.io.regular_files import check_unpacked, open_regular, read_regular
from fedgen.io.restricted_pickle import check_key, check_unfolding

ARRAYS = "an .npz file of plain arrays"
MOST_PARTS = 20_000  # of a YAML file, a second of PyYAML; a recipe has some hundred
LONGEST_YAML = 2**20  # characters; PyYAML reads some 100,000 a second
_DEEPEST = 100  # mappings and lists within each other
_ROW, _CELL = 100, 50  # bytes that Python takes for a row of a table and for each field
_TEXTS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)  # of JSON
_LONGEST_NUMBER = 400  # characters; YAML's numbers of base 60 take the square of their length
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
_OTHER_BASE = re.compile(r"[-+]?(0[0-9_xb]+$|0x|0b|[0-9_]+:)")  # octal 010, 0x10, 0b10, and 1:30 of base 60


def in_bytes(number: int) -> str:
    """A size with its unit: "16 B", "17.4 kB", "143 MB"."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= 0.9995 * size:  # the next smaller unit would print 1e+03
            return f"{number / size:.3g} {unit}"
    return f"{number} B"


def sync_folder(folder: Path) -> None:
    """Flushes a folder's entries, so that a rename survives a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _locked_file(path: Path) -> tuple[int, str]:
    """An open temporary file beside a path, and its name, locked before any `remove_unfinished` has taken it away."""
    while True:
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
        with suppress(OSError):  # not every network file system has locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.path.exists(name):
            return descriptor, name
        os.close(descriptor)


@contextmanager
def atomic_write(path: str | Path) -> Iterator[IO[bytes]]:
    """A binary file that appears under `path`, flushed to disk, whole or not at all; a full disk's error names it."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = _locked_file(path)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            os.chmod(name, 0o644)
            os.replace(name, path)  # while the lock is held
    except BaseException as error:
        Path(name).unlink(missing_ok=True)
        # `torch.save` ends its file after a failed write, and raises a RuntimeError about positions
        said = error.__context__ if isinstance(error, RuntimeError) else error
        if isinstance(said, OSError) and said.errno is not None and said.filename is None:
            raise OSError(said.errno, said.strerror, str(path)) from error
        raise
    sync_folder(path.parent)


def write_once(path: str | Path, content: bytes) -> bytes:
    """Return a file's contents, written whole if there are none; of several writers one has its way."""
    path = Path(path)
    if path.exists():
        return read_regular(path)
    own = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    with atomic_write(own) as file:
        file.write(content)
    try:
        os.link(own, path)
    except OSError:
        if not path.exists():
            os.replace(own, path)
    finally:
        own.unlink(missing_ok=True)
    sync_folder(path.parent)
    return read_regular(path)


def remove_unfinished(folder: str | Path) -> None:
    """Removes what kills left of files of `atomic_write` in a folder and its folders, unless somebody has a lock."""
    drawn = "[a-z0-9_]" * 8  # as `mkstemp` draws them
    for path in (path for where in (".", "*") for path in Path(folder).glob(f"{where}/.*.{drawn}.tmp")):
        with suppress(OSError):
            descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                state = os.fstat(descriptor)
                if stat.S_ISREG(state.st_mode) and state.st_uid == os.geteuid():
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    path.unlink()
            finally:
                os.close(descriptor)


def write_json(path: str | Path, value: Any) -> None:
    with atomic_write(path) as file:
        file.write((json.dumps(value, indent=2) + "\n").encode())


def read_json(path: str | Path) -> Any:
    """The value in a JSON file (UTF-8); ValueError if it is no JSON, or damaged."""
    content = read_regular(path)
    try:
        return parse_json(content)
    except ValueError as error:  # also bytes that are no UTF-8
        raise ValueError(f"{path} is no JSON, or it is damaged ({error})") from error


def parse_json(content: str | bytes) -> Any:
    """The value of a JSON text (UTF-8); ValueError for none, a key given twice, and too deep or long ones."""
    # NaN and Infinity are numbers, as fedgen's own files hold them: where one must be finite or whole, its reader asks
    text = content if isinstance(content, str) else content.decode()
    depth = 0
    for mark in re.findall(r"[][{}]", _TEXTS.sub("", text)) if text.count("[") + text.count("{") > _DEEPEST else ():
        depth += 1 if mark in "[{" else -1
        if depth > _DEEPEST:
            raise ValueError(f"it is nested more than {_DEEPEST} deep")
    return _JSON.decode(text)


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):  # its keys are in the order of the pairs, up to the first that is there again
        name = next(name for (name, _), first in zip(pairs, [*found, None]) if name != first)
        raise ValueError(f"{printable(name, 80)!r} is given twice, and one of the two would not count")
    return found


_JSON = json.JSONDecoder(object_pairs_hook=_without_doubles)


def read_yaml(path: str | Path) -> Any:
    """The plain value in a YAML file (UTF-8); ValueError for tags, damage, and what unfolds into too much."""
    return yaml_in(read_regular(path), path)


def yaml_in(content: bytes, path: str | Path) -> Any:
    try:
        return parse_yaml(content.decode())
    except Exception as error:  # PyYAML lets through what numbers and dates of a file raise
        reason = printable(" ".join(str(error).split()), 400)
        raise ValueError(f"{path} is no YAML, or it is damaged ({reason})") from error


def parse_yaml(text: str) -> Any:
    """The plain value of a YAML text, whose parts are counted before any is made; its dates may raise any error."""
    if len(text) > LONGEST_YAML:
        raise ValueError(f"it has {len(text)} characters, more than {LONGEST_YAML}")
    loader = _CountingLoader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        check_unfolding(node, _nodes_in, MOST_PARTS, deepest=_DEEPEST)
        return loader.construct_document(node)
    finally:
        loader.dispose()


class _CountingLoader(yaml.SafeLoader):
    """PyYAML's safe loader, which stops at too many parts, and at keys and numbers that take time out of proportion."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.left = MOST_PARTS

    def compose_node(self, parent: Any, index: Any) -> Any:
        self.left -= 1
        if self.left < 0:
            raise ValueError(f"it has more than {MOST_PARTS} parts")
        return super().compose_node(parent, index)

    def compose_mapping_node(self, anchor: Any) -> Any:
        node = super().compose_mapping_node(anchor)
        given: set[tuple[str, Any]] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and (key.tag, key.value) in given:
                line = key.start_mark.line + 1
                raise ValueError(
                    f"line {line} gives {printable(key.value, 80)!r} again, and one of the two would not count"
                )
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                given.add((key.tag, key.value))
        return node

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        is_number = isinstance(node, yaml.ScalarNode) and node.tag in _NUMBERS
        if is_number and len(node.value) > _LONGEST_NUMBER:
            raise ValueError(f"a number has {len(node.value)} digits")
        made = super().construct_object(node, deep)
        if is_number and _OTHER_BASE.match(node.value):
            where = f"line {node.start_mark.line + 1} has {node.value}"
            raise ValueError(f"{where}, which YAML reads as {made}; write decimal digits, or text in quotes")
        return made

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        for place, (key, _) in enumerate(node.value if isinstance(node, yaml.MappingNode) else ()):
            if not isinstance(key, yaml.ScalarNode):
                raise ValueError("a list or a mapping is a key")
            if key.tag in _NUMBERS:
                check_key(self.construct_object(key), beside=place)
        return super().construct_mapping(node, deep)


def _nodes_in(node: Any) -> list[Any]:
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair]
    return node.value if isinstance(node, yaml.SequenceNode) else []


def read_csv(path: str | Path, comment: str | None = None) -> tuple[list[str], list[tuple[int, dict[str, str]]]]:
    """The columns and the rows, each with its line, of a CSV file in UTF-8 with a header; ValueError for others."""
    content = read_regular(path)
    lines = max(content.count(b"\n"), content.count(b"\r"))
    check_unpacked(_ROW * lines + _CELL * (lines + content.count(b",")), len(content), str(path))
    try:
        with TextIOWrapper(BytesIO(content), encoding="utf-8-sig", newline="") as file:
            kept = (line for line in file if comment is None or not line.startswith(comment))
            reader = csv.reader(kept, strict=True)  # a quote that is never closed would swallow rows
            header = next(reader, [])
            if len(set(header)) != len(header):
                raise ValueError(f"{path} names a column twice: {', '.join(header)}")
            rows = []
            for row in filter(None, reader):
                if len(row) != len(header):
                    count = f"has not the {len(header)} fields that the first line names"
                    raise ValueError(f"{path}, line {reader.line_num} {count}")
                rows.append((reader.line_num, dict(zip(header, row))))
    except (csv.Error, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is no CSV file in UTF-8, or it is damaged ({error})") from error
    return header, rows


@lru_cache(maxsize=64)  # the records of a checkpoint follow one another
def is_file_name(text: str) -> bool:
    """Whether a text from a file names a file beside it, and leads nowhere else: one line without folders."""
    return text not in ("", ".", "..") and not set(text) & set("/\\\0") and printable(text, 255) == text


def require_writable(folder: str | Path) -> Path:
    """The folder, made if needed; PermissionError if a file cannot be made there, before any long work starts."""
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        raise PermissionError(f"cannot write in {folder}: {error.strerror}; choose another folder") from error


# ---- zip archives, which .npz files and torch's checkpoints are ----

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
    if others := [name for name in archive.namelist() if not name.endswith(".npy")]:
        raise ValueError(f"it holds {printable(others[0], 60)}, which is no array")
    return [name.removesuffix(".npy") for name in archive.namelist()]


def _check_directory(file: IO[bytes], archive: zipfile.ZipFile) -> None:
    # zipfile compares a member's CRC-32 with its content, but takes a directory that lost entries for a shorter one
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
    file.seek(max(0, file.seek(0, os.SEEK_END) - _LONGEST_END))
    tail = file.read()
    end = tail.rfind(_END)
    count = int.from_bytes(tail[end + 10 : end + 12], "little")
    if count < 0xFFFF:
        return count
    start = tail.rfind(_END_64, 0, end)
    return int.from_bytes(tail[start + 32 : start + 40], "little")


def read_headers(path: str | Path) -> dict[str, Header]:
    """The arrays of an .npz or .npy file by name, none of them read; ValueError if it is none, or a damaged one."""
    with open_archive(path, ARRAYS) as archive:
        headers = {}
        for name in array_names(archive):
            member, headers[name] = open_array(archive, name)
            member.close()
        return headers


def read_npz(path: str | Path, names: Sequence[str] | None = None) -> dict[str, np.ndarray]:
    """The arrays of an .npz or .npy file, or those of some names; object arrays (pickles) are refused by NumPy."""
    found = {}
    with open_archive(path, ARRAYS) as archive:
        for name in array_names(archive) if names is None else names:
            with open_array(archive, name)[0] as member:
                member.seek(0)
                found[name] = npy.read_array(member, allow_pickle=False)
    return found


def write_npz(file: IO[bytes], arrays: Mapping[str, np.ndarray]) -> None:
    np.savez(file, **dict[str, Any](arrays))
