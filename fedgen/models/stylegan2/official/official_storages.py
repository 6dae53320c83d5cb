"""Tensors of StyleGAN2-ADA's network pickles, from the storages that torch wrote into them as bytes.

Each storage is what `torch.save` wrote before it wrote zip archives, the same since torch 1.7: five pickles back to
back (a magic number; version 1001; the writer's machine; the storage's persistent id; a list of its key), the number of
elements as int64, and the elements, little-endian. torch reads that by unpickling; here only the data are read.
"""

import io
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedgen.io.restricted_pickle import BINARY_OPCODES, Name, short, unpickle
from fedgen.io.torch_files import MAGIC

_VERSION = 1001
_OPCODES = BINARY_OPCODES - {"REDUCE", "BUILD"} | {"BINPERSID"}
_MOST_OPCODES = 100  # of one of the five pickles; torch writes at most 32


class _StorageType(Name):
    """Stands for a class such as torch.FloatStorage: only ever part of a persistent id."""

    __slots__ = ("dtype",)

    def __init__(self, code: str) -> None:
        self.dtype = np.dtype(code)


_TYPES: Mapping[tuple[str, str], Name] = {
    ("torch", f"{name}Storage"): _StorageType(code)
    for name, code in {
        "Half": "<f2",
        "Float": "<f4",
        "Double": "<f8",
        "Byte": "u1",
        "Char": "i1",
        "Short": "<i2",
        "Int": "<i4",
        "Long": "<i8",
    }.items()
}


@dataclass(frozen=True, eq=False)
class Storage:
    """Elements [n] of one storage, little-endian, over the bytes that were read."""

    elements: np.ndarray


@dataclass(frozen=True, eq=False)
class _Id:
    kind: _StorageType
    key: str
    numel: int


def read_storage(payload: Any) -> Storage:
    """The storage in the bytes that `torch.storage._load_from_bytes` would be called with.

    Raises:
        ValueError: if they are anything else, or more or fewer bytes than the storage says.
    """
    if type(payload) is not bytes or not payload.startswith(MAGIC):
        raise ValueError("a tensor's data are not a storage as torch writes it into a pickle")
    stream = io.BytesIO(payload)
    _, version, machine, found, keys = (
        unpickle(stream, _TYPES, _OPCODES, key_types=(str,), max_opcodes=_MOST_OPCODES, persistent=_read_id)
        for _ in range(5)
    )
    if type(version) is not int or version != _VERSION or type(machine) is not dict:
        raise ValueError(f"a storage is of version {short(version)}, not {_VERSION}")
    if machine.get("protocol_version") != _VERSION or machine.get("little_endian") is not True:
        raise ValueError("a storage was not written by a little-endian machine")
    if not isinstance(found, _Id):
        raise ValueError("a tensor's data are something other than one storage")
    if type(keys) is not list or len(keys) != 1 or type(keys[0]) is not str or keys[0] != found.key:
        raise ValueError("a storage's data are listed under another key than its own")
    start = stream.tell() + 8
    size = found.numel * found.kind.dtype.itemsize
    if len(payload) - start != size:
        raise ValueError(f"a storage has {max(len(payload) - start, 0)} bytes of data, not {size}")
    if payload[start - 8 : start] != struct.pack("<q", found.numel):
        raise ValueError("a storage's data are of another number of elements than the storage")
    return Storage(np.frombuffer(payload, np.uint8)[start:].view(found.kind.dtype))


def _read_id(value: Any) -> _Id:
    """A storage's persistent id: ("storage", type, key, location, number of elements, None)."""
    if type(value) is not tuple or len(value) != 6:
        raise ValueError("a storage has a persistent id that torch does not write")
    word, kind, key, location, numel, view = value
    if type(word) is not str or word != "storage" or not isinstance(kind, _StorageType) or view is not None:
        raise ValueError("a storage has a persistent id that torch does not write")
    if type(key) is not str or type(location) is not str or type(numel) is not int or not 0 <= numel < 2**60:
        raise ValueError("a storage has a persistent id that torch does not write")
    return _Id(kind, key, numel)


def view_storage(storage: Any, offset: Any, size: Any, stride: Any) -> Tensor:
    """A contiguous tensor of shape `size` on the CPU, copied out of a storage.

    Args:
        storage: from `read_storage`.
        offset: of the first element.
        size: of each dimension; in all at most as many elements as the storage has, so that no stride of zero makes
            much of little.
        stride: of each dimension, in elements; of an overlap nothing but the first rule is asked.

    Raises:
        ValueError: if it reaches beyond the storage, or is no geometry.
    """
    if not isinstance(storage, Storage):
        raise ValueError("a tensor has no storage")
    if type(size) is not tuple or type(stride) is not tuple or len(size) != len(stride) or len(size) > 8:
        raise ValueError("a tensor has a shape that torch does not write")
    if not all(type(number) is int and 0 <= number < 2**60 for number in (offset, *size, *stride)):
        raise ValueError("a tensor has a negative, huge or odd number in its shape, strides or offset")
    numel = math.prod(size)
    last = offset + sum((n - 1) * step for n, step in zip(size, stride)) if numel else offset - 1
    if numel > len(storage.elements) or last >= len(storage.elements):
        raise ValueError(
            f"a tensor of shape {list(size)} reaches beyond its storage of {len(storage.elements)} elements"
        )
    native = storage.elements.astype(storage.elements.dtype.newbyteorder("="))  # always a copy, which torch may own
    return torch.from_numpy(native).as_strided(size, stride, offset).clone(memory_format=torch.contiguous_format)
