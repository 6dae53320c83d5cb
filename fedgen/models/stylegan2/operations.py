"""Operations of StyleGAN2: FIR filters between resolutions, convolutions with them, modulated by a style per image.

Formulas: Karras et al. 2020 (arXiv 1912.04958), section 2.2, and 2020 (StyleGAN2-ADA, arXiv 2006.06676), appendix B.
Everything is differentiable twice, keeps the memory format of maps (not of images) and gives the input's precision.

Filters are depthwise convolutions. In channels_last a depthwise 4 x 4 filter costs a few per cent of the convolution
beside it, which no separable or sliced form beats on a CPU, and upsampling is a transposed one, which is spared the
zeros; filters of many taps stay one-dimensional and are applied along one axis after the other.

PyTorch's second derivative of a convolution forms gradients of kernels as convolutions whose kernels are as large as
the maps, which is several times slower than the routine that its first derivative uses. Here every derivative of every
order is one of three: a convolution, its transpose, and the gradient of a kernel by that routine.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

Half = Literal["float16", "bfloat16"]


def require_resolution(size: int) -> None:
    """Raises ValueError for images that are not 8 x 8, 16 x 16, 32 x 32, ... pixels."""
    if size < 8 or size & (size - 1):
        raise ValueError(f"image_size={size}: StyleGAN2 makes images of a power of two, at least 8; resize the data")


def levels(image_size: int, channel_base: int, channel_max: int, half: int) -> Iterator[tuple[int, int, bool]]:
    """From 4 x 4 up: the resolution, its feature maps, and whether it runs in half precision."""
    if half < 0 or channel_max < 1 or channel_base < image_size:
        raise ValueError(
            f"half_resolutions={half} must not be negative, channel_max={channel_max} at least 1 and channel_base="
            f"{channel_base} at least the image size {image_size}: a feature map at each resolution"
        )
    lowest = max(2 ** (image_size.bit_length() - half), 8)
    size = 4
    while size <= image_size:
        yield size, min(channel_base // size, channel_max), size >= lowest
        size *= 2


def working_dtype(half: Half | None, like: Tensor) -> torch.dtype:
    """The precision of a block's maps: its half, but float16 on a CPU, where it is slow, or else that of a tensor."""
    return like.dtype if half is None or (half == "float16" and not like.is_cuda) else getattr(torch, half)


def without_autocast(x: Tensor) -> contextlib.AbstractContextManager[None]:
    """A block in which autocast is off."""
    return contextlib.nullcontext() if x.is_meta else torch.autocast(x.device.type, enabled=False)


TAPS = (1.0, 3.0, 3.0, 1.0)
"""The filter of every published StyleGAN2."""

_SEPARABLE_FROM = 8  # taps from which two passes of n beat one of n * n
_FEW = 8  # channels below which depthwise convolutions are slow, and images are laid side by side as channels of one


def make_filter(taps: Sequence[float] | None = TAPS, gain: float = 1.0) -> Tensor:
    """A filter float32 whose taps sum to 1 times a gain: the outer product [n, n] below 8 taps, [n] from 8 on."""
    numbers = [1.0] if taps is None else [float(tap) for tap in taps]
    total = sum(numbers)
    if not numbers or not math.isfinite(total) or total == 0:
        raise ValueError(f"a filter's taps must be finite numbers that do not sum to zero, got {taps}")
    line = torch.tensor(numbers, dtype=torch.float32) / total
    return line * gain**0.5 if len(line) >= _SEPARABLE_FROM else torch.outer(line, line) * gain


def upfirdn2d(
    x: Tensor,
    taps: Tensor,
    up: int = 1,
    down: int = 1,
    padding: Sequence[int] = (0, 0, 0, 0),
    flip: bool = False,
    gain: float = 1.0,
) -> Tensor:
    """Images upsampled by zeros, padded, convolved and downsampled: [N, C, (H * up + padding - n) // down + 1, ...].

    The filter is [n, m] or, for both axes alike, [n]. Padding is (x0, x1, y0, y1) at the edges of the upsampled image,
    cropping where negative. `flip` correlates: the filter is not rotated.
    """
    kernel = (taps * gain ** (taps.ndim / 2)).to(x)
    kernel = kernel if flip else kernel.flip(list(range(kernel.ndim)))
    x0, x1, y0, y1 = padding
    size, least = (x.shape[2] * up + y0 + y1, x.shape[3] * up + x0 + x1), (kernel.shape[0], kernel.shape[-1])
    if size[0] < least[0] or size[1] < least[1]:
        raise ValueError(f"a padded image of {list(size)} pixels is smaller than its filter, {list(least)}")
    plan = _Resampling(up, down, (x0, x1, y0, y1))
    if torch.compiler.is_compiling():
        return plan.run(x, kernel)
    return _Filter.apply(x, kernel, plan)


