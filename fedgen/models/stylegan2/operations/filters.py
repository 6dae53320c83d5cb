"""FIR filtering of images between resolutions: upsample, pad, filter, downsample, all by depthwise convolutions.

Formulas: Karras et al. 2020 (arXiv 1912.04958) and 2020 (StyleGAN2-ADA, arXiv 2006.06676), appendices B. Everything
here is differentiable twice, keeps the memory format of maps (not of images) and gives the input's precision. In
channels_last a depthwise 4 x 4 filter costs a few per cent of the convolution beside it, which no separable or sliced
form beats on a CPU, and upsampling is a transposed one, which is spared the zeros; filters of many taps stay
one-dimensional and are applied along one axis after the other.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

Pair = int | Sequence[int]
TAPS = (1.0, 3.0, 3.0, 1.0)
"""The filter of every published StyleGAN2."""

_SEPARABLE_FROM = 8  # taps from which two passes of n beat one of n * n
_FEW = 8  # channels below which depthwise convolutions are slow, and images are laid side by side as channels of one


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
    kernel = torch.ones(1, 1) if taps is None else taps
    kernel = (kernel * gain ** (kernel.ndim / 2)).to(x)
    kernel = kernel if flip else kernel.flip(list(range(kernel.ndim)))
    plan = _Plan(_pair(up, "up"), _pair(down, "down"), _padding(padding))
    size = plan.padded(x)
    smallest = kernel.shape[0], kernel.shape[-1]
    if size[0] < smallest[0] or size[1] < smallest[1]:
        raise ValueError(f"a padded image of {list(size)} pixels is smaller than its filter, {list(smallest)}")
    if torch.compiler.is_compiling():
        return plan.run(x, kernel)
    return _Filter.apply(x, kernel, plan)


@dataclass(frozen=True)
class _Plan:
    """Resampling and padding, (x, y) and (x0, x1, y0, y1), around a correlation."""

    up: tuple[int, int]
    down: tuple[int, int]
    padding: tuple[int, int, int, int]

    def padded(self, x: Tensor) -> tuple[int, int]:
        """Height and width of images [N, C, H, W] when they meet the filter."""
        x0, x1, y0, y1 = self.padding
        return x.shape[2] * self.up[1] + y0 + y1, x.shape[3] * self.up[0] + x0 + x1

    def run(self, x: Tensor, kernel: Tensor) -> Tensor:
        (up_x, up_y), (down_x, down_y), (x0, x1, y0, y1) = self.up, self.down, self.padding
        if kernel.ndim == 2:
            return _resample(x, kernel, (up_y, up_x), (down_y, down_x), (y0, y1, x0, x1))
        x = _resample(x, kernel[None, :], (1, up_x), (1, down_x), (0, 0, x0, x1))
        return _resample(x, kernel[:, None], (up_y, 1), (down_y, 1), (y0, y1, 0, 0))

    def transposed(self, x: Tensor, y: Tensor, kernel: Tensor) -> "_Plan":
        """Return the filter that, with the rotated kernel, takes gradients of results y to those of images x."""
        (up_x, up_y), (down_x, down_y), (x0, _, y0, _) = self.up, self.down, self.padding
        high, wide = kernel.shape[0], kernel.shape[-1]
        x1 = x.shape[3] * up_x - y.shape[3] * down_x + x0 - up_x + 1
        y1 = x.shape[2] * up_y - y.shape[2] * down_y + y0 - up_y + 1
        return _Plan(self.down, self.up, (wide - x0 - 1, x1, high - y0 - 1, y1))


class _Filter(torch.autograd.Function):
    """A plan as a linear function of images, whose derivative is its transpose, whose derivative is the plan again.

    PyTorch does not know that a filter is constant: the second derivative of its grouped convolutions also forms that
    of the filter, in a loop over groups, and costs several times as much.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, kernel: Tensor, plan: _Plan) -> Tensor:
        y = plan.run(x, kernel)
        ctx.kernel, ctx.plan = kernel.flip(list(range(kernel.ndim))), plan.transposed(x, y, kernel)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return _Filter.apply(gradients[0], ctx.kernel, ctx.plan), None, None


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


def _resample(
    x: Tensor, kernel: Tensor, up: tuple[int, int], down: tuple[int, int], padding: tuple[int, int, int, int]
) -> Tensor:
    """Maps with zeros inserted, padded by (top, bottom, left, right), correlated with [n, m], every so-manieth kept."""
    n, channels, height, width = x.shape
    top, bottom, left, right = padding
    if kernel.numel() == 1:
        x = F.pad(x.reshape(n, channels, height, 1, width, 1), [0, up[1] - 1, 0, 0, 0, up[0] - 1])
        x = F.pad(x.reshape(n, channels, height * up[0], width * up[1]), [left, right, top, bottom])
        return x[:, :, :: down[0], :: down[1]] * kernel
    if up != (1, 1):
        return _spread(x, kernel, up, padding)[:, :, :: down[0], :: down[1]]
    around = (top, left)  # the convolution pads by itself, without a copy, what is the same on both sides
    if around != (bottom, right) or min(around) < 0:
        x, around = F.pad(x, [left, right, top, bottom]), (0, 0)
    return _depthwise(F.conv2d, x, kernel, stride=down, padding=around)


def _spread(x: Tensor, kernel: Tensor, up: tuple[int, int], padding: tuple[int, int, int, int]) -> Tensor:
    """The same without dropping samples: each is spread by the kernel, and no inserted zero is ever multiplied."""
    starts = [kernel.shape[axis] - 1 - padding[2 * axis] for axis in (0, 1)]  # of what is kept of all that is spread
    ends = [kernel.shape[axis] - up[axis] - padding[2 * axis + 1] for axis in (0, 1)]
    inner = [max(min(start, end), 0) for start, end in zip(starts, ends)]  # which need not be computed
    # CPUs have no fast routine for it in half precision
    wide = x.float() if x.device.type == "cpu" and x.dtype in (torch.float16, torch.bfloat16) else x
    kernel = kernel.flip([0, 1]).to(wide)
    spread = _depthwise(F.conv_transpose2d, wide, kernel, stride=up, padding=tuple(inner)).to(x.dtype)
    rest = [inner[1] - starts[1], inner[1] - ends[1], inner[0] - starts[0], inner[0] - ends[0]]
    return F.pad(spread, rest) if any(rest) else spread


def _depthwise(convolution: Callable[..., Tensor], x: Tensor, kernel: Tensor, **options: tuple[int, ...]) -> Tensor:
    n, channels = x.shape[:2]
    if channels < _FEW:
        x = x.reshape(1, n * channels, *x.shape[2:])
    kernels = kernel.expand(x.shape[1], 1, *kernel.shape)
    filtered = convolution(x, kernels, groups=x.shape[1], **options)
    return filtered.reshape(n, channels, *filtered.shape[2:])


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
