"""Lightning checkpoints read without unpickling objects, and the generator that one holds."""

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fedgen.io.field_types import is_count
from fedgen.io.tensor_files import check_state, no_larger_than, read_torch
from fedgen.models.networks.network import TRUSTED, build, refuse_places

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule

EMA_PREFIX, PREFIX = "generator_ema.network.", "generator."
OPTIMISED_ON = "optimised_on"  # the key of the embeddings that a loss trained on; older checkpoints have none

# where Lightning looks for a model's arguments; and the one by which it would have a parser make the others, which
# imports whatever module and makes whatever class the file names
_ARGUMENTS, _OLD_ARGUMENTS, _INSTANTIATOR = "hyper_parameters", ("hparams", "module_arguments"), "_instantiator"


def _is_named(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(name, str) for name in value)


_KNOWN: dict[str, Callable[[Any], bool]] = {
    "state_dict": _is_named,
    "hyper_parameters": _is_named,
    "epoch": is_count,
    "global_step": is_count,
    OPTIMISED_ON: lambda names: isinstance(names, list) and all(isinstance(name, str) for name in names),
}
"""What is read of a checkpoint, where it is there."""


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """A Lightning checkpoint, on the CPU."""
    path = Path(path)
    if not path.is_file():
        others = ", ".join(sorted(p.name for p in path.parent.glob("*.ckpt"))) or "none"
        raise FileNotFoundError(f"no checkpoint {path}; checkpoints in that folder: {others}")
    checkpoint = read_torch(path)
    if not isinstance(checkpoint, dict) or "state_dict" not in checkpoint:
        raise ValueError(f"{path} is not a Lightning checkpoint: it has no 'state_dict'")
    for key, check in _KNOWN.items():
        if key in checkpoint and not check(checkpoint[key]):
            raise ValueError(f"{path} is not a Lightning checkpoint: its {key!r} is not what Lightning writes")
    return checkpoint


def rebuild_model(kind: "type[LightningModule]", path: str | Path) -> Any:
    """The model of a checkpoint, on the CPU, made by Lightning of the arguments that the checkpoint keeps."""
    return model_of(kind, read_checkpoint(path), str(path))


def model_of(kind: "type[LightningModule]", checkpoint: Mapping[str, Any], source: str) -> Any:
    """The model of what a checkpoint holds, on the CPU, made by Lightning of the arguments among it."""
    again, state = io.BytesIO(), checkpoint["state_dict"]
    arguments = {name: value for name, value in checkpoint.get(_ARGUMENTS, {}).items() if name != _INSTANTIATOR}
    given = {key: value for key, value in checkpoint.items() if key not in _OLD_ARGUMENTS} | {_ARGUMENTS: arguments}
    torch.save(given, again)  # Lightning reads a file itself: it is given what was checked, and no path
    again.seek(0)
    try:
        if kind.__module__.startswith(TRUSTED):  # others' arguments may be words of theirs
            refuse_places(arguments)
        with no_larger_than(state):
            model = kind.load_from_checkpoint(again, map_location="cpu", weights_only=True)
        check_state(model, state)
    except Exception as error:  # arguments from a file may fail in any way
        raise ValueError(f"{source} is no checkpoint of a {kind.__name__}, or it is damaged ({error})") from error
    return model


def read_generator(path: str | Path) -> nn.Module:
    """The generator of a checkpoint, or its moving average; `optimised_on` names embeddings that it trained on."""
    checkpoint = read_checkpoint(path)
    settings, within = checkpoint.get("hyper_parameters", {}), ""
    if isinstance(model := settings.get("model"), dict):
        settings, within = model.get("init_args"), "model."
    description = settings.get("generator") if isinstance(settings, Mapping) else None
    if not isinstance(description, dict) or "class_path" not in description:
        raise ValueError(f"{path} does not describe a generator; give a GAN's checkpoint, or the generator itself")
    state = checkpoint["state_dict"]
    averaged = any(name.startswith(within + EMA_PREFIX) for name in state)
    prefix = within + (EMA_PREFIX if averaged else PREFIX)
    own = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
    try:
        with no_larger_than(own):
            generator = build(description, "generator")
        check_state(generator, own)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    try:
        generator.load_state_dict(own)
    except RuntimeError as error:
        reasons = "; ".join(line.strip() for line in str(error).splitlines()[1:4])
        raise ValueError(f"{path}: its weights do not fit the generator that it describes: {reasons}") from error
    generator.optimised_on = read_optimised_on(checkpoint)
    return generator


def read_optimised_on(checkpoint: Mapping[str, Any], unknown: Sequence[str] = ()) -> list[str]:
    """Embeddings that the losses of a checkpoint's training used."""
    return [str(name) for name in checkpoint.get(OPTIMISED_ON, unknown)]
