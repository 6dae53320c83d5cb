"""Adversarial losses: what a critic and a generator minimise, given the critic and two batches of images."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

CriticFunction = Callable[[Tensor], Tensor]


class CriticTerms(NamedTuple):
    """The critic's loss (scalar, to minimise), and mean critic(real) - mean critic(fake), detached."""

    loss: Tensor
    gap: Tensor


class AdversarialLoss(ABC):
    """The game that a generator and a critic play."""

    @abstractmethod
    def critic_loss(self, critic: CriticFunction, real: Tensor, fake: Tensor) -> CriticTerms:
        """The critic's loss on images [N, C, H, W] that exist and images that were made (no gradient to the maker)."""

    @abstractmethod
    def generator_loss(self, critic: CriticFunction, fake: Tensor) -> Tensor:
        """The generator's loss on images [N, C, H, W] it made: a scalar, differentiable in them."""


def gradient_penalty(critic: CriticFunction, real: Tensor, fake: Tensor) -> Tensor:
    """mean_i (|grad critic(x_i)|_2 - 1)^2 at points x_i on the segments from real_i to fake_i, one uniform draw an
    image (Gulrajani et al. 2017, Eq. 3): the two-sided penalty, a scalar differentiable in the critic's weights."""
    position = torch.rand(len(real), *[1] * (real.ndim - 1), device=real.device, dtype=real.dtype)
    points = torch.lerp(real.detach(), fake.detach().to(real.dtype), position).requires_grad_()
    (gradients,) = torch.autograd.grad(critic(points).sum(), points, create_graph=True)
    return (gradients.flatten(1).norm(dim=1) - 1).square().mean()


class WassersteinGP(AdversarialLoss):
    """The Wasserstein game with gradient penalty (Gulrajani et al. 2017, algorithm 1).

    Args:
        penalty: the weight of the gradient penalty, the paper's lambda.
    """

    def __init__(self, penalty: float = 10.0) -> None:
        if penalty < 0:
            raise ValueError(f"penalty must not be negative, got {penalty}")
        self.penalty = penalty

    def critic_loss(self, critic: CriticFunction, real: Tensor, fake: Tensor) -> CriticTerms:
        # One pass over both: a critic under a gradient penalty scores each image by itself.
        on_real, on_fake = critic(torch.cat([real, fake])).split([len(real), len(fake)])
        gap = on_real.mean() - on_fake.mean()
        return CriticTerms(self.penalty * gradient_penalty(critic, real, fake) - gap, gap.detach())

    def generator_loss(self, critic: CriticFunction, fake: Tensor) -> Tensor:
        return -critic(fake).mean()
