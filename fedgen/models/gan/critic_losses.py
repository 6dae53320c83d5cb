"""A critic's opinion of real images, one by one."""

from typing import Any

import torch
from torch import Tensor, nn

from fedgen.models.sampling import evaluating, require_batch_size


class CriticLosses:
    """The answers of a model with a critic to the score "loss"."""

    critic: nn.Module

    @torch.no_grad()
    def example_losses(
        self, images: Tensor, labels: Tensor | None = None, seed: int = 0, batch_size: int = 64
    ) -> Tensor:
        """The critic's negated score of each image, float32 [N] on the CPU: less where it holds an image for real.

        What it is less by on training images than on others, the critic has learnt by heart. Nothing is drawn. Batches
        are of one size, the last one filled up with the first images: a critic that compares the images of a batch,
        as StyleGAN2's does, asks for whole groups.

        Args:
            images: [N, C, H, W] in [-1, 1], on any device.
            labels: int64 [N] for a conditional critic; None otherwise.
            seed: of no matter here.
            batch_size: images that the critic gets at once.

        Raises:
            ValueError: for a batch size below 1.
        """
        require_batch_size(batch_size)
        parameter = next(self.critic.parameters())
        found = []
        with evaluating(self.critic):
            for start in range(0, len(images), batch_size):
                chosen = torch.arange(start, start + batch_size) % len(images)
                given: tuple[Any, ...] = () if labels is None else (labels[chosen].to(parameter.device),)
                found.append(-self.critic(images[chosen].to(parameter), *given).float().flatten().cpu())
        return torch.cat(found)[: len(images)]
