"""Files of tensors from strangers: nothing in them runs, and checksums are compared where there are any.

torch's files are zip archives with a checksum for each tensor. safetensors files have none; those of this project carry
a hash of all that they hold in their metadata. Each file is opened once, and what was checked is what is used.
"""

import hashlib
import io
import json
import os
import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any

import torch
from safetensors.torch import load, save
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_parameter_registration_hook,
)
from torch.nn.parameter import is_lazy

from fedgen.extras import need
from fedgen.foreign_text import listed
from fedgen.io.field_types import fault
from fedgen.io.files import DamageError, atomic_write, is_file_name, open_archive, parse_json, read_json
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


# ---- hashes of tensors by their bytes ----


def hash_tensors(tensors: Iterable[tuple[str, Tensor]], text: str = "") -> str:
    """A hash (32 hex digits) over a text and the names, dtypes, shapes and bytes of tensors, in their order."""
    digest = hashlib.blake2b(text.encode(), digest_size=16)
    for name, tensor in tensors:
        digest.update(_header(name, tensor.dtype, tensor.shape))
        digest.update(_bytes(tensor))
    return digest.hexdigest()


def hash_chunks(name: str, dtype: torch.dtype, shape: Sequence[int], chunks: Iterable[Tensor], text: str = "") -> str:
    """`hash_tensors` of one tensor that comes in chunks along its first axis and need not be in memory at once."""
    digest = hashlib.blake2b(text.encode(), digest_size=16)
    digest.update(_header(name, dtype, shape))
    for chunk in chunks:
        digest.update(_bytes(chunk))
    return digest.hexdigest()


def _header(name: str, dtype: torch.dtype, shape: Sequence[int]) -> bytes:
    return f"\n{name} {dtype} {list(shape)}\n".encode()


def _bytes(tensor: Tensor) -> memoryview:
    # Bytes, not numbers: NumPy has no bfloat16. Flattened first, since a scalar cannot be viewed.
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


# ---- folders of models: a folder here, or a copy of one of the Hugging Face hub ----

READ = ["*.json", "*.safetensors"]  # all that is fetched: neither code nor pickles
SETTINGS = ("*.json", "*.txt", "*.model")  # of models, tokenizers and image processors, as their libraries read them
_LARGEST_SETTINGS = 2**26  # bytes of one of them; the tokenizers of many languages have 35 MB
_LARGEST_NUMBER = 2**20  # in a model's settings
_OLD_NAMES = {"query": "to_q", "key": "to_k", "value": "to_v", "proj_attn": "to_out.0"}  # of attention in diffusers
_OLD_NAME = re.compile(rf"(?<=\.)({'|'.join(_OLD_NAMES)})(?=\.(?:weight|bias)$)")


def find_folder(
    name: str | Path, argument: str = "pretrained", revision: str | None = None, also: Sequence[str] = ()
) -> Path:
    """The folder itself, or where the hub's files of owner/model are kept after fetching `READ`, and `also` of text."""
    folder = Path(name)
    if folder.is_dir():
        return folder
    if folder.exists() or not re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", str(name)):
        raise FileNotFoundError(f"{argument}={str(name)!r} is no folder, and no name on the hub (owner/model)")
    hub = need("huggingface_hub", "hub", "a model on the hub")
    options = {} if revision is None else {"revision": revision}
    try:
        return Path(hub.snapshot_download(str(name), allow_patterns=[*READ, *also], **options))
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise FileNotFoundError(
            f"{argument}={str(name)!r} is no folder here, and the hub did not give a model of that name: {reason}"
        ) from error


def read_weights(folder: Path, stem: str, kind: str) -> dict[str, Tensor]:
    """The finite weights by name of STEM.safetensors, or of the shards of its index; `kind` could convert pickles."""
    path, index = folder / f"{stem}.safetensors", folder / f"{stem}.safetensors.index.json"
    if path.exists() and index.exists():
        raise ValueError(f"{folder} holds both {path.name} and {index.name}; remove the one that is not meant")
    if not path.exists() and not index.exists() and any(folder.glob("*.bin")):
        raise ValueError(
            f"{folder} holds its weights as .bin, which is a pickle: reading it can run anybody's code. If you trust"
            f" its maker, convert it once: {kind}.from_pretrained({str(folder)!r}, use_safetensors=False)"
            ".save_pretrained(new_folder)"
        )
    if not path.exists() and not index.exists():
        raise FileNotFoundError(f"{folder} has no {path.name}; copy the folder again, whole")
    state: dict[str, Tensor] = {}
    for name, expected in (_shards_of(index) if index.exists() else {path.name: set[str]()}).items():
        part = read_safetensors(folder / name)[0]
        if expected and (others := sorted(expected ^ part.keys())):
            raise ValueError(f"{folder / name} and {index.name} differ in {others[0]!r}; copy the folder again")
        for key, value in part.items():
            if (value.is_floating_point() and value.element_size() == 1) or not value.isfinite().all():
                raise ValueError(f"{folder / name}: {key} holds NaN or infinity, or floats of 8 bits; copy it again")
        state |= part
    return state


