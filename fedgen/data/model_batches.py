"""Batches for models, cut from examples in memory."""

from collections.abc import Iterator

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


def endless_batches(count: int, batch_size: int, draws: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    """The batches of `draw_batches` one after the other, however many are wanted.

    Yields:
        Positions int64 [min(batch_size, count)], and how often each was drawn before.
    """
    size, epoch = min(batch_size, count), 0
    left, visits = torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64)
    while True:
        if len(left) < size:
            left = torch.cat([left, torch.randperm(count, generator=draws)])
            visits = torch.cat([visits, torch.full((count,), epoch)])
            epoch += 1
        yield left[:size], visits[:size]
        left, visits = left[size:], visits[size:]
