"""StyleGAN2's networks against the plainest formulation of the same mathematics, on one thread.

    python -m benchmarks.stylegan2 [--repeats 3] [--sizes 64 256]

Plain: a grouped convolution with a kernel of its own for each image, filters as PyTorch's convolutions of maps in
NCHW, all derivatives PyTorch's own. Ours: one kernel for all images with styles on input and output, filters with their
own derivatives, channels_last. The two give the same numbers, which is checked. Beside a generator's step of ours:
what twelve clients add who are asked for their MMD^2 of its batch, the embedding left out. About four minutes.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from unittest import mock

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

from benchmarks.device import work_seconds
from benchmarks.report import report
from fedgen.losses import DistributedLoss
from fedgen.models.stylegan2 import StyleGAN2Discriminator, StyleGAN2Generator, configuration, operations
from fedgen.models.stylegan2 import generator as generators
from fedgen.models.stylegan2.training_steps import r1_penalty

BATCHES = {64: 8, 256: 2}
AHEAD, LEVEL = 1 / 1.3, 0.95
# Of ours over plain. Where convolutions are nearly all of it, which both do, nothing can be far ahead. What plain does
# besides is bound by memory: on one machine its images at 256 took 0.81 to 0.95 s on different days, ours 0.67 to 0.69.
LIMITS = {
    (64, "generator's images"): AHEAD,
    (64, "generator's step"): AHEAD,
    (64, "critic's step with R1"): LEVEL,
    (256, "generator's images"): LEVEL,
    (256, "generator's step"): LEVEL,
    (256, "critic's step with R1"): LEVEL,
}
ASKED = 0.2  # of a generator's step, at most, for distributed MMD^2
CLIENTS, IMAGES, DIM = 12, 1000, 2048  # whom it asks, with as many images each, in Inception's features

Pair = tuple[StyleGAN2Generator, StyleGAN2Discriminator]


@dataclass(frozen=True)
class Work:
    """A batch of images of a size, the device, and how networks compute.

    Args:
        size: rows and columns.
        half: whether the four largest resolutions are in half precision, as published.
    """

    size: int
    batch: int
    device: str = "cpu"
    half: bool = False

    @property
    def title(self) -> str:
        """What figures are of."""
        return f"StyleGAN2, {self.size} x {self.size}, batch {self.batch}"


def plain_upfirdn2d(
    x: Tensor,
    taps: Tensor | None,
    up: int = 1,
    down: int = 1,
    padding: object = 0,
    flip: bool = False,
    gain: float = 1.0,
) -> Tensor:
    """Zeros inserted, padded, one convolution over the whole grid, samples dropped; filters [n, n] alone."""
    assert taps is not None
    assert isinstance(padding, list)
    n, channels, height, width = x.shape
    x = F.pad(x.reshape(n, channels, height, 1, width, 1), [0, up - 1, 0, 0, 0, up - 1])
    x = F.pad(x.reshape(n, channels, height * up, width * up), padding)
    kernel = (taps if flip else taps.flip([0, 1])) * gain
    return F.conv2d(x, kernel.expand(channels, 1, *taps.shape), groups=channels)[:, :, ::down, ::down]


def plain_modulated_conv2d(
    x: Tensor,
    weight: Tensor,
    styles: Tensor,
    noise: Tensor | None = None,
    bias: Tensor | None = None,
    up: int = 1,
    down: int = 1,
    taps: Tensor | None = None,
    flip: bool = True,
    demodulate: bool = True,
    gain: float = 1.0,
) -> Tensor:
    """A kernel for each image, and the convolution in as many groups."""
    n, inputs, height, width = x.shape
    outputs, _, kernel, _ = weight.shape
    own = weight[None] * styles[:, None, :, None, None]
    if demodulate:
        own = own * (own.square().sum(dim=(2, 3, 4), keepdim=True) + 1e-8).rsqrt()
    x = x.reshape(1, n * inputs, height, width)
    if up == 2:
        rotated = own.flip([3, 4]) if flip else own
        x = F.conv_transpose2d(
            x, rotated.transpose(1, 2).reshape(n * inputs, outputs, kernel, kernel), stride=2, groups=n
        )
        x = plain_upfirdn2d(x, taps, padding=[1, 1, 1, 1], gain=4)
    else:
        x = F.conv2d(x, own.reshape(n * outputs, inputs, kernel, kernel), padding=kernel // 2, groups=n)
    x = x.reshape(n, outputs, *x.shape[2:]) * gain
    x = x if noise is None else x + noise
    return x if bias is None else x + bias[:, None, None]


@contextmanager
def plainly() -> Iterator[None]:
    """Networks compute in the plain formulation inside the block."""
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(generators, "modulated_conv2d", plain_modulated_conv2d))
        stack.enter_context(mock.patch.object(operations, "conv2d", F.conv2d))
        stack.enter_context(mock.patch.object(operations, "upfirdn2d", plain_upfirdn2d))
        yield


def make_pair(work: Work, channels_last: bool) -> Pair:
    """The published automatic configuration's networks, trained from a seed; noise that does something."""
    torch.manual_seed(0)
    model = configuration(resolution=work.size, aug="noaug", fp32=not work.half).build(work.size)
    for name, parameter in model.generator.named_parameters():
        if name.endswith("noise_strength"):
            torch.nn.init.constant_(parameter, 0.1)
    model.generator.synthesis.channels_last = model.critic.channels_last = channels_last
    return model.generator.to(work.device), model.critic.to(work.device)


