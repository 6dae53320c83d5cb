"""Random draws of StyleGAN2: latents, mixed styles, and the noise of sampled images."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fedgen.models.require import require
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


def changed_sampling(present: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings of sampling, "truncation" and "noise", with some of them changed.

    Raises:
        ValueError: for another setting, or a noise that there is not.
    """
    unknown = set(settings) - set(present)
    require(not unknown, f"StyleGAN2 samples by truncation and noise, and not by {', '.join(sorted(unknown))}")
    noise = settings.get("noise", present["noise"])
    require(noise in ("random", "const", "none"), f"noise={noise!r}: choose 'random', 'const' or 'none'")
    return {**present, **settings}


def sample_images(
    network: StyleGAN2Generator,
    latents: Tensor,
    labels: Tensor | None,
    generator: torch.Generator | None,
    truncation: float,
    noise: str,
) -> Tensor:
    """Images float32 [n, C, H, W], cut to [-1, 1], on the network's device.

    Args:
        network: in eval mode.
        latents: [n, latent_dim], on any device.
        labels: int64 [n] of a conditional network, on any device.
        generator: a CPU generator for random noise; the global one by default.
        truncation: of the styles.
        noise: "random", "const" or "none".
    """
    device = next(network.parameters()).device
    drawn = draw_noise(network, len(latents), generator).to(device) if noise == "random" else noise
    given = None if labels is None else labels.to(device)
    return network(latents.to(device), given, truncation, noise=drawn).float().clamp(-1, 1)
