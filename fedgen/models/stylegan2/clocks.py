"""Counts and averages of StyleGAN2's training besides weights."""

import math

import torch
from torch import Tensor

from fedgen.losses.keeps_precision import KeepsPrecision


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


def ema_decay(batch: float, images: float, kimg: float, rampup: float | None) -> float:
    """The decay of one iteration of a moving average with a half-life in images: 0.5^(batch / half-life).

    Args:
        batch: real images of the iteration.
        images: real images shown before it.
        kimg: the half-life, in thousands of images.
        rampup: bound on the half-life as a share of the images shown, so that early weights are forgotten; or None.
    """
    half_life = kimg * 1000 if rampup is None else min(kimg * 1000, images * rampup)
    return 0.5 ** (batch / max(half_life, 1e-8))


def ema_decay_over(before: float, after: float, iterations: int, kimg: float, rampup: float | None) -> float:
    """The product of the decays of equal iterations that showed the images from `before` to `after`."""
    batch = (after - before) / iterations
    return math.prod(ema_decay(batch, before + i * batch, kimg, rampup) for i in range(iterations))
