"""The optimizer steps of StyleGAN2's training: the game's two, and those of lazy regularisation, with its penalties."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fedgen.losses import EmbeddedLoss
from fedgen.models.optional_hooks import scaler_of
from fedgen.models.stylegan2.drawing import draw_styles
from fedgen.models.stylegan2.micro_batches import micro_batches, micro_sizes

if TYPE_CHECKING:
    from fedgen.models.stylegan2.stylegan2 import StyleGAN2


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


PATH_DECAY = 0.01  # of the running mean of path lengths, an update
PATH_SHARE = 2  # path lengths are measured on every so-manieth latent


def lazy_adam(network: torch.nn.Module, lr: float, betas: tuple[float, float], interval: int) -> torch.optim.Optimizer:
    """Return Adam for a network that takes a step more every so-manieth iteration, for a penalty.

    With a step more every k-th iteration, lr * m and betas^m, m = k / (k + 1), move the weights as far and remember as
    long (Karras et al. 2020, appendix B).

    Args:
        network: of which the parameters that require gradients train.
        lr: learning rate of a network without such steps.
        betas: decays of the moments, likewise.
        interval: k, in iterations.
    """
    m = interval / (interval + 1)
    trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    return torch.optim.Adam(trained, lr=lr * m, betas=(betas[0] ** m, betas[1] ** m), eps=1e-8)


class TrainingSteps:
    """Steps of a model's optimizers on one batch of real images, each on latents and labels of its own.

    Gradients are summed over micro-batches. What was measured goes to the model's `means`, the critic's answers about
    real images to its augmentation.

    Args:
        model: whose networks train.
        optimizers: the generator's, the critic's, and whatever else trains beside them.
        compiled: functions in the place of the generator's "synthesize" and of the "critic", in steps without penalty.
    """

    def __init__(
        self, model: "StyleGAN2", optimizers: Sequence[Any], compiled: Mapping[str, Callable[..., Tensor]]
    ) -> None:
        self.model, self._compiled = model, compiled
        self._of_generator, self._of_critic = optimizers[0], optimizers[1]

    def train_generator(self, count: int) -> None:
        """Take a step of the generator against the critic and by its extra losses, on so many images."""
        model, optimizer = self.model, self._of_generator
        own = model.start_step(optimizer)
        for n in micro_sizes(count, model.micro_batch):
            labels = model.draw_labels(n)
            fake = self._synthesize(draw_styles(model.generator, n, labels, model.style_mixing))
            adversarial = F.softplus(-self._logits(fake, labels)).mean()
            loss = adversarial
            for extra in model.generator_losses:
                if isinstance(extra, EmbeddedLoss):
                    loss = loss if extra.separate else loss + extra(fake, adversarial.detach())
                else:
                    loss = loss + extra(fake)
            model.manual_backward(loss, inputs=own)
            model.means.add({"generator_loss": loss})
        for extra in model.embedded_losses:
            if extra.separate:
                generator, inputs = model.draw(extra.num_images or count)
                for part in extra.backward_parts(generator, inputs, adversarial.detach()):
                    model.manual_backward(part, inputs=own)
        self.end(optimizer, own)

    def regularise_paths(self, count: int) -> None:
        """Take a step of the generator on path lengths, which stands for the iterations since the last one.

        Args:
            count: images of the batch, of which a share is measured.
        """
        model, optimizer = self.model, self._of_generator
        own = model.start_step(optimizer)
        for n in micro_sizes(count, model.micro_batch):
            share = max(n // PATH_SHARE, 1)
            styles = draw_styles(model.generator, share, model.draw_labels(share), model.style_mixing)
            lengths = path_lengths(model.generator.synthesize(styles), styles)
            mean = model.clock.path_length.to(lengths).lerp(lengths.mean(), PATH_DECAY)
            model.clock.path_length.copy_(mean.detach())
            penalty = (lengths - mean).square().mean()
            model.manual_backward(penalty * model.path_weight * model.path_interval, inputs=own)
            model.means.add({"path_length": lengths.mean(), "path_penalty": penalty})
        self.end(optimizer, own)

    def train_critic(self, real: Tensor, labels: Tensor | None) -> None:
        """Take a step of the critic on real images [N, C, H, W], with labels int64 [N], and as many generated ones."""
        model, optimizer = self.model, self._of_critic
        own = model.start_step(optimizer)
        for images, given in micro_batches(real, labels, model.micro_batch):
            drawn = model.draw_labels(len(images))
            with torch.no_grad():
                fake = self._synthesize(draw_styles(model.generator, len(images), drawn, model.style_mixing))
            on_fake = F.softplus(self._logits(fake, drawn)).mean()
            model.manual_backward(on_fake, inputs=own)
            logits = self._logits(images, given)
            on_real = F.softplus(-logits).mean()
            model.manual_backward(on_real, inputs=own)
            self._observe(logits)
            model.means.add({"critic_loss": on_fake + on_real})
        self.end(optimizer, own)

    def penalise_slopes(self, real: Tensor, labels: Tensor | None) -> None:
        """Take a step of the critic on the R1 penalty at real images, for the iterations since the last one."""
        model, optimizer = self.model, self._of_critic
        own = model.start_step(optimizer)
        for images, given in micro_batches(real, labels, model.micro_batch):
            points = images.detach().requires_grad_()
            logits = model.critic(self._augmented(points), given)
            penalty = r1_penalty(logits, points).mean()
            model.manual_backward(penalty * (model.r1_gamma / 2 * model.r1_interval), inputs=own)
            self._observe(logits)
            model.means.add({"r1_penalty": penalty})
        self.end(optimizer, own)

    def end(self, optimizer: Any, own: list[Tensor]) -> None:
        """Step by gradients without NaN and infinity, as published; a gradient scaler has its own way with those."""
        if scaler_of(self.model.trainer) is None:
            for parameter in own:
                if parameter.grad is not None:
                    torch.nan_to_num(parameter.grad, nan=0.0, posinf=1e5, neginf=-1e5, out=parameter.grad)
        optimizer.step()

    def _synthesize(self, styles: Tensor) -> Tensor:
        return self._compiled.get("synthesize", self.model.generator.synthesize)(styles)

    def _logits(self, images: Tensor, labels: Tensor | None) -> Tensor:
        return self._compiled.get("critic", self.model.critic)(self._augmented(images), labels)

    def _augmented(self, images: Tensor) -> Tensor:
        return images if self.model.augment is None else self.model.augment(images)

    def _observe(self, logits: Tensor) -> None:
        if self.model.augment is not None:
            self.model.augment.observe(logits)
