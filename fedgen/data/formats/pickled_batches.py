"""Pickled batches, the form in which CIFAR and the downsampled ImageNet are published, read so that nothing can run."""

import io
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np

from fedgen.io.field_types import conforms
from fedgen.io.regular_files import read_regular
from fedgen.io.restricted_pickle import NUMBER_NAMES, DataType, Function, Name, Unfinished, make_array, unpickle


@dataclass(frozen=True)
class PickledBatch:
    """A dictionary with images in rows, a red, a green and a blue plane each, and lists of labels."""

    path: Path
    contents: dict[str, Any]
    source: str

    @classmethod
    def open(cls, path: Path, source: str) -> "PickledBatch":
        contents = read_pickle(path)
        if not isinstance(contents, dict):
            found = type(contents).__name__
            raise ValueError(f"{path} is not a batch: it must hold a dictionary, not a {found}; get it again: {source}")
        return cls(path, contents, source)

    def images(self, side: int) -> np.ndarray:
        """The images, uint8 [N, 3, side, side]; ValueError if there are none, or of another size."""
        data = self.contents.get("data")
        values = 3 * side**2
        if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != values:
            found = f"{data.dtype} {list(data.shape)}" if isinstance(data, np.ndarray) else type(data).__name__
            raise ValueError(
                f"{self.path} is not a batch of {side} x {side} images: 'data' must be uint8 [N, {values}], "
                f"not {found}; get it again: {self.source}"
            )
        return data.reshape(-1, 3, side, side)

    def labels(self, key: str, first: int, count: int) -> np.ndarray:
        """The labels under a key, int64 [N] in 0 .. count - 1; in the file the first class is number `first`."""
        labels, expected = self.contents.get(key, ()), len(self.contents["data"])
        if not conforms(labels, list[Integral]) or len(labels) != expected:
            raise ValueError(f"{self.path}: '{key}' must be a list of {expected} integers; get it again: {self.source}")
        shifted = np.array(labels, dtype=np.int64) - first
        if len(shifted) and not 0 <= shifted.min() <= shifted.max() < count:
            span = f"{shifted.min() + first} to {shifted.max() + first}"
            allowed = f"{first} to {first + count - 1}"
            raise ValueError(f"{self.path}: '{key}' run from {span}, not {allowed}; get it again: {self.source}")
        return shifted


def read_pickle(path: str | Path) -> Any:
    """Plain data and numeric arrays from a pickle of which nothing can run; ValueError for anything else."""
    # text of Python 2 is read as Latin-1; keys that are bytes become text
    data = read_regular(path)
    try:
        stream = io.BytesIO(data)
        value = unpickle(stream, _ALLOWED)
        if stream.read(1):
            raise ValueError("there are data behind its end")
        return _plain(value, {}, depth=0)
    except Exception as error:
        raise ValueError(
            f"{path} is not a complete pickle of plain data ({error}); it was not loaded. If it was downloaded, get it "
            "again from its publisher"
        ) from error


class _Array(Unfinished):
    """An array in the making: NumPy pickles it empty, to be filled by its state."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = np.empty(0)

    def set_state(self, state: Any) -> None:
        if not isinstance(state, tuple) or len(state) != 5:
            raise ValueError("an array has a state that NumPy does not write")
        _, shape, kind, column_major, raw = state
        self.value = make_array(shape, kind, column_major, raw)


_ARRAY_TYPE = Name()  # numpy.ndarray: only ever an argument


def _reconstruct(kind: Any, shape: Any, code: Any) -> _Array:
    if kind is not _ARRAY_TYPE:
        raise ValueError("only plain NumPy arrays are allowed")
    return _Array()


_ALLOWED: dict[tuple[str, str], Name] = {
    **NUMBER_NAMES,
    ("numpy", "ndarray"): _ARRAY_TYPE,
    **{(f"numpy.{core}.multiarray", "_reconstruct"): Function(_reconstruct) for core in ("core", "_core")},
}


def _plain(value: Any, seen: dict[int, Any], depth: int) -> Any:
    """The value with arrays in the making replaced by arrays; containers are rebuilt, each once."""
    if depth > 16:
        raise ValueError("it is nested too deeply")
    if isinstance(value, _Array):
        return value.value
    if isinstance(value, Name | DataType):
        raise ValueError("it holds a name where data should be")
    if not isinstance(value, dict | list | tuple):
        return value
    if id(value) not in seen:
        if isinstance(value, dict):
            keys = (key.decode("latin1") if isinstance(key, bytes) else key for key in value)
            seen[id(value)] = dict(zip(keys, (_plain(item, seen, depth + 1) for item in value.values())))
        else:
            seen[id(value)] = type(value)(_plain(item, seen, depth + 1) for item in value)
    return seen[id(value)]
