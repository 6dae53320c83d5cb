"""StyleGAN2's random draws, micro-batches, penalties, lazy optimizers and average of weights, and its clock."""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from fedgen.data.optional_attributes import optional
from fedgen.losses.feature_loss import KeepsPrecision
from fedgen.models.optional_hooks import FederatedData
from fedgen.models.require import require
from fedgen.models.stylegan2.generator import StyleGAN2Generator

PATH_DECAY = 0.01  # of the running mean of path lengths, an update
PATH_SHARE = 2  # path lengths are measured on one latent of this many


def draw_styles(network: StyleGAN2Generator, count: int, labels: Tensor | None, mixing: float) -> Tensor:
    """Styles [count, num_styles, style_dim], by a probability of `mixing` from a random layer on of second latents."""
    # once for all images (Karras et al. 2019, section 3.1); second latents do not move the mean of styles
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
    """Noise [count, noise_dim] on the CPU, the same for an image however images are cut into batches."""
    # torch fills a tensor sixteen numbers at a time, and an image's noise is a multiple of that
    return torch.randn(count, network.synthesis.noise_dim, generator=generator)


def micro_sizes(count: int, size: int | None) -> list[int]:
    """The sizes of the parts of `count` images, of at most `size` each; None: one part."""
    size = min(size or count, count)
    return [min(size, count - start) for start in range(0, count, size)]


def micro_batches(real: Tensor, labels: Tensor | None, size: int | None) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Images [N, C, H, W] and labels int64 [N] in parts; see `micro_sizes`."""
    sizes = micro_sizes(len(real), size)
    given = [None] * len(sizes) if labels is None else labels.split(sizes)
    return zip(real.split(sizes), given)


def check_batches(data: Any, group: int | None, size: int | None) -> None:
    """Raises ValueError if clients' batches, where they are known, do not divide in parts of `size` into the groups."""
    clients, batch = optional(data, FederatedData, "clients"), optional(data, FederatedData, "batch_size")
    if not clients or batch is None or group is None:
        return
    for client in clients:
        count = len(client.train)
        require(count > 0, f"client {client.name} has no training image; leave it out of the partition")
        for part in micro_sizes(min(batch, count), size):
            require(
                part % min(group, part) == 0,
                f"client {client.name} trains on batches of {min(batch, count)} images, of which {part} at once do"
                f" not divide into the critic's minibatch-std groups of {group}; choose batch_size, micro_batch and"
                " group_size that do, or leave that client out",
            )


def r1_penalty(logits: Tensor, images: Tensor) -> Tensor:
    """Squared slopes [N] at images that require gradients (Mescheder et al. 2018, Eq. 9), without gamma / 2."""
    (slopes,) = torch.autograd.grad(logits.sum(), images, create_graph=True)
    return slopes.flatten(1).square().sum(dim=1)


def path_lengths(images: Tensor, styles: Tensor, noise: Tensor | None = None) -> Tensor:
    """Lengths [n] by which images [n, C, H, W] move with styles (Karras et al. 2020, arXiv 1912.04958, Eq. 4)."""
    # |J^T y| for one random image y of unit expected norm per channel, root mean square over the styles of an image;
    # `noise` is y times sqrt(H W)
    noise = torch.randn_like(images) if noise is None else noise
    weighted = (images * noise).sum() / math.sqrt(images.shape[2] * images.shape[3])
    (slopes,) = torch.autograd.grad(weighted, styles, create_graph=True)
    return slopes.square().sum(dim=2).mean(dim=1).sqrt()


def lazy_adam(network: torch.nn.Module, lr: float, betas: tuple[float, float], interval: int) -> torch.optim.Optimizer:
    """Adam for a further step every k iterations: lr m, betas^m, m = k / (k + 1) (Karras et al. 2020, appendix B)."""
    m = interval / (interval + 1)
    trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    return torch.optim.Adam(trained, lr=lr * m, betas=(betas[0] ** m, betas[1] ** m), eps=1e-8)


def ema_decay(batch: float, images: float, kimg: float, rampup: float | None) -> float:
    """The decay 0.5^(batch / half-life) of an iteration, the latter at most `rampup` times the images shown."""
    half_life = kimg * 1000 if rampup is None else min(kimg * 1000, images * rampup)
    return 0.5 ** (batch / max(half_life, 1e-8))


def ema_decay_over(before: float, after: float, iterations: int, kimg: float, rampup: float | None) -> float:
    """The product of the decays of equal iterations that showed the images from `before` to `after`."""
    batch = max(after - before, 0.0) / iterations  # of clients that weigh unequally and started at other rounds
    return math.prod(ema_decay(batch, before + i * batch, kimg, rampup) for i in range(iterations))


class TrainingClock(KeepsPrecision):
    """Real images that a client was shown, and the mean of path lengths; float64, averaged over clients."""

    images: Tensor
    path_length: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("images", torch.zeros((), dtype=torch.float64))
        self.register_buffer("path_length", torch.zeros((), dtype=torch.float64))

    @property
    def kimg(self) -> float:
        """Thousands of real images shown."""
        return float(self.images) / 1000
