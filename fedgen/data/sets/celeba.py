"""CelebA (Liu, Luo, Wang and Tang 2015, arXiv 1411.7766): 202,599 aligned faces of 178 x 218 RGB pixels."""

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from fedgen.data.annotations import numbered
from fedgen.data.examples import DataSet, Examples, Split
from fedgen.data.formats.download import missing
from fedgen.data.formats.image_files import Unread, check_form, fit, read_image, to_tensor
from fedgen.data.formats.image_folder import Listing, load_images
from fedgen.foreign_text import is_number
from fedgen.io.regular_files import check_unpacked, read_regular, stored_bytes

WIDTH, HEIGHT = 178, 218
PARTITION = {"train": "0", "test": "2"}
IMAGES, PARTITIONS, ATTRIBUTES = "img_align_celeba", "list_eval_partition.txt", "list_attr_celeba.txt"
IDENTITIES = "identity_CelebA.txt"
REMEDY = (
    "it is free for research: from https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html get Img/img_align_celeba.zip, "
    "Eval/list_eval_partition.txt and Anno/list_attr_celeba.txt, and unpack them into {folder}"
)


class CelebA(DataSet):
    """CelebA's aligned faces, uint8 [N, 3, size, size]: 162,770 train and 19,962 test images in the files' order.

    Looked for in `root` and in its folder celeba, torchvision's place, each with or without the publisher's folders
    Img, Eval and Anno; it cannot be downloaded by a program. The centre is cut out, crop x crop pixels, and resized by
    Pillow (bicubic, antialiased). The field uses several crops: 178 is the whole width, as in the DCGAN recipes; 140
    is that of the score-based models, 148 that of autoencoders, 108 that of the first DCGANs; scores of different
    crops cannot be compared. The publisher's 19,867 validation images are left out. In memory each JPEG is read
    once: minutes for the train split, which takes 2.0 GB at 64 pixels.

    Args:
        root: folder of data sets, or that of CelebA itself.
        size: side of the images. Then the name ends in it, e.g. "celeba-64".
        crop: side of the square cut out, at most 178. If it is not 178, the name says so: "celeba-64-crop140".
        attribute: one of the 40 attributes, e.g. "Smiling": then the labels are "not Smiling" and "Smiling", and the
            name ends in it. None is no labels.
        identities: whether the people are the images' owners, for clients who are people (`Natural`; LEAF keeps those
            of five images or more). Needs Anno/identity_CelebA.txt, which the publisher gives out on request.
        in_memory: False reads each face when it is needed, with the `num_workers` of the data module.
    """

    def __init__(
        self,
        root: str | Path = "data",
        size: int = 64,
        crop: int = WIDTH,
        attribute: str | None = None,
        identities: bool = False,
        in_memory: bool = True,
    ) -> None:
        check_form(3, size)
        if not 1 <= crop <= WIDTH:
            raise ValueError(f"crop must be 1 to {WIDTH} pixels, the width of the aligned faces, got {crop}")
        self.root, self.size, self.crop = Path(root), size, crop
        self.attribute, self.identities, self.in_memory = attribute, identities, in_memory
        parts = ["celeba", str(size), *([f"crop{crop}"] if crop != WIDTH else []), *([attribute] if attribute else [])]
        self.name = "-".join(parts)

    def read(self, split: Split) -> Examples:
        """The faces of a split; ValueError too if there is no such attribute."""
        names = read_partition(self._find(PARTITIONS), PARTITION[split])
        classes: tuple[str, ...] = ()
        labels = torch.zeros(len(names), dtype=torch.int64)
        if self.attribute is not None:
            classes = (f"not {self.attribute}", self.attribute)
            labels = torch.tensor(read_attribute(self._find(ATTRIBUTES), self.attribute, names), dtype=torch.int64)
        owners, people = self._read_owners(names) if self.identities else (None, ())
        folder = self._folder_of(names, split)
        files = [folder / name for name in names]
        if self.in_memory:
            check_unpacked(len(names) * 3 * self.size**2, stored_bytes(files), f"{len(names)} faces of {folder}:")
        read = partial(read_face, crop=self.crop, size=self.size)
        found = Listing(files, labels, classes, owners, people)
        return load_images(found, f"{self.name}/{split}", read, self.in_memory)

    def _read_owners(self, names: Sequence[str]) -> tuple[Tensor, tuple[str, ...]]:
        """Each image's place among the people of the split, and the people in order of their numbers."""
        try:
            path = self._find(IDENTITIES)
        except FileNotFoundError as error:
            raise FileNotFoundError(f"{error}; or leave identities out") from None
        owners, people = numbered(read_identities(path, names))
        return owners, tuple(f"person {number}" for number in people)

    def _find(self, name: str) -> Path:
        bases = [self.root / "celeba", self.root]
        for base in bases:
            for folder in (base, base / "Img", base / "Eval", base / "Anno"):
                if (folder / name).exists():
                    return folder / name
        raise missing(f"{name} of CelebA", bases, REMEDY.format(folder=bases[0]))

    def _folder_of(self, names: Sequence[str], split: Split) -> Path:
        folder = self._find(IMAGES)
        if absent := sorted(set(names) - set(os.listdir(folder))):
            listed = ", ".join(absent[:5]) + (", ..." if len(absent) > 5 else "")
            raise FileNotFoundError(
                f"{len(absent)} of the {len(names)} {split} images are not in {folder}: {listed}; "
                "unpack img_align_celeba.zip again"
            )
        return folder


