"""Files of tensors from strangers: nothing in them runs, and checksums are compared where there are any.

torch's files are zip archives with a checksum for each tensor, which torch.load does not compare. safetensors files
have none; those of this project carry a hash of all that they hold in their metadata.
"""

import io
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fedgen.archives import SIGNATURE, check_archive
from fedgen.files import atomic_write
from fedgen.hashing import hash_tensors

HASH = "content_hash"
TORCH, SAFETENSORS = "a file of torch.save with tensors and plain types alone", "a complete safetensors file"


def read_torch(path: str | Path, map_location: Any = "cpu", content: bytes | None = None) -> Any:
    """What torch.save wrote: tensors and plain types, with `weights_only=True`.

    Args:
        path: the file. One of before torch 1.6 has no checksums; one that was written after
            torch.serialization.set_crc32_options(False) has wrong ones, and is refused.
        map_location: as for torch.load.
        content: of the file, where it has been read, such as a message; then one with checksums alone, and the path
            only names it.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is another file, damaged, or holds objects that would have to be unpickled.
    """
    if content is None:
        with open(path, "rb") as file:
            is_archive = file.read(len(SIGNATURE)) == SIGNATURE
    if content is not None or is_archive:
        check_archive(path, TORCH, content)
    try:
        found = torch.load(
            path if content is None else io.BytesIO(content), map_location=map_location, weights_only=True
        )
    except Exception as error:  # a damaged stream may provoke any
        if names := objects_in(path if content is None else io.BytesIO(content)):
            raise ValueError(
                f"{path} is not {TORCH}: it holds {', '.join(names)}, which are unpickled, and that runs whatever a"
                " file says. Hyperparameters that are objects come to be in checkpoints by save_hyperparameters():"
                " write self.save_hyperparameters(ignore=[their names]) and train anew; of a file that you wrote"
                " yourself, torch.serialization.add_safe_globals allows the classes"
            ) from error
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise ValueError(f"{path} is not {TORCH}, or it is damaged ({reason})") from error
    # of all others torch compares what a tensor spans with what is stored (pytorch/pytorch issue 184652)
    if any(t.layout != torch.strided or t.is_quantized or t.is_meta or t.is_nested for t in tensors_in(found)):
        raise ValueError(f"{path} holds sparse, quantized, nested or empty tensors, which nothing here is made of")
    return found


def objects_in(file: Any) -> list[str]:
    """Classes and functions that reading a file of torch.save would need beside tensors and plain types, at most five.

    Nothing is imported or run to find them.

    Args:
        file: its path, or a stream of it.

    Returns:
        Their dotted names; none of a file that torch reads safely, and of one that is no such file.
    """
    try:
        found = torch.serialization.get_unsafe_globals_in_checkpoint(file)
    except Exception:  # a damaged stream may provoke any: it is told of as damaged
        return []
    names = ["".join(one if one.isprintable() else "?" for one in name)[:100] for name in found]
    return names if len(names) <= 5 else [*names[:4], f"{len(names) - 4} more"]


def tensors_in(value: Any) -> Iterator[Tensor]:
    """All tensors of nested containers."""
    return (part for part in leaves(value) if isinstance(part, Tensor))


def leaves(value: Any) -> Iterator[Any]:
    """What nested containers hold that is none; each is opened once, as they may hold one another in circles."""
    left, seen = [value], set()
    while left:
        part = left.pop()
        if not isinstance(part, Mapping | list | tuple | set):
            yield part
        elif id(part) not in seen:
            seen.add(id(part))
            left.extend(part.values() if isinstance(part, Mapping) else part)


def read_safetensors(path: str | Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of a safetensors file, on the CPU, and its metadata; a hash of `write_safetensors` is compared.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is another file, or damaged.
    """
    with open(path, "rb"):  # what keeps it from being opened is no damage
        pass
    try:
        with safe_open(path, framework="pt") as file:
            metadata, names = file.metadata() or {}, file.keys()  # the file itself is no mapping
            tensors = {name: file.get_tensor(name) for name in names}
    except Exception as error:  # SafetensorError, OSError, and others for types that torch lacks
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
    """A hash (32 hex digits) over named tensors and metadata, in whatever order."""
    others = {key: value for key, value in metadata.items() if key != HASH}
    return hash_tensors(sorted(tensors.items()), json.dumps(others, sort_keys=True))


def check_state(module: nn.Module, state: Mapping[str, Any]) -> None:
    """Refuses what `load_state_dict` would take without a word: other kinds of numbers, and such as are none.

    Names and shapes it compares itself. Buffers may hold infinity, as masks do.

    Args:
        module: that is to take the state.
        state: its tensors by name.

    Raises:
        ValueError: naming the first tensor of another kind, or with a value that no weight has.
    """
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


def is_dense(tensor: Tensor) -> bool:
    """Whether a tensor has a number in memory for each of its elements: views of one number can be of any size."""
    return tensor.numel() * tensor.element_size() <= tensor.untyped_storage().nbytes()


def bytes_of(tensors: Iterable[Tensor]) -> int:
    """Memory of tensors' values, bytes."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def kind_of(tensor: Tensor) -> tuple[bool, bool, bool]:
    """Whether its numbers are floating, complex, or truth values."""
    return tensor.is_floating_point(), tensor.is_complex(), tensor.dtype == torch.bool
