"""A denoiser's loss of every example on its own, for comparing data sets."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from fedgen.models.diffusion.diffusion_schedule import Diffusion, draw_timesteps
from fedgen.models.sampling import require_batch_size
from fedgen.seeds import generator

# (the network as a function of noisy images and times, images [n, ...], times [n], noise [n, ...]) -> errors [n, ...]
Errors = Callable[[Callable[[Tensor, Tensor], Tensor], Tensor, Tensor, Tensor], Tensor]


@torch.no_grad()
def losses_of_examples(
    network: nn.Module,
    errors: Errors,
    draw_times: Callable[[torch.Generator], Tensor],
    images: Tensor,
    labels: Tensor | None,
    seed: int,
    batch_size: int,
    first: int = 0,
) -> Tensor:
    """The mean square of each image's errors at times and noise of its own, float32 [N] on the CPU.

    Example i's times and noise are those of (seed, i), whatever the other examples and the batch size: data sets are
    compared at common random numbers.

    Args:
        network: in eval mode.
        errors: of a network's predictions.
        draw_times: the times [K] of an example.
        images: [N, ...].
        labels: int64 [N], or None.
        seed: of the draws.
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
        times, noise = _draws(first + start, part, seed, draw_times)
        of = () if labels is None else (labels[start : start + batch_size].to(parameter.device),)

        def ask(noisy: Tensor, at: Tensor, of: tuple[Tensor, ...] = of) -> Tensor:
            return network(noisy.to(parameter), at, *of).float()

        found = [errors(ask, part, t, e).square().flatten(1).mean(1) for t, e in zip(times.unbind(1), noise.unbind(1))]
        losses.append(torch.stack(found).mean(0).cpu())
    return torch.cat(losses)


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
    """The mean squared error of the predicted noise of each image, float32 [N] on the CPU; see `losses_of_examples`.

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

    def errors(ask: Callable[[Tensor, Tensor], Tensor], part: Tensor, t: Tensor, e: Tensor) -> Tensor:
        noisy = diffusion.add_noise(part, e, t)
        return diffusion.epsilon(ask(noisy, t), noisy, t) - e

    def draw_times(draws: torch.Generator) -> Tensor:
        if isinstance(timesteps, int):
            return draw_timesteps(timesteps, diffusion.schedule.timesteps, draws)
        return torch.tensor(list(timesteps), dtype=torch.int64)

    return losses_of_examples(network, errors, draw_times, images, labels, seed, batch_size, first)


def _draws(
    start: int, images: Tensor, seed: int, draw_times: Callable[[torch.Generator], Tensor]
) -> tuple[Tensor, Tensor]:
    """Times [N, K] and noise [N, K, ...] of the examples start, start + 1, ..."""
    times, noise = [], []
    for index in range(start, start + len(images)):
        draws = generator(seed, "example losses", index)
        times.append(draw_times(draws))
        noise.append(torch.randn(len(times[-1]), *images.shape[1:], generator=draws))
    return torch.stack(times).to(images.device), torch.stack(noise).to(images.device)
