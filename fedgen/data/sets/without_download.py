"""Data sets that installed packages bring, or that are drawn.

The digits of scikit-learn are 1,797 grey images of 8 x 8 pixels (UCI ML repository). The photographs of scikit-image
are in the public domain or free to use; `help(skimage.data.coffee)` and its like say whose each is. The points are the
toy of the papers on avg and all: clients N((-1, 0), I) and N((+1, 0), I) in the plane.
"""

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedgen.data.examples import DataSet, Examples, Split
from fedgen.data.formats.image_files import check_form, read_image
from fedgen.extras import need
from fedgen.seeds import generator

DIGITS = tuple("0123456789")


class Digits(DataSet):
    """The 1,797 digits of scikit-learn, uint8 [1797, 1, 8, 8]; no files, no download, no test split.

    Examples:
        >>> from fedgen import Digits
        >>> digits = Digits().read("train")
        >>> digits.inputs.shape, digits.inputs.dtype
        (torch.Size([1797, 1, 8, 8]), torch.uint8)
        >>> digits.labels[:5]
        tensor([0, 1, 2, 3, 4])
    """

    name = "digits"
    splits = ("train",)

    def read(self, split: Split) -> Examples:
        """The digits, their 17 grey levels v spread to round(v * 255 / 16)."""
        package: Any = find_spec("sklearn")  # importing it takes seconds
        path = Path(package.submodule_search_locations[0], "datasets", "data", "digits.csv.gz")
        rows = torch.from_numpy(np.loadtxt(path, delimiter=","))
        spread = rows[:, :-1].mul(255 / 16).round().to(torch.uint8)
        return Examples(spread.reshape(-1, 1, 8, 8), rows[:, -1].to(torch.int64), f"{self.name}/{split}", DIGITS)


class GaussianMixture(DataSet):
    """Points drawn from Gaussians, float32 [N, D]; the label is the component, so ByClass makes one client of each.

    Pooled, the default is a mixture with mean 0 and covariance diag(2, 1).

    Args:
        num_points: points of each component in each split.
        means: the components' means.
        std: standard deviation along every axis.
        seed: the same seed gives the same points; "train" and "test" are independent draws.
    """

    name = "gaussian_mixture"

    def __init__(
        self,
        num_points: int = 50_000,
        means: Sequence[Sequence[float]] = ((-1.0, 0.0), (1.0, 0.0)),
        std: float = 1.0,
        seed: int = 0,
    ) -> None:
        if num_points < 1 or std < 0 or not means or len({len(mean) for mean in means}) != 1:
            given = f"num_points={num_points}, std={std}, means={means}"
            raise ValueError(f"{given}: num_points must be at least 1, std at least 0, means of one length")
        self.num_points, self.means, self.std, self.seed = num_points, means, std, seed

    def read(self, split: Split) -> Examples:
        centres = torch.tensor(self.means, dtype=torch.float32)
        count, dim = centres.shape
        noise = torch.randn(count, self.num_points, dim, generator=generator(self.seed, self.name, split))
        points = (noise * self.std + centres[:, None]).reshape(-1, dim)
        labels = torch.arange(count).repeat_interleave(self.num_points)
        classes = tuple(f"component {component}" for component in range(count))
        return Examples(points, labels, f"{self.name}/{split}", classes)


COLOUR: Mapping[str, str] = {
    "astronaut": "astronaut.png",
    "cat": "chelsea.png",
    "coffee": "coffee.png",
    "galaxies": "hubble_deep_field.jpg",
    "motorcycle": "motorcycle_left.png",
    "retina": "retina.jpg",
    "rocket": "rocket.jpg",
    "tissue": "ihc.png",
}
_IN_GREY = ("brick", "camera", "cell", "clock", "coins", "grass", "gravel", "moon", "page", "text")
GREY: Mapping[str, str] = {name: f"{name}.png" for name in _IN_GREY} | {"clock": "clock_motion.png"}
TEST_EVERY = 5  # tiles, one of which is the test split's


