"""Checkpoints that appear whole or not at all, read without unpickling objects."""

import io
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins import TorchCheckpointIO
from lightning.fabric.utilities.apply_func import move_data_to_device
from lightning.fabric.utilities.cloud_io import get_filesystem

from fedgen.io.files import atomic_write
from fedgen.io.tensor_files import read_torch


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes to a temporary file in the same folder, flushes and renames; reads without unpickling.

    A run killed in the middle of writing leaves the checkpoint before it untouched.

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
