"""Checkpoints that appear whole or not at all, read without unpickling objects."""

import io
import sys
from dataclasses import fields, is_dataclass
from pathlib import Path, PurePath
from typing import Any

import torch
from lightning.fabric.plugins import TorchCheckpointIO
from lightning.fabric.utilities.apply_func import move_data_to_device
from lightning.fabric.utilities.cloud_io import get_filesystem
from torch.serialization import get_safe_globals

from fedgen.io.files import atomic_write
from fedgen.io.tensor_files import read_torch

HYPERPARAMETERS = ("hyper_parameters", "datamodule_hyper_parameters")  # of a module and of a data module
TYPES = ("hparams_type", "datamodule_hparams_type")  # OmegaConf's class, which Lightning writes beside them


def plain(value: Any) -> Any:
    """Return a value with OmegaConf's containers, paths and dataclasses in it as dictionaries, lists and texts."""
    omegaconf: Any = sys.modules.get("omegaconf")  # of what nobody has imported there is nothing
    if omegaconf is not None and isinstance(value, omegaconf.Container):
        try:
            value = omegaconf.OmegaConf.to_container(value, resolve=True, enum_to_str=True)
        except omegaconf.errors.OmegaConfBaseException:  # what an interpolation means may be known at another place
            value = omegaconf.OmegaConf.to_container(value, enum_to_str=True)
    if isinstance(value, PurePath):
        return str(value)
    if is_dataclass(value) and not isinstance(value, type) and type(value) not in get_safe_globals():
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    return type(value)(map(plain, value)) if type(value) in (list, tuple) else value


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes to a temporary file in the same folder, flushes and renames; reads without unpickling.

    A run killed in the middle of writing leaves the checkpoint before it untouched. Hyperparameters of OmegaConf, paths
    and dataclasses are written as plain values.

    Examples:
        >>> import tempfile
        >>> from pathlib import Path
        >>> import torch
        >>> from fedgen.federated import AtomicCheckpointIO
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     AtomicCheckpointIO().save_checkpoint({"weight": torch.ones(2)}, Path(folder, "last.ckpt"))
        ...     AtomicCheckpointIO().load_checkpoint(Path(folder, "last.ckpt"))["weight"]
        tensor([1., 1.])
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        checkpoint = {k: plain(v) if k in HYPERPARAMETERS else v for k, v in checkpoint.items() if k not in TYPES}
        # remote file systems have their own transactions; storage options are refused there, with the reason
        if "://" in str(path) or storage_options is not None:
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        with atomic_write(Path(path)) as file:
            torch.save(checkpoint, file)

    def load_checkpoint(self, path: Any, map_location: Any = "cpu", weights_only: bool | None = None) -> dict[str, Any]:
        """Load a checkpoint as Lightning does, but by `read_torch` unless objects are asked for by
        `weights_only=False`.

        Args:
            path: of a local file, or one that fsspec knows.
            map_location: a device for the tensors, or its name; whatever else torch.load takes means the CPU.
            weights_only: False unpickles whatever the file says, for files that you wrote yourself.

        Raises:
            FileNotFoundError: if there is no such file.
            ValueError: if it is no checkpoint, damaged, or holds objects that would have to be unpickled.
        """
        if weights_only is False:
            return super().load_checkpoint(path, map_location=map_location, weights_only=False)
        if "://" in str(path):
            with get_filesystem(path).open(str(path), "rb") as file:
                found = read_torch(str(path), file=io.BytesIO(file.read()))
        else:
            found = read_torch(path)
        return move_data_to_device(found, map_location) if isinstance(map_location, (str, torch.device)) else found
