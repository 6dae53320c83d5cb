"""A diffusion model's loss of every example on its own, for comparing data sets."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedgen.models.diffusion.diffusion_schedule import Diffusion, draw_timesteps
from fedgen.models.sampling import require_batch_size
from fedgen.seeds import generator


@torch.no_grad()
def epsilon_losses(
    network: nn.Module,
    diffusion: Diffusion,
    images: Tensor,
    labels: Tensor | None,
    seed: int,
    timesteps: int | Sequence[int],
    batch_size: int,
    first: int = 0,
) -> Tensor:
    """The mean squared error of the predicted noise of each image, float32 [N] on the CPU.

    Example i's timesteps and noise are those of (seed, i), whatever the other examples and the batch size: data sets
    are compared at common random numbers.

    Args:
        network: in eval mode.
        diffusion: its forward process; a network that predicts v is measured by the noise that its v implies.
        images: [N, C, H, W] in [-1, 1].
        labels: int64 [N], or None.
        seed: of the draws.
        timesteps: how many an example, each uniform in one of as many equal parts of all; or which.
        batch_size: images that the network gets at once.
        first: the place of the first image, from 0.

    Raises:
        ValueError: for a batch size below 1.
    """
    require_batch_size(batch_size)
    parameter = next(network.parameters())
    losses = []
    for start in range(0, len(images), batch_size):
        part = images[start : start + batch_size].to(parameter.device).float()
        at, noise = _draws(first + start, part, seed, timesteps, diffusion.schedule.timesteps)
        of = () if labels is None else (labels[start : start + batch_size].to(parameter.device),)
        errors = []
        for t, e in zip(at.unbind(1), noise.unbind(1)):
            noisy = diffusion.add_noise(part, e, t)
            predicted = network(noisy.to(parameter), t, *of).float()
            errors.append((diffusion.epsilon(predicted, noisy, t) - e).square().flatten(1).mean(1))
        losses.append(torch.stack(errors).mean(0).cpu())
    return torch.cat(losses)


def _draws(start: int, images: Tensor, seed: int, timesteps: int | Sequence[int], length: int) -> tuple[Tensor, Tensor]:
    """Timesteps [N, K] and noise [N, K, C, H, W] of the examples start, start + 1, ..."""
    at, noise = [], []
    for index in range(start, start + len(images)):
        draws = generator(seed, "example losses", index)
        if isinstance(timesteps, int):
            at.append(draw_timesteps(timesteps, length, draws))
        else:
            at.append(torch.tensor(list(timesteps), dtype=torch.int64))
        noise.append(torch.randn(len(at[-1]), *images.shape[1:], generator=draws))
    return torch.stack(at).to(images.device), torch.stack(noise).to(images.device)
