"""Networks from the pickles of NVIDIA's StyleGAN2-ADA (arXiv 2006.06676), read without running anything in them.

Such a file holds its networks' source code, which the official loader runs, and tensors that torch reads by unpickling
without limits. Here the code is dropped unread and `fedgen.io.restricted_pickle` builds dictionaries, lists and
numbers: each of the twelve names that such files use stands for a check written here, and any other is refused.

Each tensor's storage is what `torch.save` wrote before it wrote zip archives, the same since torch 1.7: five pickles
back to back (a magic number; version 1001; the writer's machine; the storage's persistent id; a list of its key), the
number of elements as int64, and the elements, little-endian.
"""

import io
import math
import os
import re
import struct
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedgen.io.files import in_bytes
from fedgen.io.regular_files import open_regular
from fedgen.io.restricted_pickle import BINARY_OPCODES, NUMBER_NAMES, Function, Name, NotAllowedError, short, unpickle
from fedgen.io.torch_files import MAGIC, STORAGE_DTYPES, VERSION, StorageId, StorageType, storage_id
from fedgen.models.require import require

_STORAGE_OPCODES = BINARY_OPCODES - {"REDUCE", "BUILD"} | {"BINPERSID"}
_MOST_STORAGE_OPCODES = 100  # of one of the five pickles; torch writes at most 32
_TYPES: Mapping[tuple[str, str], Name] = {
    ("torch", f"{name}Storage"): StorageType(STORAGE_DTYPES[name])
    for name in ("Half", "Float", "Double", "Byte", "Char", "Short", "Int", "Long")
}


@dataclass(frozen=True, eq=False)
class Storage:
    """Elements [n] of one storage, little-endian, over the bytes that were read."""

    elements: np.ndarray


def read_storage(payload: Any) -> Storage:
    """The storage in the bytes that `torch.storage._load_from_bytes` would be called with."""
    if type(payload) is not bytes or not payload.startswith(MAGIC):
        raise ValueError("a tensor's data are not a storage as torch writes it into a pickle")
    stream = io.BytesIO(payload)
    _, version, machine, found, keys = (
        unpickle(stream, _TYPES, _STORAGE_OPCODES, (str,), _MOST_STORAGE_OPCODES, persistent=storage_id)
        for _ in range(5)
    )
    if type(version) is not int or version != VERSION or type(machine) is not dict:
        raise ValueError(f"a storage is of version {short(version)}, not {VERSION}")
    if machine.get("protocol_version") != VERSION or machine.get("little_endian") is not True:
        raise ValueError("a storage was not written by a little-endian machine")
    require(isinstance(found, StorageId), "a tensor's data are something other than one storage")
    if type(keys) is not list or len(keys) != 1 or type(keys[0]) is not str or keys[0] != found.key:
        raise ValueError("a storage's data are listed under another key than its own")
    dtype = torch.empty(0, dtype=found.dtype).numpy().dtype.newbyteorder("<")
    start, size = stream.tell() + 8, found.numel * dtype.itemsize
    if len(payload) - start != size:
        raise ValueError(f"a storage has {max(len(payload) - start, 0)} bytes of data, not {size}")
    if payload[start - 8 : start] != struct.pack("<q", found.numel):
        raise ValueError("a storage's data are of another number of elements than the storage")
    return Storage(np.frombuffer(payload, np.uint8)[start:].view(dtype))


def view_storage(storage: Any, offset: Any, size: Any, stride: Any) -> Tensor:
    """A contiguous tensor of shape `size` on the CPU, copied out of a storage that has no fewer elements."""
    require(isinstance(storage, Storage), "a tensor has no storage")
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


_OPCODES = BINARY_OPCODES | {"NEWOBJ", "EMPTY_SET", "ADDITEMS"}
_MOST_OPCODES = 500_000  # a file of 1024 x 1024 pixels has about 50,000
_MOST_PARTS = 50_000  # tensors, modules and settings together; those files have about 1,000
_DEEPEST = 16
_VERSION = 6  # of the way in which the classes pickle themselves

