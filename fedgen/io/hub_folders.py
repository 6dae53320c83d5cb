"""Folders of models: a folder here, or a copy of one of the Hugging Face hub; weights are read from it once."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from fedgen.extras import need
from fedgen.io.files import is_file_name, read_json
from fedgen.io.regular_files import open_regular
from fedgen.io.tensor_files import check_state, no_larger_than, read_safetensors

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
    for name, listed in (_shards_of(index) if index.exists() else {path.name: set[str]()}).items():
        part = read_safetensors(folder / name)[0]
        if listed and (others := sorted(listed ^ part.keys())):
            raise ValueError(f"{folder / name} and {index.name} differ in {others[0]!r}; copy the folder again")
        if wrong := next((key for key, value in part.items() if not _is_finite(value)), None):
            raise ValueError(f"{folder / name}: {wrong} holds NaN or infinity, or floats of 8 bits; copy it again")
        state |= part
    return state


def _is_finite(value: Tensor) -> bool:
    return not (value.is_floating_point() and value.element_size() == 1) and bool(value.isfinite().all())


def _shards_of(index: Path) -> dict[str, set[str]]:
    content, shards = read_json(index), dict[str, set[str]]()
    listed = content.get("weight_map") if isinstance(content, dict) else None
    for name, file in listed.items() if isinstance(listed, dict) else ():
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
