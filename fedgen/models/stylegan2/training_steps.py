"""StyleGAN2's random draws, its micro-batches, and the optimizer steps of its training with their penalties."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fedgen.data.optional_attributes import optional
from fedgen.losses.feature_loss import KeepsPrecision
from fedgen.models.adversarial import CriticLosses
from fedgen.models.latent_generator import LatentGenerator
from fedgen.models.optional_hooks import FederatedData, scaler_of
from fedgen.models.require import require
from fedgen.models.stylegan2.augment import AdaptiveAugment
from fedgen.models.stylegan2.discriminator import StyleGAN2Discriminator
from fedgen.models.stylegan2.generator import StyleGAN2Generator

PATH_DECAY = 0.01  # of the running mean of path lengths, an update
PATH_SHARE = 2  # path lengths are measured on one latent of this many


def draw_styles(network: StyleGAN2Generator, count: int, labels: Tensor | None, mixing: float) -> Tensor:
    """Styles [count, num_styles, style_dim] of latents drawn from torch's global generator.

    With a probability of `mixing`, once for all images, their styles from a random layer on are those of second latents
    (Karras et al. 2019, section 3.1), which do not move the mean of styles.
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
    """Raises ValueError if a client's batches, in parts of `size`, do not divide into the critic's groups.

    A data module that does not say its clients and batch size is not checked.
    """
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
    """Squared slopes [N] of the discriminator at images that exist (Mescheder et al. 2018, arXiv 1801.04406, Eq. 9).

    The loss is gamma / 2 times it. Differentiable in the discriminator's weights; images require gradients.
    """
    (slopes,) = torch.autograd.grad(logits.sum(), images, create_graph=True)
    return slopes.flatten(1).square().sum(dim=1)


def path_lengths(images: Tensor, styles: Tensor, noise: Tensor | None = None) -> Tensor:
    """Lengths [n] by which images [n, C, H, W] move with their styles (Karras et al. 2020, arXiv 1912.04958, Eq. 4).

    |J^T y| for one random image y of unit expected norm per channel, the root mean square over the styles of an image.
    Differentiable in the generator's weights. `noise` is y times sqrt(H W), standard normal, drawn by default.
    """
    noise = torch.randn_like(images) if noise is None else noise
    weighted = (images * noise).sum() / math.sqrt(images.shape[2] * images.shape[3])
    (slopes,) = torch.autograd.grad(weighted, styles, create_graph=True)
    return slopes.square().sum(dim=2).mean(dim=1).sqrt()


def lazy_adam(network: torch.nn.Module, lr: float, betas: tuple[float, float], interval: int) -> torch.optim.Optimizer:
    """Adam for a network that takes an additional step every `interval` iterations, for a penalty.

    With one more step every k-th iteration, lr * m and betas^m, m = k / (k + 1), move the weights as far and remember
    as long (Karras et al. 2020, appendix B).
    """
    m = interval / (interval + 1)
    trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    return torch.optim.Adam(trained, lr=lr * m, betas=(betas[0] ** m, betas[1] ** m), eps=1e-8)


def ema_decay(batch: float, images: float, kimg: float, rampup: float | None) -> float:
    """The decay of one iteration of a moving average with a half-life of `kimg` thousand images.

    0.5^(batch / half-life), for the images shown before the iteration; `rampup` bounds the half-life as a share of
    them, so that early weights are forgotten.
    """
    half_life = kimg * 1000 if rampup is None else min(kimg * 1000, images * rampup)
    return 0.5 ** (batch / max(half_life, 1e-8))


def ema_decay_over(before: float, after: float, iterations: int, kimg: float, rampup: float | None) -> float:
    """The product of the decays of equal iterations that showed the images from `before` to `after`."""
    batch = (after - before) / iterations
    return math.prod(ema_decay(batch, before + i * batch, kimg, rampup) for i in range(iterations))


class TrainingClock(KeepsPrecision):
    """Real images shown so far, and the running mean of path lengths; both float64, whatever the model's precision.

    Floating buffers, so under `FedAvgStrategy` the server's are the weighted means over clients: images that a client
    was shown, not their sum over clients, as clients train side by side. A checkpoint holds both.
    """

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


