"""FIR filtering of images between resolutions: upsample, pad, filter, downsample, all by depthwise convolutions.

Formulas: Karras et al. 2020 (arXiv 1912.04958) and 2020 (StyleGAN2-ADA, arXiv 2006.06676), appendices B. Everything
here is differentiable twice, keeps the memory format of its input and filters in the input's precision. In
channels_last a depthwise 4 x 4 filter costs a few per cent of the convolution beside it, which no separable or sliced
form beats on a CPU; filters of many taps stay one-dimensional and are applied along one axis after the other.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

Pair = int | Sequence[int]
TAPS = (1.0, 3.0, 3.0, 1.0)
"""The filter of every published StyleGAN2."""

_SEPARABLE_FROM = 8  # taps from which two passes of n beat one of n * n


def make_filter(taps: Sequence[float] | None = TAPS, gain: float = 1.0) -> Tensor:
    """A filter float32 whose taps sum to 1 times a gain: the outer product [n, n] below 8 taps, [n] from 8 on.

    Args:
        taps: of one axis; None for no filtering, [1, 1].
        gain: of the filtered image; [n] has its root, as it is applied along both axes.

    Raises:
        ValueError: for taps that are no finite numbers or sum to zero.
    """
    numbers = [1.0] if taps is None else [float(tap) for tap in taps]
    total = sum(numbers)
    if not numbers or not math.isfinite(total) or total == 0:
        raise ValueError(f"a filter's taps must be finite numbers that do not sum to zero, got {taps}")
    line = torch.tensor(numbers, dtype=torch.float32) / total
    return line * gain**0.5 if len(line) >= _SEPARABLE_FROM else torch.outer(line, line) * gain


def upfirdn2d(
    x: Tensor,
    taps: Tensor | None,
    up: Pair = 1,
    down: Pair = 1,
    padding: Pair = 0,
    flip: bool = False,
    gain: float = 1.0,
) -> Tensor:
    """Images upsampled by zeros, padded, convolved and downsampled: [N, C, (H * up + padding - n) // down + 1, ...].

    Args:
        x: [N, C, H, W].
        taps: the filter, [n, m] or, for both axes alike, [n]; None for none.
        up: zeros inserted after each sample, less one; for both axes or (x, y).
        down: every so-manieth sample is kept, from the first; for both axes or (x, y).
        padding: zeros at the edges of the upsampled image, cropping where negative: (x0, x1, y0, y1), (x, y) or one
            number.
        flip: correlate instead of convolve: use the filter unrotated.
        gain: of the result.

    Raises:
        ValueError: if the padded image is smaller than the filter, or an argument is out of range.
    """
    (up_x, up_y), (down_x, down_y) = _pair(up, "up"), _pair(down, "down")
    x0, x1, y0, y1 = _padding(padding)
    n, channels, height, width = x.shape
    if (up_x, up_y) != (1, 1):
        x = F.pad(x.reshape(n, channels, height, 1, width, 1), [0, up_x - 1, 0, 0, 0, up_y - 1])
        x = x.reshape(n, channels, height * up_y, width * up_x)
    if (x0, x1, y0, y1) != (0, 0, 0, 0):
        x = F.pad(x, [x0, x1, y0, y1])
    kernel = torch.ones(1, 1) if taps is None else taps
    kernel = (kernel * gain ** (kernel.ndim / 2)).to(x)
    if not flip:
        kernel = kernel.flip(list(range(kernel.ndim)))
    smallest = kernel.shape[0], kernel.shape[-1]
    if x.shape[2] < smallest[0] or x.shape[3] < smallest[1]:
        raise ValueError(f"a padded image of {list(x.shape[2:])} pixels is smaller than its filter, {list(smallest)}")
    if kernel.ndim == 2:
        return _depthwise(x, kernel, (down_y, down_x))
    return _depthwise(_depthwise(x, kernel[None, :], (1, down_x)), kernel[:, None], (down_y, 1))


def filter2d(x: Tensor, taps: Tensor, padding: Pair = 0, flip: bool = False, gain: float = 1.0) -> Tensor:
    """Images [N, C, H + padding, W + padding] filtered at their own resolution; zeros beyond the edges."""
    return upfirdn2d(x, taps, padding=_around(taps, padding, 1, 1), flip=flip, gain=gain)


def upsample2d(
    x: Tensor, taps: Tensor, up: int = 2, padding: Pair = 0, flip: bool = False, gain: float = 1.0
) -> Tensor:
    """Images [N, C, H * up, W * up]: zeros inserted and filtered, brightness kept."""
    return upfirdn2d(x, taps, up=up, padding=_around(taps, padding, up, 1), flip=flip, gain=gain * up * up)


def downsample2d(
    x: Tensor, taps: Tensor, down: int = 2, padding: Pair = 0, flip: bool = False, gain: float = 1.0
) -> Tensor:
    """Images [N, C, H / down, W / down]: filtered, and every so-manieth sample kept."""
    return upfirdn2d(x, taps, down=down, padding=_around(taps, padding, 1, down), flip=flip, gain=gain)


def _around(taps: Tensor, padding: Pair, up: int, down: int) -> list[int]:
    """The padding that centres the filter, plus what is asked for, as (x0, x1, y0, y1)."""
    x0, x1, y0, y1 = _padding(padding)
    width, height = taps.shape[-1], taps.shape[0]
    if up > 1:
        return [
            x0 + (width + up - 1) // 2,
            x1 + (width - up) // 2,
            y0 + (height + up - 1) // 2,
            y1 + (height - up) // 2,
        ]
    return [
        x0 + (width - down + 1) // 2,
        x1 + (width - down) // 2,
        y0 + (height - down + 1) // 2,
        y1 + (height - down) // 2,
    ]


def _depthwise(x: Tensor, kernel: Tensor, stride: tuple[int, int]) -> Tensor:
    channels = x.shape[1]
    if kernel.numel() == 1:
        return x[:, :, :: stride[0], :: stride[1]] * kernel
    return F.conv2d(x, kernel.expand(channels, 1, *kernel.shape), stride=stride, groups=channels)


def _pair(value: Pair, name: str) -> tuple[int, int]:
    x, y = (value, value) if isinstance(value, int) else value
    if x < 1 or y < 1:
        raise ValueError(f"{name} must be at least 1, got {value}")
    return x, y


def _padding(value: Pair) -> tuple[int, int, int, int]:
    numbers = [value] * 4 if isinstance(value, int) else list(value)
    if len(numbers) == 2:
        numbers = [numbers[0], numbers[0], numbers[1], numbers[1]]
    if len(numbers) != 4:
        raise ValueError(f"padding must be one, two or four numbers, got {value}")
    return numbers[0], numbers[1], numbers[2], numbers[3]
