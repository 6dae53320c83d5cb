"""Lightning checkpoints read without unpickling objects, and the generator that one holds."""

import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedgen.models.networks.network import build

EMA_PREFIX, PREFIX = "generator_ema.network.", "generator."
OPTIMISED_ON = "optimised_on"  # the key of the embeddings that a loss trained on; older checkpoints have none


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """A Lightning checkpoint, read with `weights_only=True`, on the CPU.

    Raises:
        FileNotFoundError: if there is no such file, naming the checkpoints beside it.
        ValueError: if it is no checkpoint, damaged, or holds objects that would have to be unpickled.
    """
    path = Path(path)
    if not path.is_file():
        others = ", ".join(sorted(p.name for p in path.parent.glob("*.ckpt"))) or "none"
        raise FileNotFoundError(f"no checkpoint {path}; checkpoints in that folder: {others}")
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(f"{path} is damaged, or holds more than tensors and plain types ({reason})") from error
    if not isinstance(checkpoint, dict) or "state_dict" not in checkpoint:
        raise ValueError(f"{path} is not a Lightning checkpoint: it has no 'state_dict'")
    return checkpoint


def read_generator(path: str | Path) -> nn.Module:
    """The generator of a run's checkpoint, rebuilt from its description; its moving average where there is one.

    Its attribute `optimised_on` names the embeddings that its training optimised.

    Args:
        path: a .ckpt of a module whose hyperparameters describe its `generator`, as GANs do, or its `model` with one.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is no such checkpoint, or its generator is not one of fedgen's networks.
    """
    checkpoint = read_checkpoint(path)
    settings, within = checkpoint.get("hyper_parameters", {}), ""
    if isinstance(model := settings.get("model"), dict):
        settings, within = model.get("init_args", {}), "model."
    description = settings.get("generator")
    if not isinstance(description, dict) or "class_path" not in description:
        raise ValueError(f"{path} does not describe a generator; give a GAN's checkpoint, or the generator itself")
    generator = build(description, "generator")
    state = checkpoint["state_dict"]
    averaged = any(name.startswith(within + EMA_PREFIX) for name in state)
    prefix = within + (EMA_PREFIX if averaged else PREFIX)
    try:
        own = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
        generator.load_state_dict(own)
    except RuntimeError as error:
        reasons = "; ".join(line.strip() for line in str(error).splitlines()[1:4])
        raise ValueError(f"{path}: its weights do not fit the generator that it describes: {reasons}") from error
    generator.optimised_on = read_optimised_on(checkpoint)
    return generator


def read_optimised_on(checkpoint: Mapping[str, Any], unknown: Sequence[str] = ()) -> list[str]:
    """Embeddings that the losses of a checkpoint's training used.

    Args:
        checkpoint: from `read_checkpoint`.
        unknown: what to give back for a checkpoint that does not say.
    """
    return [str(name) for name in checkpoint.get(OPTIMISED_ON, unknown)]
