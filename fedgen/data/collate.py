"""Items to batches, and images found in batches."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import default_collate

from fedgen.data.formats.image_files import eight_bits, to_tensor
from fedgen.images import from_uint8

IMAGE_KEYS = ("image", "images", "img", "pixel_values", "x")

ImagesOf = Callable[..., Any]
"""A batch to its images or points."""


def collate_items(items: list[Any]) -> Any:
    """Torch's `default_collate`, which takes Pillow images, too: float32 [B, C, H, W] in [-1, 1].

    Raises:
        ValueError: for items that do not fit together, such as sequences of several lengths.
    """
    try:
        return default_collate([without_pillow(item) for item in items] if any(map(holds_pillow, items)) else items)
    except (RuntimeError, TypeError) as error:
        raise ValueError(
            f"{len(items)} items cannot be put together into a batch ({error}); give a collate_fn, a function from a"
            " list of items to a batch"
        ) from error


def find_unlike(items: list[Any]) -> tuple[int, str] | None:
    """The place of the first item of other shapes than item 0, and what to do about it; None where all are alike."""
    shapes = [_shapes(without_pillow(item)) for item in items]
    for place, own in enumerate(shapes):
        for first, other in zip(shapes[0], own) if len(own) == len(shapes[0]) else ():
            if first != other:
                remedy = "resize images to one size: size= of fedgen's data sets, torchvision's v2.Resize in others"
                if first[1:] == other[1:] and {first[0], other[0]} <= {1, 2, 3, 4}:
                    remedy = "convert images to one number of channels, as image.convert('RGB') does"
                if len(first) < 2:
                    remedy = "give a collate_fn, a function from a list of items to a batch, that pads them"
                return place, f"the shapes {list(first)} and {list(other)}; {remedy}"
    return None


def _shapes(item: Any) -> list[tuple[int, ...]]:
    if isinstance(item, (Mapping, tuple, list)):
        return [shape for one in (item.values() if isinstance(item, Mapping) else item) for shape in _shapes(one)]
    return [tuple(item.shape)] if hasattr(item, "shape") else []


def holds_pillow(item: Any) -> bool:
    """Whether an item is a Pillow image, or a tuple, list or dictionary with one."""
    if isinstance(item, Mapping):
        return any(map(holds_pillow, item.values()))
    if isinstance(item, (tuple, list)):
        return any(map(holds_pillow, item))
    return hasattr(item, "getbands") and hasattr(item, "convert")


def without_pillow(item: Any) -> Any:
    """The item with its Pillow images as float32 [C, H, W] in [-1, 1], grey ones with a channel, others RGB."""
    if isinstance(item, Mapping):
        return {key: without_pillow(value) for key, value in item.items()}
    if isinstance(item, tuple) and hasattr(item, "_fields"):
        return type(item)(*map(without_pillow, item))
    if isinstance(item, (tuple, list)):
        return type(item)(map(without_pillow, item))
    if not holds_pillow(item):
        return item
    return from_uint8(to_tensor(eight_bits(item)))


def collate_levels(items: list[tuple[Tensor, int]]) -> tuple[Tensor, Tensor]:
    """(images float32 [B, C, H, W] in [-1, 1], labels int64 [B]) of (uint8 [C, H, W], label).

    Raises:
        ValueError: for images of several sizes.
    """
    images, labels = zip(*items)
    if len(shapes := {tuple(image.shape) for image in images}) > 1:
        raise ValueError(f"images of {len(shapes)} shapes, {sorted(shapes)[:3]}; give size= to resize them")
    return from_uint8(torch.stack(images)), torch.tensor(labels)


def first_images(batch: Any) -> Tensor:
    """Return the place of the images in a batch unless somebody says otherwise.

    The batch itself, the first tensor of a tuple or list, the only tensor of a dictionary, or its entry "image",
    "images", "img", "pixel_values" or "x".

    Raises:
        ValueError: if there is none.
    """
    if isinstance(batch, Tensor):
        return batch
    if isinstance(batch, Mapping):
        tensors = {key: value for key, value in batch.items() if isinstance(value, Tensor)}
        key = next((key for key in IMAGE_KEYS if key in tensors), None)
        if key is not None or len(tensors) == 1:
            return tensors[key] if key is not None else next(iter(tensors.values()))
        raise ValueError(f"a batch is a dictionary with the entries {', '.join(map(str, batch))}")
    if isinstance(batch, (tuple, list)):
        found = next((value for value in batch if isinstance(value, Tensor)), None)
        if found is not None:
            return found
    raise ValueError(f"a batch is a {type(batch).__name__} without tensors")
