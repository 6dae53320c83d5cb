"""The picture of an evaluation: generated images in a grid, and a row of real ones of the same clients."""

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedgen.images import tile

SIDE = 32  # pixels that smaller images are enlarged to
STRIP, MARGIN = 18, 3  # pixels of a heading, and before its text


def sample_picture(generated: Tensor, real: Tensor | None, heading: str = "generated") -> Tensor:
    """A grid of generated images and one row of real ones, each under its heading.

    Args:
        generated: uint8 [N, C, H, W], C of 1 or 3.
        real: uint8 [M, C, H, W], of which the first row is shown; None where there are none to show.
        heading: over the generated ones.

    Returns:
        uint8 [C, H', W'].
    """
    columns = int(len(generated) ** 0.5 + 0.999999)
    parts = [_strip(heading, generated.shape[1]), tile(generated, columns, min_side=SIDE)]
    if real is not None and len(real):
        heading = "real, of the same clients in turn"
        parts += [_strip(heading, generated.shape[1]), tile(real[:columns], columns, min_side=SIDE)]
    width = max(part.shape[2] for part in parts)
    return torch.cat([F.pad(part, (0, width - part.shape[2]), value=255) for part in parts], dim=1)


def _strip(text: str, channels: int) -> Tensor:
    """A text on white, uint8 [C, STRIP, its width]."""
    from PIL import Image, ImageDraw, ImageFont

    font = ImageFont.load_default(12)
    width = int(font.getlength(text)) + 2 * MARGIN + 1
    image = Image.new("L", (width, STRIP), 255)
    ImageDraw.Draw(image).text((MARGIN, STRIP // 2), text, fill=0, font=font, anchor="lm")
    return torch.from_numpy(np.array(image)).expand(channels, -1, -1)