class PhotoPatches(DataSet):
    """Square patches of 8 photographs in colour, or of 18 in grey, uint8 [N, C, size, size], with the photo as owner.

    For the partition `Natural`: a client for each photo, of 126 (cat) to 1,936 (retina) patches of 32 pixels, both
    splits together. There are no labels: what a patch shows is not known beyond its photo, and labels that repeat the
    owners would make label partitions natural ones.

    A photo is cut into tiles of 2 size x 2 size pixels, those at its right and lower edge smaller. The tile in row r
    and column c is the test split's if r + 2 c is a multiple of 5, so that each row and column of five tiles has one;
    a patch lies within one tile. Hence no pixel is in both splits, and both have patches from all over every photo.

    Args:
        size: side of a patch in pixels.
        stride: pixels from one patch to the next within a tile; `size` by default, so that patches do not overlap.
        channels: 3 for the photos in colour, 1 for those and the grey ones, all in grey.
        photos: names of those to use, in that order, in place of all; a grey one has three equal channels in colour.

    Raises:
        ValueError: if size or stride is below 1, channels is neither, or a name is not known or there twice.
    """

    def __init__(
        self, size: int = 32, stride: int | None = None, channels: int = 3, photos: Sequence[str] | None = None
    ) -> None:
        check_form(channels, size)
        if stride is not None and stride < 1:
            raise ValueError(f"stride must be at least 1 pixel, got {stride}")
        self.size, self.stride, self.channels = size, size if stride is None else stride, channels
        self.photos = tuple(photos or (COLOUR if channels == 3 else (*COLOUR, *GREY)))
        if unknown := [photo for photo in self.photos if photo not in COLOUR and photo not in GREY]:
            raise ValueError(f"photo {unknown[0]!r} is not known; use {', '.join((*COLOUR, *GREY))}")
        if len(set(self.photos)) != len(self.photos):
            raise ValueError(f"photos={list(self.photos)}: each is one owner; name it once")
        options = {f"stride{self.stride}": self.stride != size, "grey": channels == 1, "+".join(self.photos): photos}
        self.name = "-".join(["photo_patches", str(size), *(name for name, given in options.items() if given)])

    def read(self, split: Split) -> Examples:
        """The patches of a split, photo by photo, each from the top left on; ValueError if a photo is too small for
        one.
        """
        parts = [self._patches(photo, split) for photo in self.photos]
        owners = torch.arange(len(parts)).repeat_interleave(torch.tensor([len(part) for part in parts]))
        return Examples(torch.cat(parts), torch.zeros_like(owners), f"{self.name}/{split}", (), owners, self.photos)

    def _patches(self, photo: str, split: Split) -> Tensor:
        image = read_image(find_photo(photo), self.channels)
        rows, columns = (places(length, self.size, self.stride) for length in image.shape[1:])
        tile = 2 * self.size
        tested = (rows[:, None] // tile + 2 * (columns // tile)) % TEST_EVERY == 0
        row, column = (tested if split == "test" else ~tested).nonzero().unbind(1)
        if not len(row):
            sides = " x ".join(map(str, image.shape[1:]))
            raise ValueError(
                f"photo {photo!r} ({sides} pixels) has no {split} patch of size={self.size}; use smaller patches, or "
                "other photos"
            )
        windows = image.unfold(1, self.size, 1).unfold(2, self.size, 1)
        return windows[:, rows[row], columns[column]].transpose(0, 1).contiguous()


def places(length: int, size: int, stride: int) -> Tensor:
    """Return starts of patches on a side of `length` pixels, every `stride` in each tile of 2 size: int64 [n]."""
    tiles = ((start, min(start + 2 * size, length)) for start in range(0, length, 2 * size))
    return torch.tensor([*chain(*(range(start, end - size + 1, stride) for start, end in tiles))], dtype=torch.int64)


def find_photo(photo: str) -> Path:
    """The file of a photo in the installed scikit-image; nothing is downloaded."""
    path = Path(str(need("skimage", "photos", "PhotoPatches").__file__)).parent / "data" / {**COLOUR, **GREY}[photo]
    if not path.is_file():
        raise FileNotFoundError(
            f"the installed scikit-image does not bring the photo {photo!r} ({path}); install 0.25 or 0.26, "
            "or choose other photos"
        )
    return path