@dataclass(frozen=True)
class _Resampling:
    """Resampling and padding (x0, x1, y0, y1) around a correlation."""

    up: int
    down: int
    padding: tuple[int, int, int, int]

    def run(self, x: Tensor, kernel: Tensor) -> Tensor:
        up, down, (x0, x1, y0, y1) = self.up, self.down, self.padding
        if kernel.ndim == 2:
            return _resample(x, kernel, (up, up), (down, down), (y0, y1, x0, x1))
        x = _resample(x, kernel[None, :], (1, up), (1, down), (0, 0, x0, x1))
        return _resample(x, kernel[:, None], (up, 1), (down, 1), (y0, y1, 0, 0))

    def transposed(self, x: Tensor, y: Tensor, kernel: Tensor) -> "_Resampling":
        """Return the filter that, with the rotated kernel, takes gradients of results y to those of images x."""
        up, down, (x0, _, y0, _) = self.up, self.down, self.padding
        x1 = x.shape[3] * up - y.shape[3] * down + x0 - up + 1
        y1 = x.shape[2] * up - y.shape[2] * down + y0 - up + 1
        return _Resampling(down, up, (kernel.shape[-1] - x0 - 1, x1, kernel.shape[0] - y0 - 1, y1))


class _Filter(torch.autograd.Function):
    """A plan as a linear function of images, whose derivative is its transpose, whose derivative is the plan again."""

    # PyTorch does not know that a filter is constant, and would form its second derivatives in a loop over groups

    @staticmethod
    def forward(ctx: Any, x: Tensor, kernel: Tensor, plan: _Resampling) -> Tensor:
        y = plan.run(x, kernel)
        ctx.kernel, ctx.plan = kernel.flip(list(range(kernel.ndim))), plan.transposed(x, y, kernel)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return _Filter.apply(gradients[0], ctx.kernel, ctx.plan), None, None


def upsample2d(x: Tensor, taps: Tensor) -> Tensor:
    """Images [N, C, 2 H, 2 W]: zeros inserted and filtered, brightness kept."""
    return upfirdn2d(x, taps, up=2, padding=_around(taps, 1, 0, 0), gain=4)


def downsample2d(x: Tensor, taps: Tensor, crop: int = 0, flip: bool = False) -> Tensor:
    """Images [N, C, H / 2, W / 2]: cropped on all sides, filtered, and every second sample kept."""
    return upfirdn2d(x, taps, down=2, padding=_around(taps, -1, -crop, -crop), flip=flip)


