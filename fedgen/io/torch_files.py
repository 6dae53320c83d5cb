"""Files of torch.save, read without torch.load: every part of them by the project's own machine.

`torch.load(weights_only=True)` runs no code that a file names, but takes its word for much else: it hashes keys of any
depth, makes arrays of any length, sets attributes of parameters, gives out memory that nothing was written to, and
reads a zip archive otherwise than Python, which compares checksums. Here `data.pkl` is interpreted by
`fedgen.io.restricted_pickle`, tensors are made over the parts that Python's zipfile gave out with their checksums, and
nothing else reads the file.

The format is torch's since 1.6: a zip archive with `data.pkl` (protocol 2), `byteorder`, and `data/<key>` for each
storage. Before, it was four pickles (a magic number; version 1001; the writer's machine; the value), a fifth with the
storages' keys, and for each of them its number of elements (int64) and the elements.
"""

import io
import math
import pickletools
import struct
import sys
import zipfile
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import IO, Annotated, Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from fedgen.foreign_text import printable
from fedgen.io.field_types import Fits, Length, conforms
from fedgen.io.restricted_pickle import (
    DATA_OPCODES,
    ENCODE,
    Function,
    Name,
    Natural,
    NotAllowedError,
    add_items,
    check_unfolding,
    short,
    unpickle,
)

MAGIC = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19\x2e"
"""The first pickle: what every file of the old `torch.save` starts with."""

VERSION = 1001
_OPCODES = DATA_OPCODES | {"EMPTY_SET", "ADDITEMS", "NEWOBJ", "BINPERSID"}
_DEEPEST = 100  # containers within containers; Lightning's and torch's own reach eight
_MOST_DIMENSIONS = 64  # of torch's tensors
_PLAIN = (type(None), bool, int, float, complex, str, bytes, bytearray)
_LEAVES = frozenset({*_PLAIN, Tensor, nn.Parameter, torch.dtype, torch.device, torch.layout})
_Sizes = tuple[Natural, ...]
_Empty = Annotated[dict[Any, Any] | None, Fits(lambda value: not value, "empty dictionary")]
_METADATA = Annotated[dict[Literal["_metadata"], Mapping[Any, Mapping[Any, Any]]], Length(1, 1)]


class ObjectsError(Exception):
    """A file holds objects that would have to be unpickled: the dotted names of what it needs for that."""

    def __init__(self, names: list[str]) -> None:
        super().__init__(f"it names {', '.join(names)}")
        self.names = names


@dataclass(eq=False)
class _Storage:
    """Bytes of one storage, and the type of its elements as a tensor's description names it."""

    content: torch.UntypedStorage
    dtype: torch.dtype


@dataclass(eq=False)
class StorageType(Name):
    """Stands for a class such as torch.FloatStorage: only ever part of a persistent id."""

    dtype: torch.dtype


@dataclass(eq=False)
class _Allowed(Name):
    """A class or function that the user allowed by `torch.serialization.add_safe_globals`."""

    found: Any

    def call(self, *arguments: Any) -> Any:
        return self.found(*arguments)

    def new(self, *arguments: Any) -> Any:
        return self.found.__new__(self.found, *arguments)


# ---- the two forms of a file ----


def read_archive(archive: zipfile.ZipFile) -> Any:
    """The value in a zip archive of torch.save, from `open_archive`; ObjectsError or ValueError for anything else."""
    root, sizes = _parts(archive)
    if "byteorder" in sizes and (order := archive.read(f"{root}/byteorder")) != sys.byteorder.encode():
        raise ValueError(f"it was written by a machine of byte order {printable(repr(order), 20)}")
    storages: dict[str, torch.UntypedStorage] = {}

    def find(value: Any) -> _Storage:
        kind, key, numel = storage_id(value, _ID)
        size = sizes.get(f"data/{key}")
        if size is None or not 0 <= size - numel * kind.itemsize < kind.itemsize:
            raise ValueError(f"its part data/{printable(key, 20)} has {size} bytes, not {numel} x {kind.itemsize}")
        if key not in storages:
            with archive.open(f"{root}/data/{key}") as part:
                storages[key] = _read_storage(part, size)
        return _Storage(storages[key], kind)

    return _read_value(io.BytesIO(archive.read(f"{root}/data.pkl")), find, last=True)


