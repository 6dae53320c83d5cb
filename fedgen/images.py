"""The one image convention: float [-1, 1] for models, uint8 at rest, and one quantiser between them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor
from torch.nn import functional as F

from fedgen.io.files import atomic_write
from fedgen.own_code import warn

HEADING, MARGIN = 18, 3  # pixels of a picture's heading, and before its text


def _to_grey_levels(images: Tensor) -> Tensor:
    """Grey levels as floats: floor(clamp(x * 127.5 + 128, 0, 255)), integers in 0..255."""
    # bfloat16 has too few digits for 256 levels
    return (images.float() * 127.5 + 128).clamp(0, 255).floor()


def to_uint8(images: Tensor) -> Tensor:
    """Images uint8 of any shape from floats in [-1, 1], others clipped; ValueError for NaN and infinity."""
    # floor(clamp(x * 127.5 + 128, 0, 255)), the rule of StyleGAN2 and EDM: images score alike in memory and as PNG
    if not images.is_floating_point():
        raise ValueError(f"images must be floats in [-1, 1], got {images.dtype}; grey levels are stored as torch.uint8")
    if not torch.isfinite(images).all():
        raise ValueError("images hold NaN or infinity and cannot be quantised; check the generator that made them")
    return _to_grey_levels(images).to(torch.uint8)


def refuse_grey_levels(images: Tensor) -> None:
    """Raises ValueError for float images that look like grey levels 0..255: none below 0, and some far above 1."""
    if images.numel() and images.min() >= 0 and images.max() > 16:
        raise ValueError(
            f"float images reach {images.max().item():.0f} and look like grey levels; give floats in [-1, 1], or "
            "uint8: convert them with .to(torch.uint8)"
        )


SURE = 50  # images without one value below mid-grey that are no chance of bright ones


@dataclass
class SeenRange:
    """The range of float images, seen in batches: finds [0, 1] and 0..255 where [-1, 1] is meant."""

    # In [-1, 1] a value of 0 is mid-grey: images none of whose pixels is darker, by the hundred, are those of
    # `ToTensor()`, or of a generator that ends in a sigmoid. Images of one value, or above 1, say nothing. `whose`:
    # "samples of MyVAE".

    whose: str
    remedy: str = "pass images * 2 - 1, or uint8"
    images: int = 0
    low: float = math.inf
    high: float = -math.inf
    told: bool = False
    looks: str = ""

    def start(self) -> None:
        """Forget the images so far, but not that they were warned of."""
        self.images, self.low, self.high = 0, math.inf, -math.inf

    def see(self, images: Tensor) -> None:
        if images.is_floating_point() and images.numel():
            low, high = torch.stack(torch.aminmax(images.detach())).tolist()
            self.images += len(images)
            self.low, self.high = min(self.low, low), max(self.high, high)

    @property
    def is_unit(self) -> bool:
        return 0 <= self.low < self.high <= 1

    @property
    def complaint(self) -> str:
        count = "1 image" if self.images == 1 else f"{self.images:,} images"
        looks = "[0, 1]" if self.is_unit else "grey levels"
        remedy = self.remedy if self.is_unit else "pass images / 127.5 - 1, or uint8"
        return (
            f"{self.whose}: all values of {count} lie from {self.low:.3g} to {self.high:.3g}, none below 0, which looks"
            f" like {looks} where floats in [-1, 1] are expected; {remedy}"
        )

    def warn(self) -> None:
        """Says so once, if the images look like [0, 1] or like grey levels, and keeps which."""
        self.looks = "[0, 1]" if self.is_unit else "grey levels" if self.low >= 0 and 16 < self.high <= 255 else ""
        if self.looks and not self.told:
            self.told = True
            warn(self.complaint)

    def refuse(self) -> None:
        """Says so once, if few images look like [0, 1]; ValueError if there are enough of them (`SURE`) to tell."""
        if self.is_unit and self.images >= SURE:
            raise ValueError(self.complaint)
        self.warn()


def channels_first(images: Tensor) -> Tensor:
    """Images [N, C, H, W] as they are, and those of [N, H, W, C] with 1, 3 or 4 channels with axes in order."""
    _, channels, height, last = images.shape
    has_channels_last = last in (1, 3, 4) and channels > 4 and height > 4
    return images.permute(0, 3, 1, 2).contiguous() if has_channels_last else images


def from_uint8(images: Tensor) -> Tensor:
    """Images for models: float32 in [-1, 1] from uint8, v / 127.5 - 1. `to_uint8` inverts it for all 256 values."""
    return images.to(torch.float32).div_(127.5).sub_(1.0)


class _StraightThrough(torch.autograd.Function):
    """Grey levels forward; the slope 127.5 of the unclipped line backward."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, images: Tensor) -> Tensor:
        return _to_grey_levels(images)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, grad: Tensor) -> Tensor:
        return grad * 127.5


def quantise(images: Tensor) -> Tensor:
    """Grey levels 0..255 as floats from images in [-1, 1], differentiable: the gradient is that of the line, 127.5."""
    return _StraightThrough.apply(images)


def tile(images: Tensor, columns: int | None = None, padding: int = 1, min_side: int = 0) -> Tensor:
    """One uint8 picture [C, H', W'] of images uint8 [N, C, H, W], row by row with white borders of `padding`."""
    # `columns`: by default the ceiling of the square root of N; `min_side`: small images are enlarged by a whole factor
    if images.dtype != torch.uint8 or images.ndim != 4 or len(images) == 0:
        raise ValueError(f"tile needs uint8 images [N, C, H, W], got {images.dtype} {tuple(images.shape)}")
    factor = max(1, -(-min_side // images.shape[2]))
    images = images.repeat_interleave(factor, 2).repeat_interleave(factor, 3)
    columns = columns or int(len(images) ** 0.5 + 0.999999)
    rows = -(-len(images) // columns)
    images = F.pad(images, (padding,) * 4, value=255)
    count, channels, height, width = images.shape
    sheet = torch.full((rows * columns, channels, height, width), 255, dtype=torch.uint8)
    sheet[:count] = images.cpu()
    sheet = sheet.view(rows, columns, channels, height, width).permute(2, 0, 3, 1, 4)
    return sheet.reshape(channels, rows * height, columns * width)


def tile_titled(parts: Sequence[tuple[str, Tensor]], columns: int, min_side: int = 0) -> Tensor:
    """One uint8 picture [C, H', W'] of sets of images, uint8 [N, C, H, W] with C of 1 or 3, each under its heading."""
    rows = [
        part
        for title, images in parts
        for part in (_heading(title, images.shape[1]), tile(images, columns, 1, min_side))
    ]
    width = max(part.shape[2] for part in rows)
    return torch.cat([F.pad(part, (0, width - part.shape[2]), value=255) for part in rows], dim=1)


def _heading(text: str, channels: int) -> Tensor:
    font = ImageFont.load_default(12)
    width = int(font.getlength(text)) + 2 * MARGIN + 1
    image = Image.new("L", (width, HEADING), 255)
    ImageDraw.Draw(image).text((MARGIN, HEADING // 2), text, fill=0, font=font, anchor="lm")
    return torch.from_numpy(np.array(image)).expand(channels, -1, -1)


def save_png(path: str | Path, image: Tensor) -> Path:
    """Writes a uint8 picture [C, H, W] with 1 or 3 channels as PNG, atomically; returns the path."""
    from torchvision.io import encode_png

    with atomic_write(path) as file:
        file.write(encode_png(image.cpu().contiguous()).numpy().tobytes())
    return Path(path)
