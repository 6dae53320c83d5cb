"""Adversarial games: a critic's and a generator's losses, the calls of both networks, and checks that they fit."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedgen.data.optional_attributes import optional
from fedgen.models.networks.network import Critic, require_shape
from fedgen.models.optional_hooks import ImageNetwork
from fedgen.models.require import require
from fedgen.models.sampling import evaluating, require_batch_size

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
    """Mean (|grad critic|_2 - 1)^2 at a uniform draw between each pair of images (Gulrajani et al. 2017, Eq. 3)."""
    # outside autocast: slopes of half precision would be differentiated once more
    points = _between(real, fake, draw_positions(real)).requires_grad_()
    with torch.autocast(points.device.type, enabled=False):
        (gradients,) = torch.autograd.grad(critic(points).sum(), points, create_graph=True)
        return _off_one(gradients)


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
        require(penalty >= 0, f"penalty must not be negative, got {penalty}")
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
        # by a gradient that `torch.vmap` can take
        slopes = torch.func.grad(lambda points: critic(points).sum())(_between(real, fake, drawn["positions"]))
        return CriticTerms(self.penalty * _off_one(slopes) - gap, gap.detach())

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


BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


def generate(generator: nn.Module, latents: Tensor, labels: Tensor | None) -> Tensor:
    """Images [N, C, H, W] of latents [N, D], and of labels int64 [N] if the generator is conditional."""
    return generator(latents) if labels is None else generator(latents, labels)


def scores_batches(critic: nn.Module) -> bool:
    """Whether an image's score depends on the others of its batch: whether the critic has BatchNorm."""
    return any(isinstance(layer, BATCH_NORMS) for layer in critic.modules())


def critic_function(critic: nn.Module, count: int, labels: Tensor | None) -> CriticFunction:
    """The critic as a function of k batches of `count` images of these labels [k * count, C, H, W] to scores."""
    # a critic with BatchNorm sees one batch after another: real and generated images must not share their statistics

    def score(images: Tensor) -> Tensor:
        if labels is None:
            return critic(images)
        return critic(images, labels.repeat(len(images) // count))

    if scores_batches(critic):
        return lambda images: torch.cat([score(batch) for batch in images.split(count)])
    return score


class CriticLosses:
    """The answers of a model with a critic to the score "loss"."""

    critic: nn.Module

    @torch.no_grad()
    def example_losses(
        self, images: Tensor, labels: Tensor | None = None, seed: int = 0, batch_size: int = 64
    ) -> Tensor:
        """The critic's negated score of each image, float32 [N] on the CPU: less where it holds an image for real.

        Args:
            images: [N, C, H, W] in [-1, 1], on any device.
            labels: int64 [N] for a conditional critic; None otherwise.
            seed: nothing is drawn.
            batch_size: images that the critic gets at once.

        Raises:
            ValueError: for a batch size below 1.
        """
        require_batch_size(batch_size)
        parameter = next(self.critic.parameters())
        found = []
        with evaluating(self.critic):
            for start in range(0, len(images), batch_size):
                # the last batch is filled up: a critic that compares images, as StyleGAN2's, asks for whole groups
                chosen = torch.arange(start, start + batch_size) % len(images)
                given: tuple[Any, ...] = () if labels is None else (labels[chosen].to(parameter.device),)
                found.append(-self.critic(images[chosen].to(parameter), *given).float().flatten().cpu())
        return torch.cat(found)[: len(images)]


def check_pair(generator: nn.Module, critic: nn.Module, loss: AdversarialLoss) -> None:
    """Raises ValueError if two networks cannot play a game, as far as their attributes tell."""
    require(isinstance(loss, AdversarialLoss), f"loss={loss!r} is no game; give one, e.g. Hinge() or WassersteinGP()")
    classes = [optional(network, ImageNetwork, "num_classes") for network in (generator, critic)]
    require(
        classes[0] == classes[1],
        f"the generator has num_classes={classes[0]} and the critic {classes[1]}; give both the same",
    )
    require(
        not (loss.penalises_slopes and scores_batches(critic)),
        f"{type(loss).__name__} penalises the critic's slope in each image, but BatchNorm makes an image's score depend"
        " on the others; use a critic without it, or another game",
    )


@torch.no_grad()
def check_images(generator: nn.Module, critic: nn.Module | None, data_shape: tuple[int, ...] | None) -> None:
    """Tries networks in eval mode on two images; raises ValueError if images, scores or data do not fit."""
    parameter = next(generator.parameters())
    conditional = optional(generator, ImageNetwork, "num_classes") is not None
    labels = torch.zeros(2, dtype=torch.int64, device=parameter.device) if conditional else None
    images = generate(generator, parameter.new_zeros(2, int(generator.latent_dim)), labels)  # type: ignore[arg-type]
    made = list(images.shape[1:])
    require_shape(images.new_empty(1, *(data_shape or made)), images.shape[1:], "the generator")
    if critic is None:
        return
    if isinstance(critic, Critic):
        require_shape(images, critic.image_shape, "the critic")
    try:
        scores = critic_function(critic, 2, labels)(images)
    except RuntimeError as error:
        raise ValueError(f"the critic cannot score the generator's images {made}: {error}") from error
    require(scores.shape == (2,), f"the critic must return one score an image, [N], got {list(scores.shape)} of 2")
