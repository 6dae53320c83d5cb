"""Adversarial losses: what a critic and a generator minimise, given the critic and two batches of images."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

CriticFunction = Callable[[Tensor], Tensor]


class CriticTerms(NamedTuple):
    """The critic's loss (scalar, to minimise), and mean critic(real) - mean critic(fake), detached."""

    loss: Tensor
    gap: Tensor


class AdversarialLoss(ABC):
    """The game that a generator and a critic play; keeps its constructor's arguments in `settings`."""

    penalises_slopes = False
    """Whether the critic's gradients in single images enter the loss: they are differentiated twice, and the critic
    must score each image by itself."""

    def __init__(self, **settings: Any) -> None:
        self.settings = settings

    @abstractmethod
    def critic_loss(self, critic: CriticFunction, real: Tensor, fake: Tensor) -> CriticTerms:
        """The critic's loss on images [N, C, H, W] that exist and images that were made (no gradient to the maker)."""

    def draw(self, real: Tensor) -> dict[str, Tensor]:
        """Draw what `critic_loss` draws for real images [N, C, H, W], by name and in its order; here nothing."""
        return {}

    def drawn_critic_loss(
        self, critic: CriticFunction, real: Tensor, fake: Tensor, drawn: Mapping[str, Tensor]
    ) -> CriticTerms:
        """`critic_loss` at what `draw` drew, as a function without draws that `torch.vmap` can take."""
        return self.critic_loss(critic, real, fake)

    @abstractmethod
    def generator_loss(self, critic: CriticFunction, fake: Tensor) -> Tensor:
        """The generator's loss on images [N, C, H, W] it made: a scalar, differentiable in them."""


def score_both(critic: CriticFunction, real: Tensor, fake: Tensor) -> tuple[Tensor, Tensor]:
    """Scores [N] of images that exist and [N] of images that were made, in one call of the critic."""
    on_real, on_fake = critic(torch.cat([real, fake])).split([len(real), len(fake)])
    return on_real, on_fake


def gradient_penalty(critic: CriticFunction, real: Tensor, fake: Tensor) -> Tensor:
    """mean_i (|grad critic(x_i)|_2 - 1)^2 at points x_i on the segments from real_i to fake_i, one uniform draw an
    image (Gulrajani et al. 2017, Eq. 3): the two-sided penalty, a scalar differentiable in the critic's weights.

    Autocast is switched off inside: slopes of half precision would be differentiated once more.
    """
    points = _between(real, fake, draw_positions(real)).requires_grad_()
    with torch.autocast(points.device.type, enabled=False):
        (gradients,) = torch.autograd.grad(critic(points).sum(), points, create_graph=True)
        return _off_one(gradients)


def drawn_gradient_penalty(critic: CriticFunction, real: Tensor, fake: Tensor, positions: Tensor) -> Tensor:
    """`gradient_penalty` at positions [N, 1, ...], by a gradient that `torch.vmap` can take."""
    return _off_one(torch.func.grad(lambda points: critic(points).sum())(_between(real, fake, positions)))


def draw_positions(real: Tensor) -> Tensor:
    """Draw where on its segment each image's point lies, [N, 1, ...] in [0, 1)."""
    return torch.rand(len(real), *[1] * (real.ndim - 1), device=real.device, dtype=real.dtype)


def _between(real: Tensor, fake: Tensor, positions: Tensor) -> Tensor:
    return torch.lerp(real.detach(), fake.detach().to(real.dtype), positions)


def _off_one(gradients: Tensor) -> Tensor:
    return (gradients.flatten(1).norm(dim=1) - 1).square().mean()


def _gap(critic: CriticFunction, real: Tensor, fake: Tensor) -> Tensor:
    on_real, on_fake = score_both(critic, real, fake)
    return on_real.mean() - on_fake.mean()


class WassersteinGP(AdversarialLoss):
    """The Wasserstein game with gradient penalty (Gulrajani et al. 2017, algorithm 1).

    Args:
        penalty: the weight of the gradient penalty, the paper's lambda.
    """

    penalises_slopes = True

    def __init__(self, penalty: float = 10.0) -> None:
        super().__init__(penalty=penalty)
        if penalty < 0:
            raise ValueError(f"penalty must not be negative, got {penalty}")
        self.penalty = penalty

    def critic_loss(self, critic: CriticFunction, real: Tensor, fake: Tensor) -> CriticTerms:
        gap = _gap(critic, real, fake)
        return CriticTerms(self.penalty * gradient_penalty(critic, real, fake) - gap, gap.detach())

    def draw(self, real: Tensor) -> dict[str, Tensor]:
        return {"positions": draw_positions(real)}

    def drawn_critic_loss(
        self, critic: CriticFunction, real: Tensor, fake: Tensor, drawn: Mapping[str, Tensor]
    ) -> CriticTerms:
        gap = _gap(critic, real, fake)
        penalty = drawn_gradient_penalty(critic, real, fake, drawn["positions"])
        return CriticTerms(self.penalty * penalty - gap, gap.detach())

    def generator_loss(self, critic: CriticFunction, fake: Tensor) -> Tensor:
        return -critic(fake).mean()


class Hinge(AdversarialLoss):
    """The hinge game (Lim and Ye 2017, arXiv 1705.02894; Miyato et al. 2018, Eq. 16 and 17).

    The critic minimises mean max(0, 1 - critic(real)) + mean max(0, 1 + critic(fake)), the generator
    -mean critic(fake). Its critics are spectrally normalised.
    """

    def critic_loss(self, critic: CriticFunction, real: Tensor, fake: Tensor) -> CriticTerms:
        on_real, on_fake = score_both(critic, real, fake)
        loss = F.relu(1 - on_real).mean() + F.relu(1 + on_fake).mean()
        return CriticTerms(loss, (on_real.mean() - on_fake.mean()).detach())

    def generator_loss(self, critic: CriticFunction, fake: Tensor) -> Tensor:
        return -critic(fake).mean()


class NonSaturating(AdversarialLoss):
    """The non-saturating game (Goodfellow et al. 2014, section 3), the critic's score being its logit for "real".

    The critic minimises mean softplus(-critic(real)) + mean softplus(critic(fake)), which is its binary cross-entropy,
    the generator mean softplus(-critic(fake)).
    """

    def critic_loss(self, critic: CriticFunction, real: Tensor, fake: Tensor) -> CriticTerms:
        on_real, on_fake = score_both(critic, real, fake)
        loss = F.softplus(-on_real).mean() + F.softplus(on_fake).mean()
        return CriticTerms(loss, (on_real.mean() - on_fake.mean()).detach())

    def generator_loss(self, critic: CriticFunction, fake: Tensor) -> Tensor:
        return F.softplus(-critic(fake)).mean()
