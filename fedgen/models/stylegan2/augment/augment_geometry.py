"""Affine maps of the plane, one an image, and the resampling of images by them, differentiable twice.

Formulas: StyleGAN2-ADA (Karras et al. 2020, arXiv 2006.06676), appendix B. Everything is elementwise: matrix products
would be rounded to TF32 where they are allowed to, and at 256 pixels that is a fraction of a pixel.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from fedgen.models.stylegan2.operations.filters import downsample2d, upsample2d
from fedgen.models.stylegan2.operations.linear_map import apply_linear

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
    """Maps v -> x v_0 + y v_1 + offset, in pixels from the image's centre: each of the three [N, 2] as (x, y).

    The methods multiply a transform on the right: it is applied before the map.
    """

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
    """Images [N, C, H, W] under geometric transforms, through twice their resolution.

    The edges are reflected as far as any transform of the batch reaches, once: what lies beyond is zero.

    Args:
        images: [N, C, H, W].
        inverse: for each image from pixels of the result to pixels of the input.
        taps: the low-pass filter float [12] around the resampling.

    Raises:
        ValueError: for images of fewer than 4 pixels a side.
    """
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
        return downsample2d(samples.flatten(0, 1)[None], taps, padding=-2 * _REACH, flip=True).reshape(images.shape)

    return apply_linear(through_twice_the_size, images)


def _margins(inverse: Affine, width: int, height: int) -> list[int]:
    """Pixels (left, right, top, bottom) that the batch's maps read beyond the edges: at most the image less one.

    They size a tensor, so they are read from the device: the only values of an augmentation that are.
    """
    last = per_axis(width - 1, height - 1, inverse.offset)
    furthest = (inverse.x.abs() * last[0] + inverse.y.abs() * last[1]) / 2  # of the four corners, without the offset
    ends = torch.stack([furthest - inverse.offset, furthest + inverse.offset]).amax(1)  # [before or after, axis]
    beyond = ends + 2 * _REACH - last / 2
    return beyond.clamp(min=0).minimum(last).ceil().T.flatten().int().tolist()


def _grid(inverse: Affine, width: int, height: int) -> Tensor:
    """Return where in the input the pixels of the result lie: [N, height, width, 2] as (x, y), in pixels from its
    centre.
    """
    u, v = (
        torch.arange(size, dtype=inverse.x.dtype, device=inverse.x.device) - (size - 1) / 2 for size in (width, height)
    )
    along_x = inverse.x[:, None, None] * u[:, None]
    along_y = inverse.y[:, None, None] * v[:, None, None] + inverse.offset[:, None, None]
    return along_x + along_y
