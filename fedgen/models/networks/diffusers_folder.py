"""A network's folder of diffusers: its config.json, and weights in safetensors alone."""

from pathlib import Path
from typing import Any

from fedgen.extras import need
from fedgen.io.files import read_json
from fedgen.io.hub_folders import build_from, read_weights

CONFIG = "config.json"
WEIGHTS = "diffusion_pytorch_model"


def read_body(folder: Path, kind: str, missing: str, use: str) -> Any:
    """The network of a folder, of the class `kind` of diffusers; each file is read once, and no code of it is run.

    Errors say by `missing` what it means that there is no config.json, and by `use` what fedgen does with the class.
    """
    config = read_settings(folder / CONFIG, missing)
    if config.get("_class_name") != kind:
        raise ValueError(f"{folder / CONFIG} is of a {config.get('_class_name')}, {use} {kind}")
    found = getattr(need("diffusers", "diffusion", "a folder of diffusers"), kind)
    state = read_weights(folder, WEIGHTS, kind)
    try:
        return build_from(found, config, state)
    except Exception as error:  # settings from a file may fail in any way
        raise ValueError(f"{folder / CONFIG} and {WEIGHTS}.safetensors beside it are no {kind} ({error})") from error


def read_settings(path: Path, missing: str = "") -> dict[str, Any]:
    """The settings in a JSON file of such a folder; errors say by `missing` what it means that there is none."""
    if not path.is_file():
        raise FileNotFoundError(f"{missing}: there is no {path}")
    content = read_json(path)
    if not isinstance(content, dict):
        raise ValueError(f"{path} is damaged: it holds no settings; copy the folder again")
    return content