_AGAIN = "nothing in it was run. Get it again from its publisher"
_WANTED = "give a network pickle (.pkl) of stylegan2-ada-pytorch"


@dataclass(frozen=True)
class OfficialNetwork:
    """One network of an official pickle."""

    class_name: str  # "Generator" or "Discriminator", unless somebody changed the code
    settings: dict[str, Any]  # the arguments that it was made with, complete
    state: dict[str, Tensor]  # parameters and buffers as its state_dict has them; contiguous, on the CPU


@dataclass(frozen=True)
class OfficialPickle:
    """The contents of an official network pickle."""

    generator: OfficialNetwork | None
    discriminator: OfficialNetwork | None
    generator_ema: OfficialNetwork | None
    augment_p: float | None  # that the adaptive augmentation had reached
    training_set: dict[str, Any] | None  # the data set's arguments; None if converted from TensorFlow


def read_official_pickle(path: str | Path, max_bytes: int = 4 * 2**30) -> OfficialPickle:
    """The networks of an official pickle of StyleGAN2-ADA, protocols 2 to 5; ValueError for any other file."""
    # memory peaks at about three times the file; what it says of gradients, hooks and metadata is ignored
    data = _read_bytes(Path(path), max_bytes)
    try:
        _refuse_other_formats(data)
        return _read(data)
    except _WrongKindError as error:
        raise ValueError(f"{path} {error}") from error
    # A damaged stream may provoke any exception, and running out of memory or stack is an answer of the file's too.
    except Exception as error:
        reason = str(error) or type(error).__name__
        raise ValueError(f"{path} is no network pickle of StyleGAN2-ADA, or damaged ({reason}); {_AGAIN}") from error


class _WrongKindError(ValueError):
    """Another kind of file: "is ...; what to do"."""


def _read_bytes(path: Path, max_bytes: int) -> bytes:
    if not path.exists():
        raise FileNotFoundError(f"there is no network pickle {path}")
    if not path.is_file():
        raise ValueError(f"{path} is a folder or device; {_WANTED}")
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > max_bytes:
            raise ValueError(
                f"{path} has {in_bytes(size)}, more than max_bytes={max_bytes}; if it is a network pickle that you "
                "trust to be this large, raise max_bytes"
            )
        return file.read(size)


def _refuse_other_formats(data: bytes) -> None:
    """Names the formats that networks are passed around in, and what to do with each."""
    if data.startswith(b"PK\x03\x04"):
        raise _WrongKindError(_describe_zip(data))
    if data.startswith(MAGIC):
        raise _WrongKindError(f"is a checkpoint that torch.save wrote, of weights without their settings; {_WANTED}")
    if len(data) > 8 and int.from_bytes(data[:8], "little") <= len(data) - 8 and data[8:9] == b"{":
        raise _WrongKindError(f"is a safetensors file, of weights without their settings; {_WANTED}")
    if data.startswith(b"\x1f\x8b"):
        raise _WrongKindError("is compressed by gzip; decompress it first")
    if data.startswith(b"version https://git-lfs"):
        raise _WrongKindError("is a pointer of Git LFS to the file; fetch the file with `git lfs pull`")
    if data.lstrip()[:1] == b"<":
        raise _WrongKindError("is a web page, not the file; download the file that the page leads to")
    if not data:
        raise _WrongKindError("is empty; get it again from its publisher")
    if data[0] != 0x80 or not 2 <= int.from_bytes(data[1:2]) <= 5:
        raise _WrongKindError(f"is no pickle of protocol 2 to 5; {_WANTED}")


