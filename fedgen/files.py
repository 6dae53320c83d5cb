"""Atomic writers and readers that never execute what they read."""

import json
import os
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np


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


@contextmanager
def atomic_write(path: str | Path) -> Iterator[IO[bytes]]:
    """A binary file that appears under `path` whole or not at all.

    Written to a temporary file in the same folder, flushed to disk and renamed; removed if the block raises. The error
    of a full disk names the path, and comes out too where the writer stumbled over it while it cleaned up.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException as error:
        Path(name).unlink(missing_ok=True)
        # `torch.save` ends its file after a failed write, and raises a RuntimeError about positions
        said = error.__context__ if isinstance(error, RuntimeError) else error
        if isinstance(said, OSError) and said.errno is not None and said.filename is None:
            raise OSError(said.errno, said.strerror, str(path)) from error
        raise
    sync_folder(path.parent)


def remove_unfinished(folder: str | Path, names: str) -> None:
    """Removes what kills left of files that `atomic_write` was writing.

    Args:
        folder: with the files.
        names: of the files, as a pattern; nobody else may be writing one of them.
    """
    for path in Path(folder).glob(f".{names}.*.tmp"):
        path.unlink(missing_ok=True)


def write_json(path: str | Path, value: Any) -> None:
    """Writes a value as indented JSON, atomically."""
    with atomic_write(path) as file:
        file.write((json.dumps(value, indent=2) + "\n").encode())


def require_writable(folder: str | Path) -> Path:
    """The folder, made if needed.

    Raises:
        PermissionError: if a file cannot be made there, before any long work starts.
    """
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        raise PermissionError(f"cannot write in {folder}: {error.strerror}; choose another folder") from error


def read_npz(path: str | Path, names: Sequence[str] | None = None) -> dict[str, np.ndarray]:
    """The arrays of an .npz file, or those of some names; object arrays (pickles) are refused by NumPy.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is not an .npz file, or a damaged one.
    """
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
            return {name: archive[name] for name in (archive.files if names is None else names)}
    # RuntimeError: encrypted archives, and unknown ways of compression
    except (ValueError, EOFError, TypeError, AttributeError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{path} is not an .npz file of plain arrays, or it is damaged ({error})") from error