def latents(work: Work, generator: StyleGAN2Generator) -> Tensor:
    return torch.randn(work.batch, generator.latent_dim, device=work.device)


def generator_forward(work: Work, pair: Pair) -> Tensor:
    with torch.no_grad():
        return pair[0](latents(work, pair[0]), noise="const")


def generator_step(work: Work, pair: Pair) -> Tensor:
    """Forward and backward of the generator's loss; its gradients' norm."""
    generator, critic = pair
    fake = generator(latents(work, generator), noise="const")
    return norm(torch.autograd.grad(F.softplus(-critic(fake)).mean(), list(generator.parameters()), allow_unused=True))


def critic_step(work: Work, pair: Pair) -> Tensor:
    """The critic's loss on images made and images given, and the R1 penalty; its gradients' norm."""
    critic, fake = pair[1], generator_forward(work, pair)
    real = (torch.rand(work.batch, 3, work.size, work.size, device=work.device) * 2 - 1).requires_grad_()
    on_real = critic(real)
    loss = F.softplus(critic(fake)).mean() + F.softplus(-on_real).mean() + r1_penalty(on_real, real).mean()
    return norm(torch.autograd.grad(loss, list(critic.parameters())))


PARTS: dict[str, Callable[[Work, Pair], Tensor]] = {
    "generator's images": generator_forward,
    "generator's step": generator_step,
    "critic's step with R1": critic_step,
}


def norm(gradients: tuple[Tensor | None, ...]) -> Tensor:
    return torch.stack([g.detach().double().norm() for g in gradients if g is not None]).norm()


def timed(work: Callable[[], Tensor]) -> tuple[float, Tensor]:
    """How long it takes, and what it gives, with the same draws each time."""
    torch.manual_seed(1)
    start = work_seconds()
    found = work()
    return work_seconds() - start, found


def shortest(works: Sequence[Callable[[], Tensor]], repeats: int) -> list[tuple[float, Tensor]]:
    """The shortest time of each, and what it gave; in turns, so that a busy machine is busy for all of them.

    The first call of each allocates, and is not its shortest.
    """
    runs = [[timed(work) for work in works] for _ in range(repeats)]
    return [min(own, key=lambda one: one[0]) for own in zip(*runs)]


def compare(work: Work, name: str, repeats: int) -> bool:
    """Ours over the plain formulation, once both are known to give the same."""
    part = PARTS[name]

    def plain_part() -> Tensor:
        with plainly():
            return part(work, pair_of(work, False))

    (ours, found), (plain, expected) = shortest([lambda: part(work, pair_of(work, True)), plain_part], repeats)
    off = float((found - expected).abs().max() / expected.abs().max())
    if not off < 1e-3:
        raise AssertionError(f"{name} at {work.size} x {work.size}: the two formulations disagree by {off}")
    report(f"{work.title}: {name}, plain", plain, "s")
    if work.device == "cpu":
        report(f"{work.title}: {name}, convolutions' share of ours", share_of_convolutions(work, name), "ratio")
    limit = LIMITS.get((work.size, name), LEVEL)
    return report(f"{work.title}: {name}, ours over plain", ours / plain, "ratio", limit)


def share_of_convolutions(work: Work, name: str) -> float:
    """The part of our time that convolutions take and their derivatives: the floor of what else could be saved."""
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        PARTS[name](work, pair_of(work, True))
    spent = {event.key: event.self_cpu_time_total for event in profiled.key_averages()}
    return sum(time for key, time in spent.items() if "conv" in key) / sum(spent.values())


def compare_halves(work: Work, half: Work, repeats: int) -> None:
    """Reports the steps in half precision over those in full precision."""
    for name, part in PARTS.items():
        full, fast = shortest(
            [lambda part=part, own=own: part(own, pair_of(own, True)) for own in (work, half)], repeats
        )
        report(f"{work.title}: {name}, half precision as published over float32", fast[0] / full[0], "ratio")


def compare_asking(work: Work, repeats: int) -> bool:
    """Value and gradient of distributed MMD^2, form (a), over a generator's step."""
    draws = torch.Generator().manual_seed(0)
    loss = DistributedLoss().set_references([torch.randn(IMAGES, DIM, generator=draws) for _ in range(CLIENTS)])
    loss.to(work.device)
    features = torch.randn(work.batch, DIM, generator=draws).to(work.device).requires_grad_()
    works = [
        lambda: torch.autograd.grad(loss(features), features)[0],
        lambda: generator_step(work, pair_of(work, True)),
    ]
    (asking, _), (step, _) = shortest(works, repeats)
    size = f"{work.size} x {work.size}"
    what = f"distributed MMD^2, {CLIENTS} clients of {IMAGES} images, over a generator's step at {size}"
    return report(what, asking / step, "ratio", ASKED)


@lru_cache(maxsize=2)
def pair_of(work: Work, channels_last: bool) -> Pair:
    """One size's networks in both layouts at a time: 50 million parameters each."""
    return make_pair(work, channels_last)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--sizes", type=int, nargs="+", default=[64, 256], choices=list(BATCHES))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    within = True
    for size in arguments.sizes:
        work = Work(size, BATCHES[size])
        for name in PARTS:
            within &= compare(work, name, arguments.repeats)
        within &= compare_asking(work, arguments.repeats)
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())
