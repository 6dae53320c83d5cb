"""Panels that show a stored picture."""

from pathlib import Path
from typing import Any


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
