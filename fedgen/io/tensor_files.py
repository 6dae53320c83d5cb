"""Files of tensors from strangers: nothing in them runs, and checksums are compared where there are any.

torch's files are zip archives with a checksum for each tensor. safetensors files have none; those of this project carry
a hash of all that they hold in their metadata. Each file is opened once, and what was checked is what is used.
"""

import io
import json
import os
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO, Any

import torch
from safetensors.torch import load, save
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_parameter_registration_hook,
)
from torch.nn.parameter import is_lazy

from fedgen.foreign_text import listed
from fedgen.io.field_types import fault
from fedgen.io.files import DamageError, atomic_write, open_archive, parse_json
from fedgen.io.hashing import hash_tensors
from fedgen.io.regular_files import check_unpacked, open_regular, read_regular
from fedgen.io.torch_files import MAGIC, ObjectsError, foreign_names, leaves, read_archive, read_old_file

HASH = "content_hash"
TORCH, SAFETENSORS = "a file of torch.save with tensors and plain types alone", "a complete safetensors file"

# a model may make and wrap a network several times, and keep buffers that are not saved, such as filters and schedules
_PARTS_OF_ONE, _MORE_PARTS, _MOST_IN_BUFFER = 4, 100, 2**20


def read_torch(path: str | Path, file: IO[bytes] | None = None) -> Any:
    """Read what torch.save wrote: CPU tensors and plain types; ValueError for objects, damage, or huge views."""
    # The path only names a `file` that is open already. A file of before torch 1.6 has no checksums; one written after
    # torch.serialization.set_crc32_options(False) has wrong ones, and is refused.
    with open_regular(path) if file is None else file as opened:
        try:
            is_old = opened.read(len(MAGIC)) == MAGIC
            size = opened.seek(0, os.SEEK_END)
            opened.seek(0)
            if is_old:
                value = read_old_file(opened.read())
            else:
                with open_archive(path, TORCH, opened) as archive:
                    value = read_archive(archive)
            check_unpacked(bytes_of(tensors_in(value)), size)  # views of few numbers can be of any size
        except ObjectsError as error:
            raise ValueError(
                f"{path} is not {TORCH}: it holds {listed(error.names)}, which are unpickled, and that runs whatever a"
                " file says. Hyperparameters that are objects come to be in checkpoints by save_hyperparameters():"
                " write self.save_hyperparameters(ignore=[their names]) and train anew; of a file that you wrote"
                " yourself, torch.serialization.add_safe_globals allows the classes"
            ) from error
        except DamageError:
            raise
        except Exception as error:  # a damaged stream may provoke any
            reason = str(error) or type(error).__name__
            raise ValueError(f"{path} is not {TORCH}, or it is damaged ({reason})") from error
    return value


def objects_in(value: Any) -> list[str]:
    """Classes and functions that reading a saved value would need beside tensors and plain types, by dotted names."""
    torch.save(value, file := io.BytesIO())
    with zipfile.ZipFile(file) as archive:
        return foreign_names(archive.read(next(name for name in archive.namelist() if name.endswith("/data.pkl"))))


def tensors_in(value: Any) -> Iterator[Tensor]:
    return (part for part in leaves(value) if isinstance(part, Tensor))


def read_safetensors(path: str | Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of a safetensors file, on the CPU, and its metadata; a hash of `write_safetensors` is compared."""
    content = read_regular(path)
    try:
        tensors, header = load(content), parse_json(content[8 : 8 + int.from_bytes(content[:8], "little")])
        metadata: dict[str, str] = header.get("__metadata__") or {}
        if wrong := fault(metadata, dict[str, str]):
            raise ValueError(f"its metadata {wrong}")
    except Exception as error:  # SafetensorError, and others for types that torch lacks
        raise ValueError(f"{path} is not {SAFETENSORS}, or it is damaged ({error})") from error
    if not is_whole(tensors, metadata):
        raise ValueError(f"{path} is damaged: it holds something other than what was written")
    return tensors, metadata


def write_safetensors(path: str | Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Writes a safetensors file, atomically, with a hash of tensors and metadata among the latter."""
    kept = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with atomic_write(path) as file:
        file.write(save(kept, with_hash(kept, metadata)))


def with_hash(tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata (what JSON holds) with a hash of them and of the named tensors."""
    return {**metadata, HASH: _content_hash(tensors, metadata)}


def is_whole(tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> bool:
    """Whether they are what `with_hash` was given; of before there were hashes nothing is known, and that is taken."""
    return HASH not in metadata or metadata[HASH] == _content_hash(tensors, metadata)


def _content_hash(tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> str:
    others = {key: value for key, value in metadata.items() if key != HASH}
    return hash_tensors(sorted(tensors.items()), json.dumps(others, sort_keys=True))


def check_state(module: nn.Module, state: Mapping[str, Any]) -> None:
    """Refuses what `load_state_dict` would take without a word: other kinds of numbers, NaN, infinite weights."""
    parameters = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    for name, own in module.state_dict().items():
        value = state.get(name)
        if not isinstance(own, Tensor) or is_lazy(own) or name not in state:
            continue
        if not isinstance(value, Tensor) or kind_of(value) != kind_of(own):
            found = str(value.dtype) if isinstance(value, Tensor) else type(value).__name__
            raise ValueError(f"{name} is {found} there, and {own.dtype} in the network")
        if value.shape != own.shape:
            continue
        if value.isnan().any() or (name in parameters and value.isinf().any()):
            raise ValueError(f"{name} holds NaN or infinity; its training diverged, or somebody changed it")


def fill_empty(module: nn.Module, state: Mapping[str, Any]) -> None:
    """Gives buffers that are None the form that they have in a state by name: `load_state_dict` takes no others."""
    own = module.state_dict()
    device = next((value.device for value in own.values() if isinstance(value, Tensor)), None)
    for name in state.keys() - own.keys():
        with suppress(AttributeError):  # of what is no buffer
            if module.get_buffer(name) is None and isinstance(state[name], Tensor):
                parent, _, key = name.rpartition(".")
                setattr(module.get_submodule(parent), key, torch.empty_like(state[name], device=device))


@contextmanager
def no_larger_than(state: Mapping[str, Any]) -> Iterator[None]:
    """Stops networks that are made while it lasts from outgrowing the weights that they are made for."""
    # settings from a file may ask for more memory or layers than there are; what they ask for is known only as it grows
    sizes = [value.numel() for value in state.values() if isinstance(value, Tensor)]
    largest, left = max(sizes, default=0), _PARTS_OF_ONE * len(sizes) + _MORE_PARTS

    def count(module: nn.Module, name: str, tensor: Tensor | None, most: int) -> None:
        nonlocal left
        left -= 1
        if left < 0 or (tensor is not None and tensor.numel() > most):
            raise ValueError("its settings are of a larger network than its weights")

    hooks = (
        register_module_parameter_registration_hook(partial(count, most=largest)),
        register_module_buffer_registration_hook(partial(count, most=max(largest, _MOST_IN_BUFFER))),
    )
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def is_dense(tensor: Tensor) -> bool:
    """Whether a tensor has a number in memory for each of its elements: views of one number can be of any size."""
    return tensor.numel() * tensor.element_size() <= tensor.untyped_storage().nbytes()


def bytes_of(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def kind_of(tensor: Tensor) -> tuple[bool, bool, bool]:
    """Return the kind of a tensor's numbers: floating, complex, or truth values."""
    return tensor.is_floating_point(), tensor.is_complex(), tensor.dtype == torch.bool
