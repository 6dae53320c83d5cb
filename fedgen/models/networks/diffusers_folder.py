"""A network's folder of diffusers: its config.json, and weights in safetensors alone."""

from pathlib import Path
from typing import Any

from torch import Tensor

from fedgen.extras import need
from fedgen.io.files import read_json
from fedgen.io.tensor_files import no_larger_than, read_safetensors

CONFIG = "config.json"
WEIGHTS = "diffusion_pytorch_model"


def read_body(folder: Path, kind: str) -> Any:
    """The network of a folder, with all of its weights; no code of the folder is run.

    Args:
        folder: as `save_pretrained` of diffusers leaves it.
        kind: the name of its class in diffusers.

    Raises:
        FileNotFoundError: if it has no weights.
        ValueError: if these are pickles, not all that the network has, or damaged.
    """
    _require_safetensors(folder, kind)
    found = getattr(need("diffusers", "diffusion", "a folder of diffusers"), kind)
    state: dict[str, Tensor] = {}
    for path in folder.glob(f"{WEIGHTS}*.safetensors"):
        state |= read_safetensors(path)[0]
        if not all(value.is_floating_point() and value.isfinite().all() for value in state.values()):
            raise ValueError(f"{path} holds NaN, infinity or whole numbers where weights should be")
    try:
        with no_larger_than(state):
            body, info = found.from_pretrained(
                folder, use_safetensors=True, low_cpu_mem_usage=False, output_loading_info=True
            )
    except Exception as error:  # settings from a file may fail in any way
        raise ValueError(f"{folder / CONFIG} and {WEIGHTS}.safetensors beside it are no {kind} ({error})") from error
    if left := next((f"{key} {names[:1]}" for key, names in info.items() if names), None):
        # diffusers draws at random what is missing, and only says so
        raise ValueError(f"{folder / WEIGHTS}.safetensors is not of the network in {CONFIG}: {left}; copy it again")
    return body


def read_settings(path: Path, missing: str = "") -> dict[str, Any]:
    """The settings in a JSON file of such a folder.

    Args:
        path: the file.
        missing: what it means if there is none.

    Raises:
        FileNotFoundError: if there is none.
        ValueError: if it holds no settings.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{missing}: there is no {path}")
    content = read_json(path)
    if not isinstance(content, dict):
        raise ValueError(f"{path} is damaged: it holds no settings; copy the folder again")
    return content


def _require_safetensors(folder: Path, kind: str) -> None:
    if any(folder.glob(f"{WEIGHTS}*.safetensors")):
        return
    if any(folder.glob("*.bin")):
        raise ValueError(
            f"{folder} holds its weights as .bin, which is a pickle: reading it can run anybody's code. If you trust"
            f" its maker, convert it once: {kind}.from_pretrained({str(folder)!r}, use_safetensors=False)"
            ".save_pretrained(new_folder)"
        )
    raise FileNotFoundError(f"{folder} has no {WEIGHTS}.safetensors; copy the folder again, whole")
