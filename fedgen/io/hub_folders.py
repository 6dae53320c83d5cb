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
_OLD_NAMES = {"query": "to_q", "key": "to_k", "value": "to_v", "proj_attn": "to_out.0"}  # of attention in diffusers
_OLD_NAME = re.compile(rf"(?<=\.)({'|'.join(_OLD_NAMES)})(?=\.(?:weight|bias)$)")


def find_folder(
    name: str | Path, argument: str = "pretrained", revision: str | None = None, also: Sequence[str] = ()
) -> Path:
    """The folder itself, or where the hub's files are kept after fetching those that are read.

    Args:
        name: a folder, or owner/model on the hub.
        argument: what it was given as, for messages.
        revision: of the hub's model: a branch, tag or commit.
        also: shell patterns of further files that are fetched, of text.

    Raises:
        FileNotFoundError: if there is neither such a folder nor such a model.
    """
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
    """The weights of a folder by name, on the CPU: of STEM.safetensors, or of all shards that its index lists.

    Args:
        folder: as `save_pretrained` of diffusers or transformers leaves it.
        stem: of the names of its files of weights.
        kind: the class that can convert pickles, for the error.

    Raises:
        FileNotFoundError: if it has no weights.
        OSError: if a file is no regular one.
        ValueError: if they are pickles, damaged, not finite, or not those that the index lists.
    """
    path, index = folder / f"{stem}.safetensors", folder / f"{stem}.safetensors.index.json"
    if path.exists() and index.exists():
        raise ValueError(f"{folder} holds both {path.name} and {index.name}; remove the one that is not meant")
    shards: dict[str, set[str]] = {path.name: set()}
    if index.exists():
        shards = _shards_of(index)
    elif not path.exists() and any(folder.glob("*.bin")):
        raise ValueError(
            f"{folder} holds its weights as .bin, which is a pickle: reading it can run anybody's code. If you trust"
            f" its maker, convert it once: {kind}.from_pretrained({str(folder)!r}, use_safetensors=False)"
            ".save_pretrained(new_folder)"
        )
    elif not path.exists():
        raise FileNotFoundError(f"{folder} has no {path.name}; copy the folder again, whole")
    state: dict[str, Tensor] = {}
    for name, listed in shards.items():
        part = read_safetensors(folder / name)[0]
        if listed and (others := sorted(listed ^ part.keys())):
            raise ValueError(f"{folder / name} and {index.name} differ in {others[0]!r}; copy the folder again")
        if wrong := next((key for key, value in part.items() if not value.isfinite().all()), None):
            raise ValueError(f"{folder / name}: {wrong} holds NaN or infinity; copy the folder again")
        state |= part
    return state


def _shards_of(index: Path) -> dict[str, set[str]]:
    """The names of weights that an index lists, by their files beside it."""
    content = read_json(index)
    listed = content.get("weight_map") if isinstance(content, dict) else None
    shards: dict[str, set[str]] = {}
    for name, file in listed.items() if isinstance(listed, dict) else ():
        if not (isinstance(file, str) and is_file_name(file) and file.endswith(".safetensors")):
            raise ValueError(f"{index} lists {file!r:.100}, which is no file of safetensors beside it")
        shards.setdefault(file, set()).add(name)
    if not shards:
        raise ValueError(f"{index} is damaged: it lists no weights; copy the folder again")
    return shards


def build_from(kind: Any, config: Mapping[str, Any], state: dict[str, Tensor]) -> Any:
    """A network of diffusers in eval mode, with all of these weights and no others.

    Args:
        kind: its class in diffusers.
        config: its settings.
        state: its weights, as `read_weights` gives them.

    Raises:
        ValueError: if they are not its weights, naming the first; nothing is allocated for it then.
    """
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
                raise ValueError(
                    f"{name} is {list(state[name].shape)} there, and {list(own[name].shape)} in the network"
                )
        check_state(empty, state)
        body = kind.from_config(config)
    body.load_state_dict(state)
    return body.eval()


def load_transformer(kind: Any, config: Any, folder: Path, exact: bool) -> Any:
    """A network of transformers in eval mode, with weights of a folder: the library is given those that were checked.

    Args:
        kind: its class in transformers, or AutoModel.
        config: its settings.
        folder: with the weights.
        exact: whether there may be no other weights, such as heads, in the folder.

    Raises:
        FileNotFoundError: if the folder has no weights.
        OSError: if a file is no regular one.
        ValueError: see `read_weights`; or if weights are missing, unexpected or of another shape, naming the first.
    """
    state = read_weights(folder, "model", kind.__name__)
    with no_larger_than(state), torch.device("meta"):
        empty = kind.from_config(config) if kind.__name__ == "AutoModel" else kind(config)
    own = dict(empty.named_parameters())
    if sum(value.numel() for value in own.values()) > sum(value.numel() for value in state.values()):
        first = next((name for name in own if name not in state or state[name].shape != own[name].shape), "one")
        raise ValueError(f"{folder}: its settings are of a larger network than its weights: {first} is missing there")
    check_state(empty, state)
    model, info = type(empty).from_pretrained(None, config=config, state_dict=state, output_loading_info=True)
    return require_loaded(model, info, str(folder), exact)


def require_loaded(model: Any, info: Mapping[str, Any], source: str, exact: bool = False) -> Any:
    """The model that transformers loaded; ValueError if it drew weights at random, or has some that are not finite.

    Args:
        model: the model.
        info: what transformers says of the loading.
        source: of the weights, for the error.
        exact: whether no weights may be left over.
    """
    for key in ("missing_keys", "mismatched_keys", "error_msgs", *(["unexpected_keys"] if exact else [])):
        if found := sorted(map(str, info.get(key) or ())):
            raise ValueError(f"{source}: weights are not those of its settings: {key} {found[0]}; copy it again")
    check_state(model, model.state_dict())
    return model


@contextmanager
def copied_settings(folder: Path) -> Iterator[Path]:
    """A folder with copies of the settings of another, each read once, for libraries that open whatever has a name.

    Raises:
        OSError: if one is no regular file.
        ValueError: if one is larger than any that is known.
    """
    with TemporaryDirectory() as place:
        for path in sorted({path for pattern in SETTINGS for path in folder.glob(pattern)}):
            with open_regular(path) as file:
                content = file.read(_LARGEST_SETTINGS + 1)
            if len(content) > _LARGEST_SETTINGS:
                raise ValueError(f"{path} is larger than {_LARGEST_SETTINGS} bytes, which no settings are")
            Path(place, path.name).write_bytes(content)
        yield Path(place)
