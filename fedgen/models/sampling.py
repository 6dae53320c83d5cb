"""Sampling from a network without leaving a trace in it."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from fedgen.models.require import require


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """Eval mode inside the block; each submodule back in its own mode after it."""
    modes = [(module, module.training) for module in network.modules()]
    network.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@contextmanager
def keeping_buffers(network: nn.Module) -> Iterator[None]:
    """Puts the network's buffers back after the block: running statistics and singular vectors do not move."""
    before = [buffer.clone() for buffer in network.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in zip(network.buffers(), before, strict=True):
                buffer.copy_(value)


def require_batch_size(batch_size: int) -> None:
    """Raises ValueError for a batch size below 1."""
    require(batch_size >= 1, f"batch_size={batch_size}: the network gets at least one image at a time")


def batches_of(count: int, batch_size: int) -> list[slice]:
    """The places of `count` images in batches; ValueError for a batch size below 1."""
    require_batch_size(batch_size)
    return [slice(start, start + batch_size) for start in range(0, count, batch_size)]


@torch.no_grad()
def decode(network: nn.Module, latents: Tensor, batch_size: int, labels: Tensor | None = None) -> Tensor:
    """Images float32 [N, C, H, W] of latents [N, D], in batches, on the network's device and in eval mode."""
    parameter = next(network.parameters())
    images = []
    with evaluating(network):
        for batch in batches_of(len(latents), batch_size):
            given = () if labels is None else (labels[batch].to(parameter.device),)
            images.append(network(latents[batch].to(parameter), *given).float())
    return torch.cat(images)
