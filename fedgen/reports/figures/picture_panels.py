"""Panels that show pictures: a stored one, or rows of images."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedgen.images import tile

SIDE = 32  # pixels that a small image is enlarged to
LARGE = 64  # pixels from which images are smoothed when drawn smaller


def show_picture(axes: Any, path: str | Path, title: str = "", **style: Any) -> None:
    """Fills a panel with a PNG, pixel by pixel and without ticks.

    Args:
        axes: matplotlib's.
        path: of the picture.
        title: above it.
        style: of the title.
    """
    from matplotlib.image import imread

    axes.imshow(imread(path), cmap="gray", interpolation="nearest")
    axes.set_title(title, **style)
    axes.set_xticks([])
    axes.set_yticks([])


def show_rows(axes: Any, rows: Mapping[str, Tensor]) -> None:
    """Fills a panel with rows of images, what a row is written at its left.

    Args:
        axes: matplotlib's.
        rows: by what to call them, uint8 images [columns, C, H, W], of one shape.
    """
    columns, _, height, _ = next(iter(rows.values())).shape
    sheet = tile(torch.cat(list(rows.values())), columns, min_side=SIDE).permute(1, 2, 0).squeeze(-1)
    smooth = "nearest" if height < LARGE else "antialiased"
    axes.imshow(sheet.numpy(), cmap="gray", vmin=0, vmax=255, interpolation=smooth)
    side = len(sheet) / len(rows)
    axes.set_yticks([(row + 0.5) * side for row in range(len(rows))], list(rows), fontsize=10)
    axes.set_xticks([])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