def _describe_zip(data: bytes) -> str:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            names = {name.partition("/")[2] or name for name in archive.namelist()}
    except Exception:  # zipfile's own errors, and any other for a crafted directory
        names = set()
    if "constants.pkl" in names or any(name.startswith("code/") for name in names):
        return f"is a TorchScript archive, which holds programs; {_WANTED}"
    if "data.pkl" in names:
        return f"is a checkpoint that torch.save or Lightning wrote, not a pickle of whole networks; {_WANTED}"
    return f"is a zip archive; unpack it, and {_WANTED}"


def _read(data: bytes) -> OfficialPickle:
    stream = io.BytesIO(data)
    try:
        found = unpickle(stream, _make_names(len(data)), _OPCODES, key_types=(str,), max_opcodes=_MOST_OPCODES)
    except NotAllowedError as error:
        if error.module.split(".")[:2] == ["dnnlib", "tflib"]:
            raise _WrongKindError(
                "is a network pickle of the TensorFlow era (dnnlib.tflib.network.Network), which only legacy.py of "
                "NVIDIA's stylegan2-ada-pytorch converts; convert it with that, and give what it writes"
            ) from error
        raise
    require(not stream.read(1), "there are data behind its end")
    require(type(found) is dict and {"G", "D", "G_ema"} <= found.keys(), "it does not hold G, D and G_ema")
    require(any(found[name] is not None for name in ("G", "D", "G_ema")), "it holds no network")
    walk = _Walk()
    training_set = found.get("training_set_kwargs")
    return OfficialPickle(
        walk.network(found["G"], "G"),
        walk.network(found["D"], "D"),
        walk.network(found["G_ema"], "G_ema"),
        walk.augment_p(found.get("augment_pipe")),
        None if training_set is None else walk.settings(training_set, "training_set_kwargs"),
    )


class _Persistent:
    """A module as it was pickled: the name of its class and its attributes. Its source code is not kept."""

    __slots__ = ("attributes", "class_name")

    def __init__(self, meta: Any) -> None:
        require(type(meta) is dict, "it holds an object that is not of a persistent class")
        kind, version, name, state = (meta.get(key) for key in ("type", "version", "class_name", "state"))
        if type(kind) is not str or kind != "class" or type(name) is not str or type(state) is not dict:
            raise ValueError("it holds an object that is not of a persistent class")
        if type(version) is not int or version != _VERSION:
            raise ValueError(f"its classes pickle themselves in version {short(version)}, not {_VERSION}")
        self.class_name: str = name
        self.attributes: dict[str, Any] = state


class _Mapping(Name):
    """Stands for dnnlib's EasyDict and collections.OrderedDict: a dictionary, filled by later opcodes."""

    __slots__ = ()

    def call(self, *arguments: Any) -> dict[str, Any]:
        require(not arguments, "a dictionary is made of something")
        return {}

    new = call


def _make_names(max_bytes: int) -> Mapping[tuple[str, str], Name]:
    """Everything that an official pickle may name; storages that tensors are copied from hold at most `max_bytes`."""
    left = max_bytes

    def rebuild_tensor(
        storage: Any, offset: Any, size: Any, stride: Any, requires_grad: Any, hooks: Any, metadata: Any = None
    ) -> Tensor:
        nonlocal left
        left -= storage.elements.nbytes if isinstance(storage, Storage) else 0
        require(left >= 0, "its tensors hold more than the file does")
        return view_storage(storage, offset, size, stride)

    mapping, as_set = _Mapping(), Function(_make_set, items=Any)
    return {
        **NUMBER_NAMES,
        ("torch_utils.persistence", "_reconstruct_persistent_obj"): Function(_Persistent, meta=Any),
        ("torch.storage", "_load_from_bytes"): Function(read_storage, payload=Any),
        ("torch._utils", "_rebuild_tensor_v2"): Function(rebuild_tensor, storage=Any),
        ("torch._utils", "_rebuild_parameter"): Function(_rebuild_parameter, tensor=Any),
        ("dnnlib.util", "EasyDict"): mapping,
        ("collections", "OrderedDict"): mapping,
        ("builtins", "set"): as_set,
        ("__builtin__", "set"): as_set,
    }


