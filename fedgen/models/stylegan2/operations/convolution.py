"""Convolutions of StyleGAN2: with resampling, and modulated by a style per image.

Formulas: Karras et al. 2020 (arXiv 1912.04958), section 2.2 and appendix B. Everything is differentiable twice.

Convolutions as functions linear in images and linear in kernels, each derivative of which is a convolution again.

PyTorch's second derivative of a convolution forms gradients of kernels as convolutions whose kernels are as large as
the maps, which is several times slower than the routine that its first derivative uses. Here every derivative of every
order is one of three: a convolution, its transpose, and the gradient of a kernel by that routine. Gradient penalties
are made of second derivatives.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fedgen.models.stylegan2.operations.filters import downsample2d, upfirdn2d, upsample2d
from fedgen.models.stylegan2.operations.precision import is_autocast


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
        """Return the gradient of the sum of gradient * run(x, kernel), [O, I, k, k]; of the kernel, shape and format
        alone are used.
        """
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
    """`torch.nn.functional.conv2d` with derivatives of all orders at the cost of the first.

    Args:
        x: [N, I, H, W].
        kernel: [O, I, k, k].
        bias: [O].
        stride: along both axes.
        padding: zeros on every side.
    """
    return _convolve(x, kernel, _Plan(stride, padding), bias)


def conv_transpose2d(x: Tensor, kernel: Tensor, stride: int = 1, padding: int = 0) -> Tensor:
    """`torch.nn.functional.conv_transpose2d` with derivatives of all orders at the cost of the first; no bias.

    Args:
        x: [N, O, H, W].
        kernel: [O, I, k, k], of the convolution that this is the transpose of.
        stride: of that convolution.
        padding: of that convolution.
    """
    return _convolve(x, kernel, _Plan(stride, padding, transposed=True))


def _convolve(x: Tensor, kernel: Tensor, plan: _Plan, bias: Tensor | None = None) -> Tensor:
    given = [tensor for tensor in (kernel, bias) if tensor is not None]
    own = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (x, *given))
    # a compiler finds its own derivatives, and autocast casts what a function's own backward pass would not
    if not own or torch.compiler.is_compiling() or is_autocast(x):
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
    """A convolution [N, O, H * up / down, W * up / down] that keeps the size but for resampling by the filter.

    A kernel of 3 upsamples by a transposed convolution followed by the filter, and downsamples by the filter followed
    by a strided convolution: neither ever sees the inserted zeros or the dropped samples. A kernel of 1 is applied at
    the lower resolution.

    Args:
        x: [N, I, H, W].
        weight: [O, I, k, k], k odd.
        taps: the filter, needed to resample.
        up: 1 or 2.
        down: 1 or 2.
        flip: correlate, as `conv2d` does; otherwise convolve, with the kernel rotated.
        bias: [O], added to the result.

    Raises:
        ValueError: for an even kernel, both up and down, or resampling without a filter.
    """
    kernel = weight.shape[-1]
    if kernel % 2 == 0 or (up, down) not in ((1, 1), (2, 1), (1, 2)) or (taps is None and up * down > 1):
        raise ValueError(f"cannot convolve with kernel {kernel}, up={up}, down={down}, filter {taps is not None}")
    weight = weight.to(x)
    if up == 2:
        return _convolve_up(x, weight, taps, flip, bias)
    if not flip and kernel > 1:
        weight = weight.flip([2, 3])
    if down == 2 and taps is not None:
        if kernel == 1:
            return conv2d(downsample2d(x, taps), weight, bias)
        pad = kernel // 2
        wide, high = taps.shape[-1], taps.shape[0]
        around = [pad + (wide - 1) // 2, pad + (wide - 2) // 2, pad + (high - 1) // 2, pad + (high - 2) // 2]
        return conv2d(upfirdn2d(x, taps, padding=around), weight, bias, stride=2)
    return conv2d(x, weight, bias, padding=kernel // 2)


def _convolve_up(x: Tensor, weight: Tensor, taps: Tensor | None, flip: bool, bias: Tensor | None) -> Tensor:
    assert taps is not None
    kernel = weight.shape[-1]
    if kernel == 1:
        return upsample2d(conv2d(x, weight, bias), taps)
    if flip:
        weight = weight.flip([2, 3])  # a transposed convolution rotates the kernel once more
    pad = kernel // 2
    wide, high = taps.shape[-1], taps.shape[0]
    around = [
        pad + (wide + 1) // 2 - (kernel - 1),
        pad + (wide - 2) // 2 - (kernel - 2),
        pad + (high + 1) // 2 - (kernel - 1),
        pad + (high - 2) // 2 - (kernel - 2),
    ]
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

    Args:
        x: [N, I, H, W].
        weight: [O, I, k, k].
        styles: [N, I].
        noise: added after demodulation, broadcastable to the result.
        bias: [O], added to the result.
        up: 1 or 2.
        down: 1 or 2.
        taps: the filter, needed to resample.
        flip: correlate, as `conv2d` does; otherwise convolve.
        demodulate: whether to divide by the norm, rsqrt(sum of w'^2 + 1e-8).
        gain: of the convolution, not of noise and bias.
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


def normalize_2nd_moment(x: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """The input divided by the root of its mean square over a dimension: x * rsqrt(mean(x^2) + eps)."""
    return x * (x.square().mean(dim=dim, keepdim=True) + eps).rsqrt()


def biased_activation(
    x: Tensor,
    bias: Tensor | None,
    activation: str = "lrelu",
    gain: float | None = None,
    clamp: float | None = None,
    slope: float = 0.2,
) -> Tensor:
    """Bias, activation, gain and clamp, in that order.

    Args:
        x: [N, C, ...].
        bias: [C].
        activation: "lrelu" (negative slope `slope`), "relu" or "linear".
        gain: sqrt(2) after a rectifier, 1 after none, by default.
        clamp: results are kept within +- this.
        slope: of "lrelu".
    """
    gain = activation_gain(activation) if gain is None else gain
    if bias is not None:
        x = x + bias.to(x.dtype).reshape(1, -1, *[1] * (x.ndim - 2))
    return bounded(rectify(x, activation, slope) * gain, clamp)


def activation_gain(activation: str) -> float:
    """Return the factor of an activation that keeps the variance of its input: sqrt(2) for rectifiers.

    Raises:
        ValueError: for an unknown activation.
    """
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