def read_face(path: Path, crop: int, size: int, unread: Unread | None = None) -> Tensor:
    """An aligned face, cut to its centre of crop x crop pixels and resized: uint8 [3, size, size]."""
    pixels = read_image(path, channels=3, unread=unread)
    if pixels.shape != (3, HEIGHT, WIDTH):
        found = f"{pixels.shape[2]} x {pixels.shape[1]}"
        raise ValueError(f"{path} (it is {found} pixels, not {WIDTH} x {HEIGHT} as the aligned faces are)")
    # as torchvision's CenterCrop rounds
    top, left = round((HEIGHT - crop) / 2), round((WIDTH - crop) / 2)
    centre = pixels[:, top : top + crop, left : left + crop]
    return to_tensor(fit(Image.fromarray(centre.permute(1, 2, 0).contiguous().numpy()), size))


def read_partition(path: Path, code: str) -> list[str]:
    """The names of the images that list_eval_partition.txt gives this code: "0" train, "1" validation, "2" test."""
    names = []
    for number, fields in _rows(path):
        if len(fields) != 2 or fields[1] not in ("0", "1", "2"):
            raise _no_line(path, number, fields, "0, 1 or 2")
        if fields[1] == code:
            names.append(fields[0])
    if not names:
        raise ValueError(f"{path} gives no image the code {code}; get it again")
    return names


def read_attribute(path: Path, attribute: str, names: Sequence[str]) -> list[int]:
    """Read an attribute of each image, 0 or 1, from list_attr_celeba.txt: a count, the attributes, a line an image."""
    rows = _rows(path, header=2)
    known = next(((fields for number, fields in rows if number == 2)), [])
    if attribute not in known:
        raise ValueError(f"attribute {attribute!r} is not in {path}; it has {', '.join(known) or 'none'}")
    column = 1 + known.index(attribute)
    values = {}
    for number, fields in rows:
        if len(fields) != 1 + len(known) or fields[column] not in ("1", "-1"):
            raise ValueError(f"{path}, line {number}: not an image and {len(known)} times 1 or -1; get it again")
        values[fields[0]] = int(fields[column] == "1")
    return _of_names(values, names, path)


def read_identities(path: Path, names: Sequence[str]) -> list[int]:
    """The number of the person on each image, by identity_CelebA.txt: an image and a number a line."""
    values = {}
    for number, fields in _rows(path):
        if len(fields) != 2 or not is_number(fields[1]):
            raise _no_line(path, number, fields, "a number")
        values[fields[0]] = int(fields[1])
    return _of_names(values, names, path)


def _of_names(values: Mapping[str, int], names: Sequence[str], path: Path) -> list[int]:
    if absent := [name for name in names if name not in values]:
        raise ValueError(f"{path} has no line for {len(absent)} images, e.g. {absent[0]}; get it again")
    return [values[name] for name in names]


def _no_line(path: Path, number: int, fields: Sequence[str], expected: str) -> ValueError:
    said = " ".join(fields)[:80]
    return ValueError(f"{path}, line {number}: {said!r} is not an image and {expected}; get it again")


def _rows(path: Path, header: int = 0) -> Iterator[tuple[int, list[str]]]:
    """The number and the fields of each line, of which after the header no two are of one image."""
    # published in ASCII; what is not then fails as a line or a name that does not exist
    lines = enumerate(read_regular(path).decode("ascii", errors="replace").splitlines(), 1)
    first: dict[str, int] = {}
    for number, fields in ((number, line.split()) for number, line in lines):
        if number > header and fields and first.setdefault(fields[0], number) != number:
            name, before = fields[0][:80], first[fields[0]]
            raise ValueError(f"{path}, line {number}: {name!r} is in line {before} already; get it again")
        yield number, fields
