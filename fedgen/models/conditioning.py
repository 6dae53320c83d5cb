"""Networks with and without labels behind one call each."""

import torch
from torch import Tensor, nn

from fedgen.models.gan.adversarial import CriticFunction

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


def generate(generator: nn.Module, latents: Tensor, labels: Tensor | None) -> Tensor:
    """Images [N, C, H, W] of latents [N, D], and of labels int64 [N] if the generator is conditional."""
    return generator(latents) if labels is None else generator(latents, labels)


def scores_batches(critic: nn.Module) -> bool:
    """Whether an image's score depends on the others of its batch: whether the critic has BatchNorm."""
    return any(isinstance(layer, BATCH_NORMS) for layer in critic.modules())


def critic_function(critic: nn.Module, count: int, labels: Tensor | None) -> CriticFunction:
    """The critic as a function of k batches of `count` images at once, [k * count, C, H, W], to scores [k * count].

    Each batch has the same labels. A critic with BatchNorm sees one batch after another, as real and generated images
    must not share their statistics.

    Args:
        critic: the network.
        count: images of a batch.
        labels: int64 [count] of each batch; None for an unconditional critic.
    """

    def score(images: Tensor) -> Tensor:
        if labels is None:
            return critic(images)
        return critic(images, labels.repeat(len(images) // count))

    if scores_batches(critic):
        return lambda images: torch.cat([score(batch) for batch in images.split(count)])
    return score


class AtPositions(nn.Module):
    """A conditional generator as a function of positions int64 [n] in fixed latents and labels, to be cut in chunks.

    Args:
        generator: images of latents and labels.
        latents: [N, D].
        labels: int64 [N].
    """

    def __init__(self, generator: nn.Module, latents: Tensor, labels: Tensor) -> None:
        super().__init__()
        self.generator = generator
        self.latents, self.labels = latents, labels

    def forward(self, positions: Tensor) -> Tensor:
        return self.generator(self.latents[positions], self.labels[positions])
