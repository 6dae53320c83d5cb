"""A server's own images: what a model trains on that no client holds."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from fedgen.data import Examples
from fedgen.data.model_batches import Batch, draw_batches, to_batch
from fedgen.models.require import require
from fedgen.seeds import generator


@dataclass(frozen=True, eq=False)
class ServerData:
    """Images in the place of a data module, whose one owner is the server, in batches that follow from (seed, round).

    Args:
        data: the images.
        batch_size: images a batch; all of them, if there are fewer.
        seed: of the batches.

    Raises:
        ValueError: for no image, or a batch size below 1.
    """

    data: Examples
    batch_size: int
    seed: int
    name: str = "the server"

    def __post_init__(self) -> None:
        require(len(self.data) > 0, f"the server's data {self.data.name} have no image")
        require(self.batch_size >= 1, f"batch={self.batch_size}: a batch has at least one image")

    @property
    def clients(self) -> list["ServerData"]:
        """The owners: itself, as `FederatedDataModule` has clients."""
        return [self]

    @cached_property
    def train(self) -> Tensor:
        """Positions of the images."""
        return torch.arange(len(self.data))

    @property
    def image_shape(self) -> tuple[int, ...]:
        """(channels, height, width)."""
        return tuple(self.data.inputs.shape[1:])

    def batches(self, round: int, iterations: int) -> Iterator[Batch]:
        """Batches (images float [B, C, H, W] in [-1, 1], labels int64 [B]) of a round."""
        draws = generator(self.seed, "server batches", round)
        for positions in draw_batches(len(self.data), self.batch_size, iterations, draws):
            yield to_batch(self.data, positions)

    def some(self, count: int) -> Tensor:
        """Images uint8 [n, C, H, W], so many at random, or all."""
        chosen = torch.randperm(len(self.data), generator=generator(self.seed, "public images"))[:count]
        return self.data.inputs[chosen]