def _rebuild_parameter(tensor: Any, requires_grad: Any, hooks: Any) -> Tensor:
    require(isinstance(tensor, Tensor), "a parameter is no tensor")
    return tensor


def _make_set(items: Any) -> set[str]:
    if type(items) is not list or len(items) > 100 or not all(type(item) is str for item in items):
        raise ValueError("a set holds something other than a few names")
    return set(items)


class _Walk:
    """From what a pickle holds, maybe in circles, to plain results of limited depth and number of parts."""

    def __init__(self) -> None:
        self.left = _MOST_PARTS

    def network(self, value: Any, name: str) -> OfficialNetwork | None:
        if value is None:
            return None
        require(isinstance(value, _Persistent), f"{name} is no network")
        arguments = value.attributes.get("_init_args")
        require(type(arguments) is tuple and not arguments, f"{name} was made with arguments without names")
        settings = self.settings(value.attributes.get("_init_kwargs"), f"{name}'s _init_kwargs")
        return OfficialNetwork(value.class_name, settings, self.state(value))

    def augment_p(self, pipe: Any) -> float | None:
        if pipe is None:
            return None
        p = self.state(pipe).get("p") if isinstance(pipe, _Persistent) else None
        if p is None or p.numel() != 1 or not p.isfinite().all():
            raise ValueError("its augment_pipe has no probability p")
        return float(p)

    def state(self, module: _Persistent) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        self._collect(module, "", found)
        return found

    def _collect(self, module: _Persistent, prefix: str, found: dict[str, Tensor]) -> None:
        """Adds a module's parameters, buffers and then children, in the order of torch's state_dict."""
        require(prefix.count(".") <= _DEEPEST, "its modules are nested too deeply")
        left_out = module.attributes.get("_non_persistent_buffers_set")
        buffers = self._items(module, "_buffers")
        if type(left_out) is set:
            buffers = {name: tensor for name, tensor in buffers.items() if name not in left_out}
        for name, tensor in [*self._items(module, "_parameters").items(), *buffers.items()]:
            if not isinstance(tensor, Tensor) or prefix + name in found:
                raise ValueError(f"{short(prefix + name)} is no tensor, or there are two")
            found[prefix + name] = tensor
        for name, child in self._items(module, "_modules").items():
            if not isinstance(child, _Persistent):
                raise ValueError(f"{short(prefix + name)} is no module")
            self._collect(child, f"{prefix}{name}.", found)

    def _items(self, module: _Persistent, kind: str) -> dict[str, Any]:
        """Named parts of a module, without those that are None."""
        items: Any = module.attributes.get(kind)
        require(type(items) is dict, f"a module has no {kind}")
        for name in items:
            self._count()
            if not re.fullmatch(r"[A-Za-z0-9_]{1,64}", name):
                raise ValueError(f"{short(name)} is no name of a tensor or module")
        return {name: item for name, item in items.items() if item is not None}

    def settings(self, value: Any, name: str) -> dict[str, Any]:
        require(type(value) is dict, f"{name} is no dictionary")
        return {key: self._plain(item, name, 0) for key, item in value.items()}

    def _plain(self, value: Any, name: str, depth: int) -> Any:
        """A copy of a setting: None, a number, text, or a list, tuple or dictionary of such."""
        self._count()
        if depth > _DEEPEST:
            raise ValueError(f"{name} is nested too deeply")
        if value is None or type(value) in (bool, int, float, str):
            return value
        if type(value) in (list, tuple):
            return type(value)(self._plain(item, name, depth + 1) for item in value)
        if type(value) is dict:
            return {key: self._plain(item, name, depth + 1) for key, item in value.items()}
        raise ValueError(f"{name} holds {short(value)}")

    def _count(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise ValueError(f"it unfolds into more than {_MOST_PARTS} parts")
