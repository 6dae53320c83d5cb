"""Checks that a generator, a critic, a game and the data fit each other, made before anything trains."""

import torch
from torch import nn

from fedgen.data.optional_attributes import optional
from fedgen.models.conditioning import critic_function, generate, scores_batches
from fedgen.models.gan.adversarial import AdversarialLoss
from fedgen.models.networks.network import Critic, require_shape
from fedgen.models.optional_hooks import ImageNetwork
from fedgen.models.require import require


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
    """Tries networks in eval mode on two images.

    Args:
        generator: with `latent_dim`.
        critic: scores its images; None where there is none.
        data_shape: (C, H, W) of the data, if it is known.

    Raises:
        ValueError: if images, scores or data do not have the shapes that they need.
    """
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
