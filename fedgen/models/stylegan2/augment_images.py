"""Images resampled by affine maps and with bands of frequency scaled, one map and gains an image, differentiable twice.

Formulas: StyleGAN2-ADA (Karras et al. 2020, arXiv 2006.06676), appendix B. Geometry is elementwise: matrix products
would be rounded to TF32 where they are allowed to, and at 256 pixels that is a fraction of a pixel.
"""

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedgen.models.stylegan2.operations import downsample2d, upsample2d, without_autocast

Function = Callable[[Tensor], Tensor]


def apply_linear(function: Function, x: Tensor) -> Tensor:
    """function(x), differentiable in x twice and more, of a function that is linear in x and differentiable once."""
    return _Forward.apply(x, function)


class _Forward(torch.autograd.Function):
    """function(x)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, function: Function) -> Tensor:
        wanted = ctx.needs_input_grad[0]
        # backward passes may run under autocast, where second derivatives come through here again
        with torch.set_grad_enabled(wanted), without_autocast(x):
            x = x.detach().requires_grad_(wanted)
            y = function(x)
        ctx.graph, ctx.function = (x, y), function
        return y.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _Transpose.apply(gradients[0], ctx.graph, ctx.function), None


class _Transpose(torch.autograd.Function):
    """The transpose of the function whose graph is given, applied to a gradient of y."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, graph: tuple[Tensor, Tensor], function: Function) -> Tensor:
        ctx.function = function
        x, y = graph
        # the graph may be asked again, by another backward pass
        return torch.autograd.grad(y, x, gradient, retain_graph=True)[0]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return _Forward.apply(gradients[0], ctx.function), None, None


SYM6 = (
    0.015404109327027373,
    0.0034907120842174702,
    -0.11799011114819057,
    -0.048311742585633,
    0.4910559419267466,
    0.787641141030194,
    0.3379294217276218,
    -0.07263748278646252,
    -0.021060292512300564,
    0.04472490177066578,
    0.0017677118642428036,
    -0.007800708325034148,
)
"""Low-pass taps of the wavelet sym6 (Daubechies' least asymmetric with six vanishing moments)."""

_REACH = len(SYM6) // 4  # pixels of the original that half a filter covers at twice the resolution


def per_axis(x: float, y: float, like: Tensor) -> Tensor:
    """The numbers as [2] of a tensor's device and dtype, made there: copying a list to a GPU would wait for it."""
    return torch.stack([like.new_full((), x), like.new_full((), y)])


class Affine(NamedTuple):
    """Maps v -> x v_0 + y v_1 + offset in pixels from the centre, each [N, 2]; methods add one before the map."""

    x: Tensor
    y: Tensor
    offset: Tensor

    @classmethod
    def identity(cls, count: int, like: Tensor) -> "Affine":
        """`count` times v -> v, of a tensor's device and dtype."""
        x, y = torch.eye(2, dtype=like.dtype, device=like.device).expand(count, 2, 2).unbind(1)
        return cls(x, y, torch.zeros_like(x))

    def scale(self, x: Tensor, y: Tensor) -> "Affine":
        """By factors [N] along the axes."""
        return Affine(self.x * x[:, None], self.y * y[:, None], self.offset)

    def rotate(self, angle: Tensor) -> "Affine":
        """By angles [N] in radians: (x, y) -> (x cos - y sin, x sin + y cos)."""
        cos, sin = angle.cos()[:, None], angle.sin()[:, None]
        return Affine(self.x * cos + self.y * sin, self.y * cos - self.x * sin, self.offset)

    def translate(self, by: Tensor) -> "Affine":
        """By [N, 2] pixels."""
        return Affine(self.x, self.y, self.offset + self.x * by[:, :1] + self.y * by[:, 1:])


