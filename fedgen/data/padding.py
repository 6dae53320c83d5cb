"""Black borders, so that 28 x 28 images fit networks made for 32 x 32."""

from torch import Tensor
from torch.nn import functional as F


def pad_images(images: Tensor, side: int | None) -> Tensor:
    """The images [N, C, side, side] with equal black borders; unchanged for None.

    Raises:
        ValueError: if the side is smaller than the images, or the borders would be unequal.
    """
    if side is None:
        return images
    border, rest = divmod(side - images.shape[-1], 2)
    if border < 0 or rest or images.shape[-1] != images.shape[-2]:
        height, width = images.shape[-2:]
        raise ValueError(f"pad_to={side} does not leave equal borders around {height} x {width} images; use 32 for 28")
    return F.pad(images, (border,) * 4)
