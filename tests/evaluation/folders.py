"""Small image folders of a generated set and of clients."""

from pathlib import Path

import torch
from torch import Tensor

from fedgen.images import save_png
from tests.evaluation.test_parity import draw_pictures, write_pngs

COUNTS = {"alpha": 20, "beta": 34, "gamma": 10}
GENERATED = 30


def make_folders(root: Path, channels: int = 3) -> dict[str, Tensor]:
    """Images [N, channels, 16, 16] by name, written to `generated` and `data/<client>` below a folder."""
    images = {"generated": draw_pictures(GENERATED, 2, channels, -20.0)}
    write_pngs(root / "generated", images["generated"])
    for seed, (name, count) in enumerate(COUNTS.items(), start=3):
        images[name] = draw_pictures(count, seed, channels, 10.0 * seed)
        write_pngs(root / "data" / name, images[name])
    return images


def client_paths(root: Path) -> list[Path]:
    """The clients' folders, as a shell lists them."""
    return sorted((root / "data").iterdir())


def save_grey(path: Path, height: int, width: int, level: int = 9) -> None:
    """A grey PNG of one level."""
    save_png(path, torch.full((1, height, width), level, dtype=torch.uint8))