def read_old_file(content: bytes) -> Any:
    """The value in a file of torch.save from before 1.6, without checksums, whole and with nothing behind it."""
    stream = io.BytesIO(content)
    _, version, machine = (unpickle(stream, {}, key_types=(str,), max_opcodes=100) for _ in range(3))
    if type(version) is not int or version != VERSION or type(machine) is not dict:
        raise ValueError(f"it is of version {short(version)}, not {VERSION}")
    if machine.get("little_endian") is not (sys.byteorder == "little"):
        raise ValueError("it was written by a machine of another byte order")
    storages: dict[str, _Storage] = {}
    left = len(content)

    def find(value: Any) -> _Storage:
        nonlocal left
        kind, key, numel = storage_id(value)
        size = numel * kind.itemsize
        if key not in storages:
            left -= size
            if left < 0:
                raise ValueError("its storages need more bytes than it has")
            storages[key] = _Storage(torch.UntypedStorage(size), kind)
        if (storages[key].content.nbytes(), storages[key].dtype) != (size, kind):
            raise ValueError(f"its storage {printable(key, 20)} is described in two ways")
        return storages[key]

    value = _read_value(stream, find, last=False)
    keys = unpickle(stream, {}, max_opcodes=4 * len(storages) + 100)
    if not conforms(keys, list[str]) or sorted(keys) != sorted(storages):
        raise ValueError("it does not hold just the storages that its tensors need")
    for key in keys:
        found = storages[key]
        size = found.content.nbytes()
        if stream.read(8) != struct.pack("<q", size // found.dtype.itemsize):
            raise ValueError(f"its storage {printable(key, 20)} has another number of elements than its tensors say")
        found.content.copy_(_read_storage(stream, size))
    if stream.read(1):
        raise ValueError("there are data behind its end")
    return value


def foreign_names(pickled: bytes) -> list[str]:
    """Dotted names in a pickle beside the table's, found without importing; of a damaged one those before it."""
    known, found = _names(), []
    try:
        for opcode, argument, _ in pickletools.genops(pickled):
            if opcode.name == "GLOBAL" and tuple(str(argument).split(" ", 1)) not in known:
                found.append(printable(str(argument).replace(" ", "."), 100))
    except Exception:  # it is told of as damaged
        pass
    return sorted(set(found))


def _parts(archive: zipfile.ZipFile) -> tuple[str, dict[str, int]]:
    """The folder that all parts lie in, and the parts' sizes by their names in it."""
    members = archive.infolist()
    roots = {member.filename.partition("/")[0] for member in members}
    root = min(roots, default="")
    sizes = {member.filename.removeprefix(f"{root}/"): member.file_size for member in members}
    if len(roots) != 1 or "data.pkl" not in sizes:
        raise ValueError("it has no part data.pkl in one folder with all others")
    if "constants.pkl" in sizes or any(name.startswith("code/") for name in sizes):
        raise ValueError("it is a TorchScript archive, which holds code; save the state dict as .safetensors")
    packed = [member.filename for member in members if member.compress_type != zipfile.ZIP_STORED]
    if packed:
        raise ValueError(f"its part {printable(packed[0], 60)} is compressed, which torch.save never does")
    return root, sizes


_ID = tuple[Literal["storage"], StorageType, str, str, Natural]
_OLD_ID = tuple[Literal["storage"], StorageType, str, str, Natural, None]


class StorageId(NamedTuple):
    dtype: torch.dtype
    key: str
    numel: int


def storage_id(value: Any, hint: Any = _OLD_ID) -> StorageId:
    """The parts of a persistent id: ("storage", type, key, location, elements), with None behind them in old files."""
    if not conforms(value, hint):
        raise ValueError("a storage has a persistent id that torch does not write")
    _, kind, key, _, numel, *_ = value
    return StorageId(kind.dtype, key, numel)


def _read_storage(part: IO[bytes], size: int) -> torch.UntypedStorage:
    """So many bytes, all of them written; read to the part's end, where zipfile compares the checksum."""
    found = torch.empty(size, dtype=torch.uint8)
    view, place = found.numpy().data, 0
    while place < size and (piece := part.read(min(2**20, size - place))):
        view[place : place + len(piece)] = piece
        place += len(piece)
    if place < size or (isinstance(part, zipfile.ZipExtFile) and part.read(1)):
        raise ValueError(f"a storage has other than its {size} bytes")
    return found.untyped_storage()


# ---- the value ----


def _read_value(stream: io.BytesIO, find: Callable[[Any], _Storage], last: bool) -> Any:
    names = _names()
    kinds = {one.found for one in names.values() if isinstance(one, _Allowed) and isinstance(one.found, type)}
    states: dict[type, Callable[[Any, Any], None]] = {OrderedDict: _set_metadata, **dict.fromkeys(kinds, _set_state)}
    start = stream.tell()
    try:
        value = unpickle(stream, names, _OPCODES, persistent=find, states=states)
    except NotAllowedError as error:
        found = foreign_names(stream.getbuffer()[start:].tobytes())
        raise ObjectsError(found or [printable(f"{error.module}.{error.name}", 100)]) from error
    if last and stream.read(1):
        raise ValueError("there are data behind the end of its value")
    check_unfolding(value, _children, most=1_000_000 + 8 * stream.tell(), deepest=_DEEPEST)
    for part in leaves(value):
        if type(part) not in _LEAVES and type(part) not in kinds:
            raise ValueError("it holds a name, a storage or a part of one where a value should be")
    return value


def _children(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return [*value.values(), *(vars(value).values() if type(value) is OrderedDict else ())]
    return list(value) if isinstance(value, list | tuple | set) else []


def leaves(value: Any) -> Iterator[Any]:
    """Yield what nested containers hold that is none; each is opened once, as they may hold one another in circles."""
    left, seen = [value], set()
    while left:
        part = left.pop()
        if not isinstance(part, Mapping | list | tuple | set):
            yield part
        elif id(part) not in seen:
            seen.add(id(part))
            left.extend(_children(part))


def _set_metadata(target: Any, state: Any) -> None:
    """Take what BUILD gives to a state dict: `_metadata`, the versions of the modules by their names."""
    if not conforms(state, _METADATA):
        raise ValueError("a dictionary has an attribute other than the versions of modules")
    target._metadata = state["_metadata"]


def _set_state(target: Any, state: Any) -> None:
    """Take what BUILD gives to an object of a class that the user allowed, as pickle does it."""
    if hasattr(target, "__setstate__"):
        target.__setstate__(state)
    elif state:
        vars(target).update(state)


def _tensor(
    storage: _Storage,
    offset: Natural,
    size: _Sizes | torch.Size,
    stride: _Sizes,
    grad: bool = False,
    hooks: _Empty = None,
    metadata: _Empty = None,  # of conjugation or sign
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Stands for torch._utils._rebuild_tensor and its v2: a dense tensor over a storage, within it."""
    dtype = dtype or storage.dtype
    if len(size) != len(stride) or len(size) > _MOST_DIMENSIONS:
        raise ValueError("a tensor has a shape that torch does not write")
    held = storage.content.nbytes() // dtype.itemsize
    last = offset + sum((n - 1) * step for n, step in zip(size, stride)) if 0 not in size else -1
    if last >= held or math.prod(size) >= 2**60 or (last < 0 and math.prod(max(n, 1) for n in size) >= 2**60):
        raise ValueError(f"a tensor of shape {list(size)} reaches beyond its storage of {held} elements")
    found = torch.empty(0, dtype=dtype).set_(storage.content, min(offset, held), tuple(size), stride)
    return found.requires_grad_(grad)


_REBUILD = Function(_tensor)


def _tensor_v3(*arguments: Any) -> Any:
    """Stands for torch._utils._rebuild_tensor_v3, for the dtypes that have no storage class."""
    *known, dtype, metadata = arguments if len(arguments) == 8 else (*arguments, None)
    return _REBUILD.call(*known, metadata, dtype)


def _set(items: list | tuple = ()) -> set[Any]:
    found: set[Any] = set()
    add_items(found, items)
    return found


def _bytearray(content: bytes | str = b"", encoding: Literal["latin-1", "latin1"] | None = None) -> bytearray:
    return bytearray(content) if isinstance(content, bytes) else bytearray(content, encoding or "")


_DTYPES = {
    ("torch", name): dtype
    for name, dtype in vars(torch).items()
    if isinstance(dtype, torch.dtype) and not name.startswith(("q", "bits"))
}
STORAGE_DTYPES = {
    "Double": torch.float64,
    "Float": torch.float32,
    "Half": torch.float16,
    "BFloat16": torch.bfloat16,
    "Long": torch.int64,
    "Int": torch.int32,
    "Short": torch.int16,
    "Char": torch.int8,
    "Byte": torch.uint8,
    "Bool": torch.bool,
    "ComplexDouble": torch.complex128,
    "ComplexFloat": torch.complex64,
}
_BUILTINS = {
    "set": Function(_set),
    "complex": Function(complex, real=float, imaginary=float),
    "bytearray": Function(_bytearray),
}
_TABLE: Mapping[tuple[str, str], Any] = {
    **_DTYPES,
    **{("torch", f"{name}Storage"): StorageType(dtype) for name, dtype in STORAGE_DTYPES.items()},
    ("torch.storage", "UntypedStorage"): StorageType(torch.uint8),
    **{("torch._utils", f"_rebuild_tensor{version}"): _REBUILD for version in ("", "_v2")},
    ("torch._utils", "_rebuild_tensor_v3"): Function(_tensor_v3),
    ("torch._utils", "_rebuild_parameter"): Function(
        lambda data, grad, hooks: nn.Parameter(data.detach(), grad), "parameter", data=Tensor, grad=bool, hooks=_Empty
    ),
    ("torch", "Size"): Function(torch.Size, items=_Sizes),
    ("torch", "device"): Function(torch.device, kind=str, index=int),
    ("torch.serialization", "_get_layout"): Function(lambda _: torch.strided, "layout", name=Literal["torch.strided"]),
    ("collections", "OrderedDict"): Function(lambda: OrderedDict()),
    ("collections", "Counter"): Function(Counter, counts=dict[Any, Integral] | None),
    **{(module, name): made for module in ("builtins", "__builtin__") for name, made in _BUILTINS.items()},
    ("_codecs", "encode"): ENCODE,
}
"""Everything that a file may name; storages of quantized tensors, sparse tensors and attributes are not in it."""


def _names() -> dict[tuple[str, str], Any]:
    """The table with what the user allowed by `torch.serialization.add_safe_globals`."""
    allowed: dict[tuple[str, str], Any] = {}
    for one in torch.serialization.get_safe_globals():
        found, name = one if isinstance(one, tuple) else (one, f"{one.__module__}.{one.__qualname__}")
        parts = name.split(".")
        for place in range(1, len(parts)):  # a nested class's name has a dot, too
            allowed[".".join(parts[:place]), ".".join(parts[place:])] = _Allowed(found)
    return {**allowed, **_TABLE}