def _around(taps: Tensor, first: int, before: int, after: int) -> list[int]:
    """Padding (x0, x1, y0, y1) that centres a filter, upsampling (`first` is 1) or downsampling (-1), and more."""
    sizes = taps.shape[-1], taps.shape[0]
    return [side for size in sizes for side in (before + (size + first) // 2, after + (size - 2) // 2)]


def _resample(
    x: Tensor, kernel: Tensor, up: tuple[int, int], down: tuple[int, int], padding: tuple[int, int, int, int]
) -> Tensor:
    """Maps with zeros inserted, padded by (top, bottom, left, right), correlated with [n, m], and thinned."""
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


@dataclass(frozen=True)
class _Plan:
    """A convolution or, transposed, the derivative of one for its input. Kernels are [O, I, k, k] of the former."""

    stride: int
    padding: int
    transposed: bool = False
    extra: tuple[int, int] = (0, 0)  # rows and columns of a transposed convolution that its stride leaves open

    def run(self, x: Tensor, kernel: Tensor, bias: Tensor | None = None) -> Tensor:
        if self.transposed:
            return F.conv_transpose2d(x, kernel, bias, self.stride, self.padding, self.extra)
        return F.conv2d(x, kernel, bias, self.stride, self.padding)

    def kernel_gradient(self, x: Tensor, gradient: Tensor, kernel: Tensor) -> Tensor:
        """The gradient [O, I, k, k] of the sum of gradient * run(x, kernel), for the kernel's shape and format."""
        if self.transposed:  # the same sum; of a transpose with 1 x 1 kernels of one channel, channels last, cuDNN errs
            x, gradient = gradient, x
        geometry = [self.stride] * 2, [self.padding] * 2, [1, 1]
        wanted = [False, True, False]
        return torch.ops.aten.convolution_backward(gradient, x, kernel, None, *geometry, False, [0, 0], 1, wanted)[1]

    def transpose(self, x: Tensor, y: Tensor, kernel: Tensor) -> "_Plan":
        """The plan that takes gradients of run(x, kernel) = y to those of x."""
        if self.transposed:
            return replace(self, transposed=False, extra=(0, 0))
        open_sides = [
            x.shape[side] - ((y.shape[side] - 1) * self.stride - 2 * self.padding + kernel.shape[side])
            for side in (2, 3)
        ]
        return replace(self, transposed=True, extra=(open_sides[0], open_sides[1]))


def conv2d(x: Tensor, kernel: Tensor, bias: Tensor | None = None, stride: int = 1, padding: int = 0) -> Tensor:
    """`torch.nn.functional.conv2d` with derivatives of all orders at the cost of the first."""
    return _convolve(x, kernel, _Plan(stride, padding), bias)


def conv_transpose2d(x: Tensor, kernel: Tensor, stride: int = 1, padding: int = 0) -> Tensor:
    """`torch.nn.functional.conv_transpose2d` with derivatives of all orders at the cost of the first; no bias."""
    return _convolve(x, kernel, _Plan(stride, padding, transposed=True))


def _convolve(x: Tensor, kernel: Tensor, plan: _Plan, bias: Tensor | None = None) -> Tensor:
    own = torch.is_grad_enabled() and any(one is not None and one.requires_grad for one in (x, kernel, bias))
    # a compiler finds its own derivatives, and autocast casts what a function's own backward pass would not
    if not own or torch.compiler.is_compiling() or (not x.is_meta and torch.is_autocast_enabled(x.device.type)):
        return plan.run(x, kernel, bias)
    # what is passed by the pair is used and no input: autograd shall not take the way to it for one through this node
    y = _OfImages.apply(x, (kernel, bias), plan)
    others = [_OfKernels.apply(kernel, (x, y.shape), plan)] if kernel.requires_grad else []
    others += [] if bias is None else [bias[:, None, None].expand(y.shape)]
    return _Join.apply(y, *others) if others else y


class _OfImages(torch.autograd.Function):
    """The convolution, with the derivative for its images alone: the others are nodes of their own, to be left out."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weights: tuple[Tensor, Tensor | None], plan: _Plan) -> Tensor:
        kernel, bias = weights
        y = plan.run(x, kernel, bias)
        ctx.save_for_backward(kernel)
        ctx.plan = plan.transpose(x, y, kernel)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (kernel,) = ctx.saved_tensors
        return _convolve(gradients[0], kernel, ctx.plan), None, None


class _OfKernels(torch.autograd.Function):
    """Zeros that take no memory, with the convolution's derivative for its kernel."""

    @staticmethod
    def forward(ctx: Any, kernel: Tensor, around: tuple[Tensor, torch.Size], plan: _Plan) -> Tensor:
        x, shape = around
        ctx.save_for_backward(x, kernel)
        ctx.plan = plan
        return x.new_zeros(()).expand(shape)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        x, kernel = ctx.saved_tensors
        return _KernelGradient.apply(x, gradients[0], kernel.detach(), ctx.plan), None, None


class _Join(torch.autograd.Function):
    """The first alone; the gradient goes to all."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, *others: Tensor) -> Tensor:
        ctx.count = 1 + len(others)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        return gradients * ctx.count


class _KernelGradient(torch.autograd.Function):
    """The gradient of a kernel: linear in the images and in the gradient of the result."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gradient: Tensor, kernel: Tensor, plan: _Plan) -> Tensor:
        ctx.save_for_backward(x, gradient)
        ctx.plan, ctx.transpose = plan, plan.transpose(x, gradient, kernel)
        return plan.kernel_gradient(x, gradient, kernel)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        x, gradient = ctx.saved_tensors
        of_x = _convolve(gradient, gradients[0], ctx.transpose) if ctx.needs_input_grad[0] else None
        of_gradient = _convolve(x, gradients[0], ctx.plan) if ctx.needs_input_grad[1] else None
        return of_x, of_gradient, None, None


def convolve(
    x: Tensor,
    weight: Tensor,
    taps: Tensor | None = None,
    up: int = 1,
    down: int = 1,
    flip: bool = True,
    bias: Tensor | None = None,
) -> Tensor:
    """A convolution [N, O, H * up / down, W * up / down] of maps [N, I, H, W] by weights [O, I, k, k], k odd.

    It keeps the size but for resampling by the filter, up or down by 2. `flip` correlates, as torch's conv2d does; else
    the kernel is rotated. Inserted zeros and dropped samples are never computed.
    """
    kernel = weight.shape[-1]
    if kernel % 2 == 0 or (up, down) not in ((1, 1), (2, 1), (1, 2)) or (taps is None and up * down > 1):
        raise ValueError(f"cannot convolve with kernel {kernel}, up={up}, down={down}, filter {taps is not None}")
    weight = weight.to(x)
    if up == 2 and taps is not None:
        return _convolve_up(x, weight, taps, flip, bias)
    if not flip and kernel > 1:
        weight = weight.flip([2, 3])
    pad = kernel // 2
    if down == 1 or taps is None:
        return conv2d(x, weight, bias, padding=pad)
    if kernel == 1:
        return conv2d(downsample2d(x, taps), weight, bias)
    return conv2d(upfirdn2d(x, taps, padding=_around(taps, -1, pad, pad)), weight, bias, stride=2)


def _convolve_up(x: Tensor, weight: Tensor, taps: Tensor, flip: bool, bias: Tensor | None) -> Tensor:
    kernel = weight.shape[-1]
    if kernel == 1:
        return upsample2d(conv2d(x, weight, bias), taps)
    if flip:
        weight = weight.flip([2, 3])  # a transposed convolution rotates the kernel once more
    around = _around(taps, 1, kernel // 2 - (kernel - 1), kernel // 2 - (kernel - 2))
    inner = max(min(-side for side in around), 0)  # what the filter would crop need not be computed
    x = conv_transpose2d(x, weight.transpose(0, 1), stride=2, padding=inner)
    x = upfirdn2d(x, taps, padding=[side + inner for side in around], gain=4)
    return x if bias is None else x + bias[:, None, None]


def modulated_conv2d(
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
    """A convolution [N, O, H * up / down, W * up / down] whose kernel each image's style scales, Eq. 1 and 3.

    The kernel of image n is w'[o, i] = weight[o, i] * styles[n, i], divided by its norm per output channel. That is not
    formed: scaling the input by the style and the output by 1 / norm is the same map with one kernel for all images.

    Weights are [O, I, k, k], styles [N, I]. `gain` multiplies the convolution, and neither noise nor bias.
    """
    if demodulate and x.dtype in (torch.float16, torch.bfloat16):
        # products of large weights and styles overflow half precision; demodulation cancels both factors
        weight = weight * (weight.abs().amax(dim=(1, 2, 3), keepdim=True).clamp(min=1e-30)).reciprocal()
        weight = weight / math.sqrt(weight[0].numel())
        styles = styles / styles.abs().amax(dim=1, keepdim=True).clamp(min=1e-30)
    offset = x.new_zeros(()) if bias is None else bias.to(x.dtype)[:, None, None]
    out = convolve(x * styles.to(x.dtype)[:, :, None, None], weight, taps, up, down, flip)
    if demodulate:
        squares = weight.square().sum(dim=(2, 3))
        scale = torch.addmm(squares.new_full((), 1e-8), styles.square(), squares.T).rsqrt() * gain
        out = torch.addcmul(offset, out, scale.to(x.dtype)[:, :, None, None])
    else:
        out = torch.add(offset, out, alpha=gain)
    return out if noise is None else out + noise.to(x.dtype)


def normalize_2nd_moment(x: Tensor) -> Tensor:
    """Rows [N, D] divided by the root of their mean square: x * rsqrt(mean(x^2) + 1e-8)."""
    return x * (x.square().mean(dim=1, keepdim=True) + 1e-8).rsqrt()


def activation_gain(activation: str) -> float:
    """Return the factor of an activation that keeps the variance of its input: sqrt(2) for rectifiers."""
    if activation not in ("lrelu", "relu", "linear"):
        raise ValueError(f"activation={activation!r}: choose 'lrelu', 'relu' or 'linear'")
    return 1.0 if activation == "linear" else math.sqrt(2)


def rectify(x: Tensor, activation: str, slope: float = 0.2) -> Tensor:
    """The activation alone. All of them commute with positive factors, so that gains can be folded into weights."""
    if activation == "linear":
        return x
    return F.leaky_relu(x, slope if activation == "lrelu" else 0.0)


def bounded(x: Tensor, clamp: float | None) -> Tensor:
    """The input within +- clamp; as it is without one."""
    return x if clamp is None else x.clamp(-clamp, clamp)
