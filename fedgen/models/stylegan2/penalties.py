"""Regularisers of StyleGAN2's two networks: slopes of the discriminator, path lengths of the generator."""

import math

import torch
from torch import Tensor


def r1_penalty(logits: Tensor, images: Tensor) -> Tensor:
    """Squared slopes [N] of the discriminator at images that exist (Mescheder et al. 2018, arXiv 1801.04406, Eq. 9).

    The loss is gamma / 2 times it. Differentiable in the discriminator's weights.

    Args:
        logits: [N] of the images.
        images: [N, C, H, W] that required gradients when the logits were computed.
    """
    (slopes,) = torch.autograd.grad(logits.sum(), images, create_graph=True)
    return slopes.flatten(1).square().sum(dim=1)


def path_lengths(images: Tensor, styles: Tensor, noise: Tensor | None = None) -> Tensor:
    """Measure how far images [n, C, H, W] move with their styles, [n] (Karras et al. 2020, arXiv 1912.04958, Eq. 4).

    |J^T y| for one random image y of unit expected norm per channel, the root mean square over the styles of an image.
    Differentiable in the generator's weights.

    Args:
        images: made from the styles.
        styles: [n, num_styles, style_dim].
        noise: y times sqrt(H W), standard normal, of the images' shape; drawn from torch's global generator by default.
    """
    noise = torch.randn_like(images) if noise is None else noise
    weighted = (images * noise).sum() / math.sqrt(images.shape[2] * images.shape[3])
    (slopes,) = torch.autograd.grad(weighted, styles, create_graph=True)
    return slopes.square().sum(dim=2).mean(dim=1).sqrt()
