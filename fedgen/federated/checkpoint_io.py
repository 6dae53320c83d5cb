"""Checkpoints that appear whole or not at all, read without unpickling objects."""

from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins import TorchCheckpointIO

from fedgen.files import atomic_write
from fedgen.tensor_files import read_torch


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes to a temporary file in the same folder, flushes and renames; reads with `weights_only=True` by default.

    A run killed in the middle of writing leaves the checkpoint before it untouched.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        # remote file systems have their own transactions; storage options are refused there, with the reason
        if "://" in str(path) or storage_options is not None:
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        with atomic_write(Path(path)) as file:
            torch.save(checkpoint, file)

    def load_checkpoint(self, path: Any, map_location: Any = "cpu", weights_only: bool | None = None) -> dict[str, Any]:
        """As Lightning's; a local file's checksums are compared first.

        Raises:
            FileNotFoundError: if there is no such file.
            ValueError: if it is no checkpoint, damaged, or holds objects that would have to be unpickled.
        """
        if weights_only is False or "://" in str(path):
            return super().load_checkpoint(path, map_location=map_location, weights_only=weights_only is not False)
        return read_torch(path, map_location)
