"""A client: an owner of data."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedgen.data import Examples
from fedgen.seeds import generator


@dataclass(frozen=True, eq=False)
class Client:
    """One client's share of a data set, as positions; the data set itself is held once for all clients.

    Attributes:
        name: the client's name.
        data: the whole data set.
        train: positions int64 [n] of the images that the client trains on.
        held_out: positions int64 [h] of the images that it keeps for measuring.

    Examples:
        >>> from fedgen import ByClass, Digits, FederatedDataModule
        >>> client = FederatedDataModule(Digits(), ByClass(), held_out=0.2).clients[0]
        >>> len(client.train), len(client.held_out)
        (143, 35)
    """

    name: str
    data: Examples
    train: Tensor
    held_out: Tensor

    def __repr__(self) -> str:
        return f"Client({self.name!r}, {len(self.train)} training and {len(self.held_out)} held-out examples)"

    @property
    def everything(self) -> Tensor:
        """Positions of all of the client's images, rising."""
        return torch.cat([self.train, self.held_out]).sort().values

    @property
    def train_examples(self) -> Examples:
        """The client's training examples (a copy)."""
        return self.data.subset(self.train)

    @property
    def held_out_examples(self) -> Examples:
        """The client's held-out examples (a copy)."""
        return self.data.subset(self.held_out)


def num_held_out(count: int, fraction: float) -> int:
    """Return how many of so many examples are held out."""
    # rounded first: 0.29 * 100 is 28.999999999999996 in floating point
    return min(math.floor(round(fraction * count, 9)), count - 1)


def hold_out(indices: Tensor, fraction: float, seed: int, client: int) -> tuple[Tensor, Tensor]:
    """A client's positions as (train, held out): floor(fraction n) of them, drawn at (seed, client), are held out.

    At least one stays for training. Both parts keep the order of `indices`.
    """
    count = num_held_out(len(indices), fraction)
    chosen = torch.randperm(len(indices), generator=generator(seed, "held_out", client))[:count]
    kept = torch.ones(len(indices), dtype=torch.bool)
    kept[chosen] = False
    return indices[kept], indices[~kept]