def resample(images: Tensor, inverse: Affine, taps: Tensor) -> Tensor:
    """Images [N, C, H, W] under geometric transforms, through twice their resolution; edges are reflected once."""
    n, channels, height, width = images.shape
    if min(height, width) <= _REACH:
        raise ValueError(
            f"geometric transforms reflect at least {_REACH} pixels at each edge and need images of more than {_REACH}"
            f" pixels a side, got {height} x {width}"
        )
    x0, x1, y0, y1 = margins = _margins(inverse, width, height)
    # Padding moved the centre. At twice the resolution axes keep their length in pixels, offsets double, and the
    # centre of a sample lies half a pixel before that of the two which replace it.
    moved = inverse.offset + per_axis(x0 - x1, y0 - y1, images) / 2
    inverse = inverse._replace(offset=2 * moved + (inverse.x + inverse.y) / 2 - 0.5)
    grid = _grid(inverse, 2 * (width + 2 * _REACH), 2 * (height + 2 * _REACH))
    grid = grid / per_axis(width + x0 + x1, height + y0 + y1, images)  # to [-1, 1] from edge to edge

    def through_twice_the_size(images: Tensor) -> Tensor:
        # filtered as channels of one image, which on a CPU is several times faster than as images of a few channels
        folded = F.pad(images.reshape(1, n * channels, height, width), margins, mode="reflect")
        larger = upsample2d(folded, taps)
        samples = F.grid_sample(larger.unflatten(1, (n, channels))[0], grid, padding_mode="zeros", align_corners=False)
        return downsample2d(samples.flatten(0, 1)[None], taps, crop=2 * _REACH, flip=True).reshape(images.shape)

    return apply_linear(through_twice_the_size, images)


def _margins(inverse: Affine, width: int, height: int) -> list[int]:
    """Pixels (left, right, top, bottom) that the batch's maps read beyond the edges: at most the image less one."""
    # the only values of an augmentation that are read from the device: they size a tensor
    last = per_axis(width - 1, height - 1, inverse.offset)
    furthest = (inverse.x.abs() * last[0] + inverse.y.abs() * last[1]) / 2  # of the four corners, without the offset
    ends = torch.stack([furthest - inverse.offset, furthest + inverse.offset]).amax(1)  # [before or after, axis]
    beyond = ends + 2 * _REACH - last / 2
    return beyond.clamp(min=0).minimum(last).ceil().T.flatten().int().tolist()


def _grid(inverse: Affine, width: int, height: int) -> Tensor:
    """Return where in the input the result's pixels lie: [N, height, width, 2], (x, y) in pixels from its centre."""
    u, v = (
        torch.arange(size, dtype=inverse.x.dtype, device=inverse.x.device) - (size - 1) / 2 for size in (width, height)
    )
    along_x = inverse.x[:, None, None] * u[:, None]
    along_y = inverse.y[:, None, None] * v[:, None, None] + inverse.offset[:, None, None]
    return along_x + along_y


SYM2 = tuple((np.array([1, 3, 3, 1]) + np.array([-1, -1, 1, 1]) * 3**0.5) / (4 * 2**0.5))
"""Low-pass taps of the wavelet sym2 (Daubechies' with two vanishing moments), in closed form."""

POWER = (10 / 13, 1 / 13, 1 / 13, 1 / 13)
"""The share of natural images' power in each band, from the lowest (a 1/f spectrum, as the paper assumes it)."""


def filter_bank(taps: Sequence[float], bands: int = 4) -> Tensor:
    """Symmetric filters float32 [bands, taps] that sum to the identity, from the lowest band (also in state dicts)."""
    # with P(z) = H(z) H(1/z) / 2 of the low-pass H and Q(z) = P(-z) there is P + Q = 1; each octave is split in two,
    # the lower half at half the rate: P(z) P(z^2) P(z^4), P(z) P(z^2) Q(z^4), P(z) Q(z^2), Q(z) for four bands
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
    """Images [N, C, H, W] with bands scaled by gains [N, bands] along both axes; edges are reflected."""
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
