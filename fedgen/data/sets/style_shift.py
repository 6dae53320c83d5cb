"""Digits of writers whose styles are known: natural clients without a download, and the truth about them."""

import math
from dataclasses import dataclass, fields
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional as F

from fedgen.data.examples import DataSet, Examples, Split
from fedgen.data.sets.small_images import MNIST5k
from fedgen.seeds import generator

SIDE = 28  # of MNIST's images
FINE = 4  # rows and columns that a pixel is divided into while it is rendered
CHUNK = 100  # images rendered at once, which then fit into a processor's cache more or less
RANGES = {"slant": (-0.5, 0.5), "width": (-0.5, 1.5), "contrast": (0.5, 1.0), "scale": (0.7, 1.05)}
"""Where each of a writer's numbers lies; uniform, and independent of the others. Digits stay legible in all corners."""


@dataclass(frozen=True)
class Style:
    """The style of one writer; the defaults leave images as they are."""

    slant: float = 0.0  # pixels to the right for each pixel upwards (the tangent of the slope)
    width: float = 0.0  # pixels added to the width of strokes, or taken from it
    contrast: float = 1.0  # factor of the ink's brightness, in [0, 1]
    scale: float = 1.0  # factor of the digit's size, above 0


class StyleShift(DataSet):
    """The digits of `MNIST5k`, each rendered in the style of the writer it was dealt to, for the partition `Natural`.

    Each image is one of MNIST5k in its writer's slant, width of strokes, contrast and scale (`RANGES` of
    fedgen.data.sets.style_shift), in the order of MNIST5k. Every digit is dealt evenly, so that writers have the same
    labels, up to one image of each, and differ in style alone. The styles of the first writers stay the same when there
    are more of them.

    MNIST5k has no test split, so that one has to come from its images: a fraction `held_out` of each digit's, drawn by
    the seed, is the test split, the rest the train split. Both are dealt evenly to the same writers in the same styles:
    the test split has writers' further digits, not further writers. More held-out images contain fewer ones.

    Args:
        num_writers: the number of writers, 1 to 5,000; 50 have 10 images of each digit.
        seed: of the writers' styles, of who wrote what and of what is held out.
        strength: of all differences between writers, in [0, 1]; 0 gives the images of MNIST5k, with owners.
        pad_to: side of the images, e.g. 32, padded with black before they are rendered.
        held_out: fraction of the images in the test split, in [0, 1), at least one of each digit; 0 for no test split.
        shrink: pixels along either side that are averaged to one after rendering: with pad_to=32, 2 gives 16 x 16.

    Raises:
        ValueError: for values out of range, or if a split has fewer images than there are writers.
    """

    def __init__(
        self,
        num_writers: int = 50,
        seed: int = 0,
        strength: float = 1.0,
        pad_to: int | None = None,
        held_out: float = 0.0,
        shrink: int = 1,
    ) -> None:
        if not 1 <= num_writers <= 5000:
            raise ValueError(f"num_writers must be 1 to 5000, the number of images, got {num_writers}")
        if not 0 <= strength <= 1:
            raise ValueError(f"strength must lie in [0, 1], got {strength}")
        if not 0 <= held_out < 1:
            raise ValueError(f"held_out must lie in [0, 1), got {held_out}; 0 is no test split")
        if shrink < 1 or (pad_to or SIDE) % shrink:
            raise ValueError(f"shrink={shrink} must divide the images' side, {pad_to or SIDE}; pad_to is another one")
        self.num_writers, self.seed, self.strength = num_writers, seed, strength
        self.pad_to, self.held_out, self.shrink = pad_to, held_out, shrink
        self.splits = ("train", "test") if held_out else ("train",)
        size = [] if pad_to is None else [str(pad_to)]
        weaker = [f"strength{strength:g}"] if strength != 1 else []
        fewer = [f"held_out{held_out:g}"] if held_out else []
        smaller = [f"shrink{shrink}"] if shrink > 1 else []
        self.name = "-".join(["style_shift", *size, f"{num_writers}writers", f"seed{seed}", *weaker, *fewer, *smaller])

    @cached_property
    def styles(self) -> tuple[Style, ...]:
        """Each writer's style, in the order of `owner_names`."""
        return tuple(draw_style(self.seed, writer, self.strength) for writer in range(self.num_writers))

    def read(self, split: Split) -> Examples:
        plain = self._plain(split)
        if len(plain) < self.num_writers:
            raise ValueError(
                f"the {split} split has {len(plain)} images with held_out={self.held_out}, too few for num_writers="
                f"{self.num_writers}; use fewer writers, or another held_out"
            )
        owners = deal_evenly(plain.labels, self.num_writers, self.seed)
        inputs = torch.empty_like(plain.inputs)
        for writer, style in enumerate(self.styles):
            own = owners == writer
            inputs[own] = render(plain.inputs[own], style)
        if self.shrink > 1:
            inputs = F.avg_pool2d(inputs.float(), self.shrink).round().to(torch.uint8)
        names = tuple(f"writer {writer}" for writer in range(self.num_writers))
        return Examples(inputs, plain.labels, f"{self.name}/{split}", plain.classes, owners, names)

    def _plain(self, split: Split) -> Examples:
        plain = MNIST5k(self.pad_to).load("train")
        if not self.held_out:
            return plain
        test = hold_out_evenly(plain.labels, self.held_out, self.seed)
        return plain.subset((test if split == "test" else ~test).nonzero().flatten())


def hold_out_evenly(labels: Tensor, fraction: float, seed: int) -> Tensor:
    """Examples to hold out, at random by the seed: bool [N]; of n of a label floor(fraction n), at least one."""
    order = torch.randperm(len(labels), generator=generator(seed, "held out"))
    held_out = torch.zeros(len(labels), dtype=torch.bool)
    for label in labels.unique():
        own = order[labels[order] == label]
        held_out[own[: max(1, math.floor(round(fraction * len(own), 9)))]] = True
    return held_out


def deal_evenly(labels: Tensor, num_owners: int, seed: int) -> Tensor:
    """An owner for each label, int64 [N], drawn by the seed; all have as many of each label, and in all, up to one."""
    order = torch.randperm(len(labels), generator=generator(seed, "writers"))
    order = order[labels[order].argsort(stable=True)]
    owners = torch.empty_like(labels)
    owners[order] = torch.arange(len(labels)) % num_owners
    return owners


# ---- writers' hands ----


def draw_style(seed: int, writer: int, strength: float = 1.0) -> Style:
    """A writer's style: uniform in `RANGES`, then moved towards the plain style by 1 - strength (0: plain)."""
    draws = torch.rand(len(RANGES), dtype=torch.float64, generator=generator(seed, "style", writer)).tolist()
    numbers = {}
    for field, draw in zip(fields(Style), draws):
        low, high = RANGES[field.name]
        numbers[field.name] = field.default + strength * (low + draw * (high - low) - field.default)
    return Style(**numbers)


def render(images: Tensor, style: Style) -> Tensor:
    """White digits on black in the writer's hand, uint8 [N, 1, H, W] from the same; what leaves the image is lost."""
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
    """Bright strokes, float [..., H, W] of at least 0, widened (narrowed) at each side by `steps` of a pixel."""
    # Steps alternate between a pixel's four and eight neighbours, so that the brush is an octagon, nearly a disc; a
    # fraction of a step mixes the images before and after it. Outside of the image there is no ink.
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