class TrainingSteps(CriticLosses, LatentGenerator):
    """The optimizer steps of `StyleGAN2`, each on latents and labels of its own.

    Gradients are summed over micro-batches. What was measured goes to `means`, the critic's answers about real images
    to the augmentation.
    """

    generator: StyleGAN2Generator
    critic: StyleGAN2Discriminator
    augment: AdaptiveAugment | None
    clock: TrainingClock
    r1_gamma: float
    r1_interval: int
    path_weight: float
    path_interval: int
    style_mixing: float
    micro_batch: int | None
    _compiled: Mapping[str, Any]
    """Functions in the place of the generator's "synthesize" and of the "critic", in steps without penalty."""

    def train_generator(self, optimizer: Any, count: int) -> None:
        """A step of the generator against the critic and by its extra losses, on `count` images."""
        own = self.start_step(optimizer)
        for n in micro_sizes(count, self.micro_batch):
            labels = self.draw_labels(n)
            fake = self._synthesize(draw_styles(self.generator, n, labels, self.style_mixing))
            adversarial = F.softplus(-self._logits(fake, labels)).mean()
            loss = self.add_joint_losses(adversarial, fake, adversarial.detach())
            self.manual_backward(loss, inputs=own)
            self.means.add({"generator_loss": loss})
        self.backward_separate_losses(count, adversarial.detach(), own)
        self.end_step(optimizer, own)

    def regularise_paths(self, optimizer: Any, count: int) -> None:
        """A step of the generator on path lengths of a share of `count` images, for all iterations since the last."""
        own = self.start_step(optimizer)
        for n in micro_sizes(count, self.micro_batch):
            share = max(n // PATH_SHARE, 1)
            styles = draw_styles(self.generator, share, self.draw_labels(share), self.style_mixing)
            lengths = path_lengths(self.generator.synthesize(styles), styles)
            mean = self.clock.path_length.to(lengths).lerp(lengths.mean(), PATH_DECAY)
            self.clock.path_length.copy_(mean.detach())
            penalty = (lengths - mean).square().mean()
            self.manual_backward(penalty * self.path_weight * self.path_interval, inputs=own)
            self.means.add({"path_length": lengths.mean(), "path_penalty": penalty})
        self.end_step(optimizer, own)

    def train_critic(self, optimizer: Any, real: Tensor, labels: Tensor | None) -> None:
        """A step of the critic on real images [N, C, H, W], with labels int64 [N], and as many generated ones."""
        own = self.start_step(optimizer)
        for images, given in micro_batches(real, labels, self.micro_batch):
            drawn = self.draw_labels(len(images))
            with torch.no_grad():
                fake = self._synthesize(draw_styles(self.generator, len(images), drawn, self.style_mixing))
            on_fake = F.softplus(self._logits(fake, drawn)).mean()
            self.manual_backward(on_fake, inputs=own)
            logits = self._logits(images, given)
            on_real = F.softplus(-logits).mean()
            self.manual_backward(on_real, inputs=own)
            if self.augment is not None:
                self.augment.observe(logits)
            self.means.add({"critic_loss": on_fake + on_real})
        self.end_step(optimizer, own)

    def penalise_slopes(self, optimizer: Any, real: Tensor, labels: Tensor | None) -> None:
        """A step of the critic on the R1 penalty at real images, for all iterations since the last."""
        own = self.start_step(optimizer)
        for images, given in micro_batches(real, labels, self.micro_batch):
            points = images.detach().requires_grad_()
            logits = self.critic(self._augmented(points), given)
            penalty = r1_penalty(logits, points).mean()
            self.manual_backward(penalty * (self.r1_gamma / 2 * self.r1_interval), inputs=own)
            if self.augment is not None:
                self.augment.observe(logits)
            self.means.add({"r1_penalty": penalty})
        self.end_step(optimizer, own)

    def end_step(self, optimizer: Any, own: list[Tensor]) -> None:
        """Steps by gradients without NaN and infinity, as published; a gradient scaler has its own way with those."""
        if scaler_of(self.trainer) is None:
            for parameter in own:
                if parameter.grad is not None:
                    torch.nan_to_num(parameter.grad, nan=0.0, posinf=1e5, neginf=-1e5, out=parameter.grad)
        optimizer.step()

    def _synthesize(self, styles: Tensor) -> Tensor:
        return self._compiled.get("synthesize", self.generator.synthesize)(styles)

    def _logits(self, images: Tensor, labels: Tensor | None) -> Tensor:
        return self._compiled.get("critic", self.critic)(self._augmented(images), labels)

    def _augmented(self, images: Tensor) -> Tensor:
        return images if self.augment is None else self.augment(images)
