"""A reader of pickled data sets that cannot run anything."""

import io
from pathlib import Path
from typing import Any

import numpy as np

from fedgen.io.regular_files import read_regular
from fedgen.io.restricted_pickle import NUMBER_NAMES, DataType, Function, Name, Unfinished, make_array, unpickle


def read_pickle(path: str | Path) -> Any:
    """Plain data from a pickle of dictionaries, lists, tuples, strings, numbers and numeric NumPy arrays.

    For data sets that are published in this form (CIFAR, downsampled ImageNet). Nothing in the file can run: it
    may name five things of NumPy and codecs, which are replaced by checks, and anything else is refused. Text of
    Python 2 is read as Latin-1; bytes keys of dictionaries become text.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the file is cut short or damaged, or holds anything other than such data.
    """
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
    """Stands for NumPy's function of that name."""
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
