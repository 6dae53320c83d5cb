"""Items to batches, and images found in batches."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate

from fedgen.images import from_uint8

IMAGE_KEYS = ("image", "images", "img", "pixel_values", "x")

ImagesOf = Callable[..., Any]
"""A batch to its images or points."""


class UnlikeItemsError(ValueError):
    """Items of several shapes, which make no batch.

    Args:
        place: in the batch of the first that differs.
        first: shape of the batch's first item.
        other: shape of the one that differs.
        remedy: what to do.
    """

    def __init__(self, place: int, first: Sequence[int], other: Sequence[int], remedy: str = "") -> None:
        self.place, self.first, self.other = place, list(first), list(other)
        are_grey = first[1:] == other[1:] and {first[0], other[0]} <= {1, 2, 3, 4}
        channels = "convert images to one number of channels in the data set, as image.convert('RGB') does"
        resize = "resize images to one size in the data set, as torchvision's v2.Resize((64, 64)) does"
        pad = "give a collate_fn, a function from a list of items to a batch, that pads them"
        self.remedy = remedy or (pad if len(first) < 2 else channels if are_grey else resize)
        super().__init__(f"a batch has items of the shapes {self.first} and {self.other}: {self.remedy}")


def collate_items(items: list[Any]) -> Any:
    """Torch's `default_collate`, which takes Pillow images, too: float32 [B, C, H, W] in [-1, 1].

    Raises:
        ValueError: for items that do not fit together, such as sequences of several lengths.
    """
    try:
        return default_collate([without_pillow(item) for item in items] if any(map(holds_pillow, items)) else items)
    except (RuntimeError, TypeError) as error:
        shapes = [_shapes(item) for item in map(without_pillow, items)]
        for place, other in enumerate(shapes):
            pairs = [pair for pair in zip(shapes[0], other) if pair[0] != pair[1]]
            if pairs and len(shapes[0]) == len(other):
                raise UnlikeItemsError(place, *pairs[0]) from error
        raise ValueError(
            f"{len(items)} items cannot be put together into a batch ({error}); give a collate_fn, a function from a"
            " list of items to a batch"
        ) from error


def _shapes(item: Any) -> list[tuple[int, ...]]:
    if isinstance(item, (Mapping, tuple, list)):
        return [shape for one in (item.values() if isinstance(item, Mapping) else item) for shape in _shapes(one)]
    return [tuple(item.shape)] if isinstance(item, (Tensor, np.ndarray)) else []


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
    pixels = np.array(item.convert("L" if item.mode in ("1", "L") else "RGB"))
    levels = torch.from_numpy(pixels if pixels.ndim == 3 else pixels[:, :, None])
    return from_uint8(levels.permute(2, 0, 1).contiguous())


def collate_levels(items: list[tuple[Tensor, int]]) -> tuple[Tensor, Tensor]:
    """(images float32 [B, C, H, W] in [-1, 1], labels int64 [B]) of (uint8 [C, H, W], label).

    Raises:
        ValueError: for images of several sizes.
    """
    images, labels = zip(*items)
    for place, image in enumerate(images):
        if image.shape != images[0].shape:
            raise UnlikeItemsError(place, images[0].shape, image.shape, "give size= to resize images to one size")
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
