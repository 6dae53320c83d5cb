"""Convolutions of StyleGAN2: with resampling, and modulated by a style per image.

Formulas: Karras et al. 2020 (arXiv 1912.04958), section 2.2 and appendix B. Everything is differentiable twice.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from fedgen.models.stylegan2.operations.bilinear import conv2d, conv_transpose2d
from fedgen.models.stylegan2.operations.filters import downsample2d, upfirdn2d, upsample2d


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
