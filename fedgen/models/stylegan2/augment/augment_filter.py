"""A wavelet's bank of band-pass filters, and images with each band scaled by a gain of its own.

Formulas: StyleGAN2-ADA (Karras et al. 2020, arXiv 2006.06676), appendix B.
"""

from collections.abc import Sequence
from functools import reduce

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedgen.models.stylegan2.operations.linear_map import apply_linear

SYM2 = tuple((np.array([1, 3, 3, 1]) + np.array([-1, -1, 1, 1]) * 3**0.5) / (4 * 2**0.5))
"""Low-pass taps of the wavelet sym2 (Daubechies' with two vanishing moments), in closed form."""

POWER = (10 / 13, 1 / 13, 1 / 13, 1 / 13)
"""The share of natural images' power in each band, from the lowest (a 1/f spectrum, as the paper assumes it)."""


def filter_bank(taps: Sequence[float], bands: int = 4) -> Tensor:
    """Symmetric filters float32 [bands, taps] that sum to the identity, from the lowest band (also in state dicts).

    With P(z) = H(z) H(1/z) / 2 of the wavelet's low-pass H and Q(z) = P(-z) there is P + Q = 1 (that is what makes H a
    wavelet's). Each octave is split in two, the lower half at half the rate:
    P(z) P(z^2) P(z^4), P(z) P(z^2) Q(z^4), P(z) Q(z^2), Q(z) for four bands.

    Args:
        taps: of H, an even number.
        bands: at least 2.
    """
    low = np.convolve(taps, taps[::-1]) / 2
    high = low * (-1.0) ** np.arange(1 - len(taps), len(taps))
    lows = [_stretched(low, 2**octave) for octave in range(bands - 1)]
    highs = [_stretched(high, 2**octave) for octave in range(bands - 1)]
    lowest = [reduce(np.convolve, lows)]
    filters = lowest + [reduce(np.convolve, [*lows[:octave], highs[octave]]) for octave in reversed(range(bands - 1))]
    longest = len(filters[0])
    padded = [np.pad(line, (longest - len(line)) // 2) for line in filters]
    return torch.tensor(np.stack(padded), dtype=torch.float32)


def normalised_gain(gains: Tensor, band: int, bands: int = 4) -> Tensor:
    """Gains [N, bands] of which one band's is scaled by [N] and all are divided so that natural power is kept."""
    scaled = torch.stack([gains if i == band else torch.ones_like(gains) for i in range(bands)], dim=1)
    power = torch.stack([share * gain for share, gain in zip(POWER, scaled.square().unbind(dim=1))]).sum(dim=0)
    return scaled / power.sqrt()[:, None]


def scale_bands(images: Tensor, gains: Tensor, bank: Tensor) -> Tensor:
    """Images [N, C, H, W] with bands scaled by gains [N, bands] along both axes; edges are reflected.

    Args:
        images: of more pixels on each side than half a filter has taps.
        gains: of each image's bands.
        bank: [bands, taps].

    Raises:
        ValueError: for smaller images.
    """
    n, channels, height, width = images.shape
    reach = bank.shape[1] // 2
    if min(height, width) <= reach:
        raise ValueError(
            f"imgfilter reflects {reach} pixels at each edge and needs images of more than {reach} pixels a side, got"
            f" {height} x {width}; leave imgfilter at 0"
        )
    lines = (gains[:, :, None] * bank.to(gains)).sum(dim=1).repeat_interleave(channels, dim=0)  # [N * C, taps]

    def filtered(images: Tensor) -> Tensor:
        padded = F.pad(images.reshape(1, n * channels, height, width), [reach] * 4, mode="reflect")
        rows = F.conv2d(padded, lines[:, None, None, :], groups=n * channels)
        return F.conv2d(rows, lines[:, None, :, None], groups=n * channels).reshape(images.shape)

    return apply_linear(filtered, images)


def _stretched(taps: np.ndarray, by: int) -> np.ndarray:
    """The taps of F(z^by): zeros between them."""
    line = np.zeros((len(taps) - 1) * by + 1)
    line[::by] = taps
    return line
