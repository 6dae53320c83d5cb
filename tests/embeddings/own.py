"""Embeddings as somebody writes them in a package of their own."""

import torch
from torch import Tensor, nn

from fedgen.embeddings import Embedding


class MyEmbedding(nn.Module):
    """Images [N, C, H, W] in [-1, 1] to `width` features, by random filters; it says nothing of its dim."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.filters = nn.Conv2d(1, width, 3)

    def forward(self, images: Tensor) -> Tensor:
        return self.filters(images).relu().mean((2, 3))


class Halves(Embedding):
    """The kit's own kind of embedding."""

    def __init__(self, weights: str | None = None) -> None:
        super().__init__(f"halves of {weights}", dim=None)

    def features(self, levels: Tensor) -> Tensor:
        return levels.flatten(1) / 2


def make_embedding(width: int) -> MyEmbedding:
    return MyEmbedding(width)


def make_anything(command: str):
    raise AssertionError(f"called with {command}")


def of_ones(width: int) -> dict[str, Tensor]:
    return {key: torch.ones_like(value) for key, value in MyEmbedding(width).state_dict().items()}
