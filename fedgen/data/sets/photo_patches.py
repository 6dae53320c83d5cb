"""Patches of the photographs that come with scikit-image: natural clients of colour without a download.

They are in the public domain or free to use; `help(skimage.data.coffee)` and its like say whose each is.
"""

from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path

import torch
from torch import Tensor

from fedgen.data.examples import DataSet, Examples, Split
from fedgen.data.formats.image_files import check_form, read_image
from fedgen.extras import need

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
