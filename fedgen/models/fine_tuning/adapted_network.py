"""A module whose network may have low-rank adapters."""

from typing import Any

from lightning.pytorch.utilities.rank_zero import rank_zero_info
from torch import nn

from fedgen.data.optional_attributes import optional
from fedgen.io.files import in_bytes
from fedgen.models.ema import EMA
from fedgen.models.fine_tuning.lora import LoRA, read_adapters
from fedgen.models.optional_hooks import ImageNetwork
from fedgen.models.rounds.round_clock import RoundClock


class AdaptedNetwork(RoundClock):
    """A module with a network and maybe its moving average; where it has adapters, they alone train and travel.

    Attributes:
        network: with its adapters.
        network_ema: its moving average, or None.
        lora: the adapters' settings; None where all of the network trains.
    """

    network: nn.Module
    network_ema: EMA | None
    lora: LoRA | None

    def on_fit_start(self) -> None:
        """Says how little of the network its adapters are."""
        super().on_fit_start()
        if self.lora is not None:
            sizes = [(p.numel() * p.element_size(), p.requires_grad) for p in self.network.parameters()]
            trained, whole = sum(size for size, trains in sizes if trains), sum(size for size, _ in sizes)
            rank_zero_info(f"adapters alone train: {in_bytes(trained)} of the network's {in_bytes(whole)}")

    def load_adapters(self, folder: Any) -> None:
        """Takes the adapters that `DDPM.save_pretrained(folder, merge=False)` or peft wrote, the average too.

        Raises:
            ValueError: if the model has no adapters, or others.
        """
        if self.lora is None:
            name = type(self).__name__
            raise ValueError(f"this model has no adapters; build it with {name}(..., lora=LoRA(rank=...))")
        read_adapters(adapted(self.network), self.lora, folder)
        if self.network_ema is not None:
            read_adapters(adapted(self.network_ema.network), self.lora, folder)


def adapted(network: nn.Module) -> nn.Module:
    """The part of a network that adapters belong to: a UNet's own of diffusers, so that they fit its folders."""
    body = optional(network, ImageNetwork, "body")
    return network if body is None else body
