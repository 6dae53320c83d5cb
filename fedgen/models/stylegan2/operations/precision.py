"""Resolutions that there are, and the precision in which they run."""

import contextlib
from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor

Half = Literal["float16", "bfloat16"]


def require_resolution(size: int) -> None:
    """Raises ValueError for images that are not 8 x 8, 16 x 16, 32 x 32, ... pixels."""
    if size < 8 or size & (size - 1):
        raise ValueError(f"image_size={size}: StyleGAN2 makes images of a power of two, at least 8; resize the data")


def levels(image_size: int, channel_base: int, channel_max: int, half: int) -> Iterator[tuple[int, int, bool]]:
    """From 4 x 4 up: the resolution, its feature maps, and whether it runs in half precision.

    Args:
        image_size: the highest resolution.
        channel_base: feature maps times resolution.
        channel_max: feature maps at most.
        half: how many of the highest resolutions run in half precision, those of at least 8.
    """
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
    """The precision of a block's maps: its half, or that of a tensor which is not halved, such as a style.

    On a CPU that is instead of float16 too, which is slow there.
    """
    return like.dtype if half is None or (half == "float16" and not like.is_cuda) else getattr(torch, half)


def without_autocast(x: Tensor) -> contextlib.AbstractContextManager[None]:
    """A block in which autocast is off."""
    return contextlib.nullcontext() if x.is_meta else torch.autocast(x.device.type, enabled=False)


def is_autocast(x: Tensor) -> bool:
    """Whether autocast is on where a tensor lies; the device "meta" has none."""
    return not x.is_meta and torch.is_autocast_enabled(x.device.type)
