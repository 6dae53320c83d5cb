"""Random draws of StyleGAN2: latents, mixed styles, and the noise of sampled images."""

import torch
from torch import Tensor

from fedgen.models.stylegan2.generator import StyleGAN2Generator


def draw_styles(network: StyleGAN2Generator, count: int, labels: Tensor | None, mixing: float) -> Tensor:
    """Styles [count, num_styles, style_dim] of latents drawn from torch's global generator.

    With a probability of `mixing`, once for all images, their styles from a random layer on are those of second latents
    (Karras et al. 2019, section 3.1), which do not move the mean of styles.

    Args:
        network: in training mode, its mean of styles follows those of the first latents.
        count: how many.
        labels: of a conditional network.
        mixing: in [0, 1].
    """
    device = next(network.parameters()).device
    styles = network.styles(torch.randn(count, network.latent_dim, device=device), labels)
    if mixing > 0:
        first = int(torch.randint(1, network.num_styles, ()))
        if torch.rand(()) < mixing:
            second = torch.randn(count, network.latent_dim, device=device)
            others = network.styles(second, labels, update_average=False)
            styles = torch.cat([styles[:, :first], others[:, first:]], dim=1)
    return styles


def draw_noise(network: StyleGAN2Generator, count: int, generator: torch.Generator | None) -> Tensor:
    """Noise [count, noise_dim] on the CPU, the same for an image however images are cut into batches.

    torch fills a tensor sixteen numbers at a time, and an image's noise is a multiple of that.
    """
    return torch.randn(count, network.synthesis.noise_dim, generator=generator)
