"""Writers' hands: four numbers drawn by (seed, writer), and images of digits rendered with them."""

import math
from dataclasses import dataclass, fields

import torch
from torch import Tensor
from torch.nn import functional as F

from fedgen.seeds import generator

FINE = 4  # rows and columns that a pixel is divided into while it is rendered
CHUNK = 100  # images rendered at once, which then fit into a processor's cache more or less
RANGES = {"slant": (-0.5, 0.5), "width": (-0.5, 1.5), "contrast": (0.5, 1.0), "scale": (0.7, 1.05)}
"""Where each of a writer's numbers lies; uniform, and independent of the others. Digits stay legible in all corners."""


@dataclass(frozen=True)
class Style:
    """The style of one writer; the defaults leave images as they are.

    Args:
        slant: pixels to the right for each pixel upwards (the tangent of the slope).
        width: pixels added to the width of strokes, or taken from it.
        contrast: factor of the ink's brightness, in [0, 1].
        scale: factor of the digit's size, above 0.
    """

    slant: float = 0.0
    width: float = 0.0
    contrast: float = 1.0
    scale: float = 1.0


def draw_style(seed: int, writer: int, strength: float = 1.0) -> Style:
    """A writer's style: uniform in `RANGES`, then moved towards the plain style by 1 - strength (0: plain)."""
    draws = torch.rand(len(RANGES), dtype=torch.float64, generator=generator(seed, "style", writer)).tolist()
    numbers = {}
    for field, draw in zip(fields(Style), draws):
        low, high = RANGES[field.name]
        numbers[field.name] = field.default + strength * (low + draw * (high - low) - field.default)
    return Style(**numbers)


def render(images: Tensor, style: Style) -> Tensor:
    """White digits on black as the writer would have them: uint8 [N, 1, H, W] from the same.

    Strokes are widened first, then slanted and scaled about the centre; what leaves the image is lost. Pixels are
    divided into FINE x FINE, so that widths need not be whole, and averaged at the end.
    """
    return torch.cat([_render(chunk, style) for chunk in images.split(CHUNK)])


def _render(images: Tensor, style: Style) -> Tensor:
    ink = images[:, 0].float()[None]  # [1, N, H, W]: one sampling grid serves all channels
    fine = widen(ink.repeat_interleave(FINE, 2).repeat_interleave(FINE, 3), style.width * FINE / 2)
    # each output position (x, y), y downwards, looks up ((x + slant y) / scale, y / scale)
    inverse = torch.tensor([[[1.0, style.slant, 0.0], [0.0, 1.0, 0.0]]]) / style.scale
    grid = F.affine_grid(inverse, [1, 1, *fine.shape[2:]], align_corners=False)
    moved = F.grid_sample(fine, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    pixels = F.avg_pool2d(moved, FINE) * style.contrast
    return pixels.round().clamp(0, 255).to(torch.uint8)[0].unsqueeze(1)


def widen(ink: Tensor, steps: float) -> Tensor:
    """Bright strokes widened at each side by so many steps of a pixel (narrowed if negative): float, as `ink`.

    Steps alternate between a pixel's four and eight neighbours, so that after several the brush is an octagon, nearly
    a disc; a fraction of a step is that mixture of the images before and after it.

    Args:
        ink: float [..., H, W], at least 0; outside of it there is none.
        steps: of one pixel each.
    """
    sign = 1 if steps >= 0 else -1  # narrowing widens the background
    whole, bright = math.floor(abs(steps)), sign * ink
    for step in range(whole):
        bright = _brightest_neighbour(bright, diagonal=step % 2 == 1)
    if part := abs(steps) - whole:
        bright = torch.lerp(bright, _brightest_neighbour(bright, diagonal=whole % 2 == 1), part)
    return sign * bright


def _brightest_neighbour(bright: Tensor, diagonal: bool) -> Tensor:
    """The maximum over each pixel and its four neighbours, or its eight."""
    columns = _maximum_of_three(bright, -2)
    return _maximum_of_three(columns if diagonal else bright, -1).maximum(columns)


def _maximum_of_three(bright: Tensor, axis: int) -> Tensor:
    """The maximum over each pixel and those before and after it along an axis."""
    size = bright.shape[axis]
    padded = F.pad(bright, (0, 0, 1, 1) if axis == -2 else (1, 1))
    before, after = padded.narrow(axis, 0, size), padded.narrow(axis, 2, size)
    return bright.maximum(before).maximum(after)