def _shards_of(index: Path) -> dict[str, set[str]]:
    content, shards = read_json(index), dict[str, set[str]]()
    weights = content.get("weight_map") if isinstance(content, dict) else None
    for name, file in weights.items() if isinstance(weights, dict) else ():
        if not (isinstance(file, str) and is_file_name(file) and file.endswith(".safetensors")):
            raise ValueError(f"{index} lists {file!r:.100}, which is no file of safetensors beside it")
        shards.setdefault(file, set()).add(name)
    if not shards:
        raise ValueError(f"{index} is damaged: it lists no weights; copy the folder again")
    return shards


def build_from(kind: Any, config: Mapping[str, Any], state: dict[str, Tensor]) -> Any:
    """A network of diffusers, in eval mode, with these weights; ValueError before it is allocated if it has others."""
    for name in list(state):  # as diffusers wrote attention before 0.12
        new = _OLD_NAME.sub(lambda found: _OLD_NAMES[found[0]], name)
        if new not in state:
            state[new] = state.pop(name)
    with no_larger_than(state):
        with torch.device("meta"):
            empty = kind.from_config(config)
        own = empty.state_dict()
        for name in [*own, *state]:
            if name not in own or name not in state:
                raise ValueError(f"{name} is {'unexpected' if name in state else 'missing'}")
            if own[name].shape != state[name].shape:
                raise ValueError(f"{name} is {list(state[name].shape)} there, not {list(own[name].shape)}")
        check_state(empty, state)
        body = kind.from_config(config)
    body.load_state_dict(state)
    return body.eval()


def load_transformer(kind: Any, config: Any, source: str | Path, exact: bool) -> Any:
    """A network of transformers, in eval mode, with the checked weights of a folder; `exact` allows no others."""
    options: dict[str, Any] = {"use_safetensors": True, "trust_remote_code": False}
    if (folder := Path(source)).is_dir():
        state = read_weights(folder, "model", kind.__name__)
        with no_larger_than(state), torch.device("meta"):
            empty = kind.from_config(config) if kind.__name__ == "AutoModel" else kind(config)
        own = dict(empty.named_parameters())
        if sum(value.numel() for value in own.values()) > sum(value.numel() for value in state.values()):
            first = next((name for name in own if name not in state or state[name].shape != own[name].shape), "one")
            raise ValueError(f"{source}: the settings are of a larger network than the weights: {first} is missing")
        check_state(empty, state)
        kind, source, options = type(empty), "", {"config": config, "state_dict": state}
    model, info = kind.from_pretrained(source or None, output_loading_info=True, **options)
    for key in ("missing_keys", "mismatched_keys", "error_msgs", *(["unexpected_keys"] if exact else [])):
        if found := sorted(map(str, info.get(key) or ())):
            raise ValueError(f"{source or folder}: its weights are not those of its settings: {key} {found[0]}")
    check_state(model, model.state_dict())
    return model


@contextmanager
def copied_settings(source: str | Path) -> Iterator[str | Path]:
    """A folder with copies of another's settings, regular files of bounded size; a name on the hub as it is."""
    if not Path(source).is_dir():
        yield source
        return
    with TemporaryDirectory() as place:
        for path in sorted({path for pattern in SETTINGS for path in Path(source).glob(pattern)}):
            with open_regular(path) as file:
                content = file.read(_LARGEST_SETTINGS + 1)
            if len(content) > _LARGEST_SETTINGS:
                raise ValueError(f"{path} is larger than {_LARGEST_SETTINGS} bytes, which no settings are")
            Path(place, path.name).write_bytes(content)
        if (path := Path(place, "config.json")).is_file():
            _check_settings(read_json(path), f"{source}/{path.name}")
        yield place


def _check_settings(value: Any, path: str) -> None:
    """Raises ValueError for settings of a model that take memory before its layers are made, or name code to fetch."""
    for key, part in value.items() if isinstance(value, dict) else [("", part) for part in value]:
        if isinstance(part, dict | list):
            _check_settings(part, path)
        elif type(part) is int and abs(part) > _LARGEST_NUMBER:
            raise ValueError(f"{path}: {key or 'one'}={part} is no size or number of layers")
        elif key.endswith("_implementation") and part not in (None, "eager", "sdpa"):
            raise ValueError(f"{path}: {key}={part!r:.100} may run code of others; remove it")
