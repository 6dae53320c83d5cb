"""A callback that keeps a module's convolutions in the memory format that GPUs and oneDNN compute in."""

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from fedgen.own_code import rank_zero_warn


class ChannelsLast(Callback):
    """Trains with channels last in memory: kernels [O, I, H, W] of a module's convolutions, and so their outputs.

    Shapes, names and results are as without, to rounding; on a GPU in half precision convolutions spare two
    transpositions each. Set when fitting starts, and kept: clients' turns copy into the same tensors.
    """

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage != "fit":
            return
        if not any(tensor.ndim == 4 for tensor in pl_module.parameters()):
            rank_zero_warn(f"ChannelsLast changes nothing: {type(pl_module).__name__} has no kernel [O, I, H, W]")
        pl_module.to(memory_format=torch.channels_last)
