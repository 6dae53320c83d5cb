"""Sampling from a network without leaving a trace in it."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


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


@torch.no_grad()
def decode(network: nn.Module, latents: Tensor, batch_size: int) -> Tensor:
    """Images float32 [N, C, H, W] of latents [N, D], in batches, on the network's device and in eval mode."""
    parameter = next(network.parameters())
    with evaluating(network):
        return torch.cat([network(part.to(parameter)).float() for part in latents.split(batch_size)])
