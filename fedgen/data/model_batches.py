"""Batches for models, cut from examples in memory."""

import torch
from torch import Tensor

from fedgen.data.examples import Examples
from fedgen.images import from_uint8

Batch = tuple[Tensor, Tensor]


def to_batch(examples: Examples, indices: Tensor) -> Batch:
    """Model inputs and labels at the indices: images as floats in [-1, 1], points as they are."""
    inputs = examples.inputs[indices]
    return from_uint8(inputs) if examples.is_images else inputs, examples.labels[indices]


def draw_batches(count: int, batch_size: int, iterations: int, draws: torch.Generator) -> Tensor:
    """Positions int64 [iterations, min(batch_size, count)] in 0..count-1 for a number of shuffled batches.

    One random permutation after another, cut into full batches, so every example is seen equally often (to one)
    however many iterations there are; a batch is never larger than the data.
    """
    size = min(batch_size, count)
    needed = iterations * size
    epochs = [torch.randperm(count, generator=draws) for _ in range(-(-needed // count))]
    return torch.cat(epochs)[:needed].view(iterations, size)
