"""Pillow's bicubic resize of 8-bit images, to the bit, as a differentiable function of tensors.

Pillow resizes rows, rounds to grey levels, resizes columns and rounds again, with weights in fixed point. The same
integers come out here from products of whole numbers in float64. PyTorch's own bicubic has another kernel (a = -0.75
unless antialiased) and rounds, if at all, once.
"""

from functools import cache

import torch
from torch import Tensor

BITS = 22  # of Pillow's fixed-point weights


def pillow_resize(levels: Tensor, height: int, width: int) -> Tensor:
    """Grey levels [N, C, height, width], whole numbers, as `Image.resize((width, height), BICUBIC)` gives them.

    The filter is widened where images shrink, so it is antialiased. The gradient takes the rounding for the identity.
    Rows first, as Pillow did until version 13, which takes columns first where the height shrinks by more than the
    width: there some levels differ by up to 20.

    Args:
        levels: whole numbers 0..255 in any floating dtype [N, C, H, W].
        height: in pixels.
        width: in pixels.
    """
    rows = _Levels.apply(levels.double() @ _weights(levels.shape[3], width).to(levels.device).T)
    columns = _Levels.apply(_weights(levels.shape[2], height).to(levels.device) @ rows)
    return columns.to(levels.dtype)


def centre_square(levels: Tensor) -> Tensor:
    """The square in the middle of images [N, C, H, W], its offset rounded down."""
    height, width = levels.shape[2:]
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    return levels[:, :, top : top + side, left : left + side]


class _Levels(torch.autograd.Function):
    """Grey levels of values in fixed point: half up, clipped to 0..255; backward the slope of the unclipped line."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, values: Tensor) -> Tensor:
        return ((values + 2 ** (BITS - 1)) / 2**BITS).floor().clamp(0, 255)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, grad: Tensor) -> Tensor:
        return grad / 2**BITS


@cache
def _weights(before: int, after: int) -> Tensor:
    """Weight of each old pixel in each new one, whole numbers in units of 2^-22, float64 [after, before]."""
    scale = before / after
    stretch = max(scale, 1.0)
    centres = (torch.arange(after, dtype=torch.float64) + 0.5) * scale
    pixels = torch.arange(before, dtype=torch.float64)
    first = (centres - 2 * stretch + 0.5).clamp(min=0).floor().unsqueeze(1)
    end = (centres + 2 * stretch + 0.5).clamp(max=before).floor().unsqueeze(1)
    values = _cubic((pixels - centres.unsqueeze(1) + 0.5) / stretch)
    values = values * ((pixels >= first) & (pixels < end))
    values = values / values.sum(1, keepdim=True) * 2**BITS
    return (values.abs() + 0.5).floor() * values.sign()


def _cubic(x: Tensor) -> Tensor:
    """Keys' cubic kernel with a = -0.5 (Keys 1981)."""
    x = x.abs()
    near = (1.5 * x - 2.5) * x * x + 1
    far = ((-0.5 * x + 2.5) * x - 4) * x + 2
    return torch.where(x < 1, near, torch.where(x < 2, far, 0.0))
