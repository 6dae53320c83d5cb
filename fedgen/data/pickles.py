"""A reader of pickled data sets that cannot run anything."""

import io
import math
import pickle
import pickletools
from pathlib import Path
from typing import Any

import numpy as np

# The opcodes of data as NumPy and Python write them; none makes an object other than by calling what GLOBAL names.
_OPCODES = """
PROTO FRAME STOP MARK POP POP_MARK NONE NEWTRUE NEWFALSE INT BININT BININT1 BININT2 LONG LONG1 FLOAT BINFLOAT
STRING BINSTRING SHORT_BINSTRING BINBYTES SHORT_BINBYTES BINBYTES8 UNICODE BINUNICODE SHORT_BINUNICODE BINUNICODE8
EMPTY_LIST LIST APPEND APPENDS EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 EMPTY_DICT DICT SETITEM SETITEMS
GET BINGET LONG_BINGET PUT BINPUT LONG_BINPUT MEMOIZE GLOBAL STACK_GLOBAL REDUCE BUILD
"""


def read_pickle(path: str | Path) -> Any:
    """Plain data from a pickle of dictionaries, lists, tuples, strings, numbers and numeric NumPy arrays.

    For data sets that are published in this form (CIFAR, downsampled ImageNet). Nothing in the file can run: it
    may name five things of NumPy and codecs, which are replaced by checks, and anything else is refused. Text of
    Python 2 is read as Latin-1; bytes keys of dictionaries become text.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the file is cut short or damaged, or holds anything other than such data.
    """
    data = Path(path).read_bytes()
    try:
        _check_opcodes(data)
        return _plain(_DataUnpickler(io.BytesIO(data), encoding="latin1").load(), {}, depth=0)
    # The unpickler may raise any exception on a damaged stream (documentation of pickle.UnpicklingError).
    except Exception as error:
        raise ValueError(
            f"{path} is not a complete pickle of plain data ({error}); it was not loaded. If it was downloaded, get it "
            "again from its publisher"
        ) from error


def _check_opcodes(data: bytes) -> None:
    """Refuses opcodes outside the list, and memo slots that would make the unpickler allocate out of proportion."""
    allowed = frozenset(_OPCODES.split())
    for opcode, argument, position in pickletools.genops(data):
        if opcode.name not in allowed:
            raise ValueError(f"opcode {opcode.name} at byte {position} is not allowed")
        if opcode.name in ("PUT", "BINPUT", "LONG_BINPUT") and int(argument or 0) > len(data):
            raise ValueError(f"memo slot {argument} at byte {position} is out of range")


class _DataUnpickler(pickle.Unpickler):
    """An unpickler that resolves names by table alone and never imports."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise ValueError(f"it names {module}.{name}, which is not allowed")
        return _ALLOWED[module, name]

    def persistent_load(self, pid: Any) -> Any:
        raise ValueError("persistent ids are not allowed")


class _Name:
    """Something a pickle may name but not change; without attributes, so that BUILD has nothing to set."""

    __slots__ = ()

    def __setstate__(self, state: Any) -> None:
        raise ValueError("names cannot be given a state")


class _ArrayType(_Name):
    """Stands for numpy.ndarray: only ever an argument."""

    __slots__ = ()


class _Reconstruct(_Name):
    """Stands for NumPy's `_reconstruct`: an empty array, to be filled by its state."""

    __slots__ = ()

    def __call__(self, kind: Any, shape: Any, code: Any) -> "_ArrayStub":
        if not isinstance(kind, _ArrayType):
            raise ValueError("only plain NumPy arrays are allowed")
        return _ArrayStub()


class _DataType(_Name):
    """Stands for numpy.dtype: booleans, integers and floats of 1 to 8 bytes."""

    __slots__ = ()

    def __call__(self, code: Any, *options: Any) -> "_DataTypeStub":
        if code not in _CODES:
            raise ValueError(f"arrays of dtype {code!r} are not allowed")
        return _DataTypeStub(code)


class _Scalar(_Name):
    """Stands for NumPy's `scalar`: a Python number."""

    __slots__ = ()

    def __call__(self, kind: Any, raw: Any) -> Any:
        return _array((), kind, False, raw).item()


class _Encode(_Name):
    """Stands for `codecs.encode`, in which Python 3 wraps bytes for protocol 2."""

    __slots__ = ()

    def __call__(self, text: Any, encoding: Any = None) -> bytes:
        if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
            raise ValueError(f"encoding {encoding!r} is not allowed")
        return text.encode("latin1")


class _DataTypeStub:
    """A dtype in the making: code such as "u1", and byte order."""

    __slots__ = ("code", "order")

    def __init__(self, code: str) -> None:
        self.code, self.order = code, "|"

    def __setstate__(self, state: Any) -> None:
        if not isinstance(state, tuple) or len(state) < 5 or state[1] not in ("<", ">", "|", "="):
            raise ValueError("a dtype has a state that NumPy does not write")
        if any(part is not None for part in state[2:5]):
            raise ValueError("arrays with fields are not allowed")
        self.order = state[1]


class _ArrayStub:
    """An array in the making."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = np.empty(0)

    def __setstate__(self, state: Any) -> None:
        if not isinstance(state, tuple) or len(state) != 5:
            raise ValueError("an array has a state that NumPy does not write")
        _, shape, kind, column_major, raw = state
        self.value = _array(shape, kind, column_major, raw)


_CODES = ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")
_ALLOWED: dict[tuple[str, str], _Name] = {
    ("numpy", "ndarray"): _ArrayType(),
    ("numpy", "dtype"): _DataType(),
    ("_codecs", "encode"): _Encode(),
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _Reconstruct() for core in ("core", "_core")},
    **{(f"numpy.{core}.multiarray", "scalar"): _Scalar() for core in ("core", "_core")},
}


def _array(shape: Any, kind: Any, column_major: Any, raw: Any) -> np.ndarray:
    """An array over a copy of raw bytes, once shape, dtype and length agree."""
    if not isinstance(kind, _DataTypeStub):
        raise ValueError("an array has no dtype")
    if not isinstance(shape, tuple) or not all(type(side) is int and side >= 0 for side in shape) or len(shape) > 32:
        raise ValueError(f"an array has the shape {shape!r}")
    raw = raw.encode("latin1") if isinstance(raw, str) else raw
    dtype = np.dtype(("" if kind.order == "|" else kind.order) + kind.code)
    size = math.prod(shape) * dtype.itemsize
    if not isinstance(raw, bytes) or len(raw) != size:
        raise ValueError(f"an array of shape {shape} and dtype {dtype} needs {size} bytes of data")
    return np.frombuffer(raw, dtype).reshape(shape, order="F" if column_major else "C").copy(order="K")


def _plain(value: Any, seen: dict[int, Any], depth: int) -> Any:
    """The value with stubs replaced by arrays; containers are rebuilt, each once."""
    if depth > 16:
        raise ValueError("it is nested too deeply")
    if isinstance(value, _ArrayStub):
        return value.value
    if isinstance(value, _Name | _DataTypeStub):
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
