"""A model of the kit as two files: weights in safetensors, and its class and arguments in JSON."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lightning
from lightning.pytorch import LightningModule

import fedgen
from fedgen import models
from fedgen.io.files import read_json, write_json
from fedgen.io.tensor_files import read_safetensors, write_safetensors
from fedgen.models.checkpoint_file import OPTIMISED_ON, model_of
from fedgen.models.networks.network import TRUSTED

FORMAT, VERSION = "fedgen-model", 1
CONFIG, WEIGHTS = "config.json", "model.safetensors"
MODELS = (
    "DDPM",
    "EDM",
    "FlowMatching",
    "GAN",
    "VAE",
    "WGANGP",
    "CharacterTransformer",
    "DistributedFineTuning",
    "FineTuning",
    "Glow",
    "StyleGAN2",
)
"""Names of the classes that such a folder may hold, each of `fedgen.models`."""


def model_class(name: str, owner: str) -> type[LightningModule]:
    """The kit's class of a name.

    Raises:
        ValueError: if it is none that such folders may hold; nothing is imported for it.
    """
    if name not in MODELS:
        raise ValueError(f"{owner} names the class {name!r}, which is none of {', '.join(MODELS)}")
    found: type[LightningModule] = getattr(models, name)
    return found


def write_model(folder: Path, model: LightningModule) -> None:
    """Writes weights and settings into a folder that is there.

    Raises:
        ValueError: for a model of another class, or with networks that are not the kit's: nobody could load them.
    """
    kind = model_class(type(model).__name__, f"{type(model).__module__}.{type(model).__qualname__}")
    if type(model) is not kind:
        raise ValueError(f"{type(model).__module__}.{type(model).__qualname__} is not fedgen.models.{kind.__name__}")
    arguments = dict(model.hparams)
    if foreign := [path for path in _class_paths(arguments) if not path.startswith(TRUSTED)]:
        raise ValueError(
            f"the model has a {foreign[0]}, and a folder may name classes of {TRUSTED[:-1]} alone: whoever loads it"
            " must not run anybody else's code"
        )
    kept: dict[str, Any] = {"state_dict": model.state_dict()}
    model.on_save_checkpoint(kept)
    config = {
        "format": FORMAT,
        "version": VERSION,
        "fedgen": fedgen.__version__,
        "class": kind.__name__,
        "arguments": json.loads(json.dumps(arguments, allow_nan=False)),
        OPTIMISED_ON: kept.get(OPTIMISED_ON, []),
    }
    # a copy of each: two names of one tensor have no place in such a file
    write_safetensors(folder / WEIGHTS, {name: value.clone() for name, value in kept["state_dict"].items()}, {})
    write_json(folder / CONFIG, config)


def read_model(folder: Path) -> LightningModule:
    """The model of a folder, on the CPU and in eval mode.

    Raises:
        FileNotFoundError: if a file is missing.
        ValueError: if the folder is of something else, damaged, or its weights do not fit its settings.
    """
    path = folder / CONFIG
    config = read_json(path)
    if not isinstance(config, dict) or config.get("format") != FORMAT:
        raise ValueError(f"{path} is not of a model of fedgen: its format is not {FORMAT!r}")
    if config.get("version") != VERSION:
        raise ValueError(f"{path} has version {config.get('version')!r} of {FORMAT}; this fedgen reads {VERSION}")
    arguments, used = config.get("arguments"), config.get(OPTIMISED_ON, [])
    if not isinstance(arguments, dict) or not (isinstance(used, list) and all(isinstance(name, str) for name in used)):
        raise ValueError(f"{path} is damaged: its arguments or {OPTIMISED_ON} are not what fedgen writes")
    kind = model_class(str(config.get("class")), str(path))
    state, _ = read_safetensors(folder / WEIGHTS)
    written = {"pytorch-lightning_version": lightning.__version__}  # so that Lightning takes it as it is
    checkpoint = written | {"state_dict": state, "hyper_parameters": arguments, OPTIMISED_ON: used}
    return model_of(kind, checkpoint, str(folder)).eval()


def _class_paths(value: Any) -> list[str]:
    """All class paths in nested settings."""
    if isinstance(value, Mapping):
        own = [value["class_path"]] if isinstance(value.get("class_path"), str) else []
        return own + [path for part in value.values() for path in _class_paths(part)]
    return [path for part in value for path in _class_paths(part)] if isinstance(value, list | tuple) else []
