"""The checkpoints of a run folder, read into a model without unpickling objects."""

import filecmp
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from glob import escape
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from fedgen.evaluation.runs.checkpoint_names import LAST, list_checkpoints
from fedgen.federated.client_state.exchange import Exchange
from fedgen.federated.federation_state import CHECKPOINT_KEY, check_packed, own_models
from fedgen.io.tensor_files import check_state, fill_empty
from fedgen.models.checkpoint_file import read_checkpoint
from fedgen.own_code import warn


def previous_checkpoint(folder: str | Path) -> Path:
    """The newest round's checkpoint that can be read and holds something else than `last.ckpt`.

    Raises:
        FileNotFoundError: if there is none, naming those that are damaged.
    """
    last, damaged = Path(folder) / LAST, []
    for path in reversed(list_checkpoints(folder).values()):
        if last.exists() and filecmp.cmp(path, last, shallow=False):  # of the same round, most often the same file
            continue
        try:
            read_checkpoint(path)
        except (OSError, ValueError):  # a pipe or a folder of that name, too
            damaged.append(path.name)
            continue
        if damaged:
            warn(f"{folder}: {', '.join(damaged)} cannot be read and is passed over")
        return path
    unread = f"; {', '.join(damaged)} cannot be read" if damaged else ""
    raise FileNotFoundError(f"{folder} has no round's checkpoint before {LAST}{unread}")


def load_weights(module: nn.Module, path: str | Path) -> dict[str, Any]:
    """Puts a checkpoint's weights into a model; returns the checkpoint.

    Raises:
        ValueError: if it is damaged, of a training that diverged, or a checkpoint of another model, naming the tensors
            that do not fit.
    """
    checkpoint = read_checkpoint(path)
    if isinstance(module, LightningModule):
        module.on_load_checkpoint(checkpoint)
    try:
        fill_empty(module, checkpoint["state_dict"])
        check_state(module, checkpoint["state_dict"])
        if CHECKPOINT_KEY in checkpoint:
            check_packed(checkpoint[CHECKPOINT_KEY], module.state_dict())
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    try:
        module.load_state_dict(checkpoint["state_dict"])
    except RuntimeError as error:
        reasons = "; ".join(line.strip() for line in str(error).splitlines()[1:4])
        raise ValueError(f"{path} is a checkpoint of another model than {type(module).__name__}: {reasons}") from error
    return checkpoint


def local_models(module: nn.Module, checkpoint: Mapping[str, Any]) -> dict[int, dict[str, Tensor]]:
    """The clients' own tensors in a checkpoint of training without any exchange, by client; else nothing."""
    personal = _known(module, checkpoint.get(CHECKPOINT_KEY, {}).get("personal", {}))
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    kept = {tuple(map(escape, own)) for own in personal.values()}  # names as patterns of themselves alone
    return {} if any(Exchange(module, trained, names, fixed=True).shared for names in kept) else personal


def personal_tensors(module: nn.Module, checkpoint: Mapping[str, Any]) -> dict[int, dict[str, Tensor]]:
    """Those of a model's tensors that are clients' own, in a checkpoint, by client and name.

    Clients are numbered among those that train.
    """
    return _known(module, own_models(checkpoint.get(CHECKPOINT_KEY, {})))


def _known(module: nn.Module, personal: Mapping[int, Mapping[str, Tensor]]) -> dict[int, dict[str, Tensor]]:
    known = module.state_dict().keys()
    return {client: {name: own[name] for name in own if name in known} for client, own in personal.items()}


@contextmanager
def tensors_in_place(module: nn.Module, tensors: Mapping[str, Tensor]) -> Iterator[None]:
    """The module with some of its tensors replaced while the context lasts."""
    state = module.state_dict()
    before = {name: state[name].clone() for name in tensors}
    try:
        _copy(state, tensors)
        yield
    finally:
        _copy(state, before)


@torch.no_grad()
def _copy(state: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
    for name, value in values.items():
        state[name].copy_(value)
