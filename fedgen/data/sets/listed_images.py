"""Images that their publishers list in tables.

CelebA (Liu, Luo, Wang and Tang 2015, arXiv 1411.7766): 202,599 aligned faces of 178 x 218 RGB pixels.
Camelyon17 of WILDS (Bandi et al. 2018; Koh et al. 2021, arXiv 2012.07421): 455,954 patches of five hospitals.
Fed-ISIC2019 of FLamby (Ogier du Terrail et al. 2022, arXiv 2210.04620): 23,247 skin lesions of six centres.
"""

import os
import re
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from PIL import Image
from torch import Tensor

from fedgen.data.examples import Examples, Split, numbered
from fedgen.data.formats.image_files import Unread, fit, read_image, to_tensor
from fedgen.data.formats.image_folder import FittedImages, Listing
from fedgen.foreign_text import is_number, listed
from fedgen.io.files import read_csv
from fedgen.io.regular_files import check_unpacked, missing, read_regular, stored_bytes

WIDTH, HEIGHT = 178, 218
PARTITION = {"train": "0", "test": "2"}
IMAGES, PARTITIONS, ATTRIBUTES = "img_align_celeba", "list_eval_partition.txt", "list_attr_celeba.txt"
IDENTITIES = "identity_CelebA.txt"
REMEDY = (
    "it is free for research: from https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html get Img/img_align_celeba.zip, "
    "Eval/list_eval_partition.txt and Anno/list_attr_celeba.txt (and ask for identity_CelebA.txt, or leave identities"
    " out), and unpack them into {folder}"
)


class CelebA(FittedImages):
    """CelebA's aligned faces, uint8 [N, 3, size, size]: 162,770 train and 19,962 test images in the files' order.

    Looked for in `root` and in its folder celeba, torchvision's place, each with or without the publisher's folders
    Img, Eval and Anno; no program can download it. The centre, crop x crop pixels, is resized by Pillow (bicubic,
    antialiased). Crops of the field: 178, the whole width (DCGAN recipes), 140 (score-based models), 148 (autoencoders)
    and 108 (first DCGANs); their scores cannot be compared. The publisher's 19,867 validation images are left out. In
    memory each JPEG is read once: minutes for the train split, which takes 2.0 GB at 64 pixels.

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
        super().__init__("celeba", size, 3, in_memory)
        if not 1 <= crop <= WIDTH:
            raise ValueError(f"crop must be 1 to {WIDTH} pixels, the width of the aligned faces, got {crop}")
        self.root, self.side, self.crop = Path(root), size, crop
        self.attribute, self.identities = attribute, identities
        self.name += (f"-crop{crop}" if crop != WIDTH else "") + (f"-{attribute}" if attribute else "")

    def read(self, split: Split) -> Examples:
        """The faces of a split; ValueError too if there is no such attribute."""
        names = read_partition(self._find(PARTITIONS), PARTITION[split])
        classes: tuple[str, ...] = ()
        labels = [0] * len(names)
        if self.attribute is not None:
            classes = (f"not {self.attribute}", self.attribute)
            labels = read_attribute(self._find(ATTRIBUTES), self.attribute, names)
        owners, people = numbered(read_identities(self._find(IDENTITIES), names)) if self.identities else (None, ())
        folder = self._find(IMAGES)
        if absent := sorted(set(names) - set(os.listdir(folder))):
            raise FileNotFoundError(
                f"{len(absent)} of the {len(names)} {split} images are not in {folder}: {listed(absent)}; unpack"
                " img_align_celeba.zip again"
            )
        files = [folder / name for name in names]
        if self.in_memory:
            check_unpacked(len(names) * 3 * self.side**2, stored_bytes(files), f"{len(names)} faces of {folder}:")
        owner_names = tuple(f"person {number}" for number in people)
        return self.load_listed(Listing(files, labels, classes, owners, owner_names), split)

    @property
    def reader(self) -> "partial[Tensor]":
        return partial(read_face, crop=self.crop, size=self.side)

    def _find(self, name: str) -> Path:
        bases = [self.root / "celeba", self.root]
        for base in bases:
            for folder in (base, base / "Img", base / "Eval", base / "Anno"):
                if (folder / name).exists():
                    return folder / name
        raise missing(f"{name} of CelebA", bases, REMEDY.format(folder=bases[0]))


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
    codes = _values_in(path, ("0", "1", "2").__contains__, "0, 1 or 2")
    names = [name for name, own in codes.items() if own == code]
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
    values = _values_in(path, is_number, "a number")
    return _of_names({name: int(value) for name, value in values.items()}, names, path)


def _values_in(path: Path, is_sound: Callable[[str], bool], expected: str) -> dict[str, str]:
    """The value of each image, of lines with an image and a value."""
    values = {}
    for number, fields in _rows(path):
        if len(fields) != 2 or not is_sound(fields[1]):
            said = " ".join(fields)[:80]
            raise ValueError(f"{path}, line {number}: {said!r} is not an image and {expected}; get it again")
        values[fields[0]] = fields[1]
    return values


def _of_names(values: Mapping[str, int], names: Sequence[str], path: Path) -> list[int]:
    if absent := [name for name in names if name not in values]:
        raise ValueError(f"{path} has no line for {len(absent)} images, e.g. {absent[0]}; get it again")
    return [values[name] for name in names]


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


MOST = 10**9  # of coordinates and numbers of nodes
Row = dict[str, str]


class HospitalImages(FittedImages):
    """Colour images uint8 [N, 3, size, size] in the order of a table, whose owners are hospitals.

    Args:
        root: folder of data sets, or that of this one.
        size: side of the images, see `ImageFolder`. The name ends in it.
        in_memory: False reads each image when it is needed, with the `num_workers` of the data module.
    """

    title: str
    folder: str
    table: str
    remedy: str
    columns: tuple[str, ...]
    key: tuple[str, ...]  # the columns that name an image
    label: str  # the column of labels, positions in `classes`; that of positions in `hospitals` is "center"
    classes: tuple[str, ...]
    hospitals: tuple[str, ...]

    def __init__(self, root: str | Path = "data", size: int = 64, in_memory: bool = True) -> None:
        super().__init__(self.title, size, 3, in_memory)
        self.root = Path(root)

    def read(self, split: Split) -> Examples:
        folders = [self.root / self.folder, self.root]
        place = next((folder for folder in folders if (folder / self.table).is_file()), None)
        if place is None:
            raise missing(f"{self.table} of {self.title}", folders, self.remedy)
        found = self._list(place, split)
        if absent := [file for file in found.files if not file.is_file()]:
            missed = f"{len(absent)} of the {len(found.files)} images of {self.name}/{split}, first {absent[0].name},"
            raise missing(missed, [absent[0].parent], self.remedy)
        return self.load_listed(found, split)

    def _list(self, place: Path, split: Split) -> Listing:
        """The images of a split by the table in a folder; hospitals without an image are no owners."""
        path = place / self.table
        files, labels, centers = [], [], []
        for line, row in _table_rows(path, self.columns, self.key):
            if (file := self.file_of(path, line, row, split)) is not None:
                files.append(place / file)
                labels.append(_number_in(path, line, row, self.label, len(self.classes)))
                centers.append(_number_in(path, line, row, "center", len(self.hospitals)))
        if not files:
            raise ValueError(f"{path} lists no image of the {split} split; get it again")
        present = sorted(set(centers))
        names = tuple(self.hospitals[center] for center in present)
        return Listing(files, labels, self.classes, [present.index(center) for center in centers], names)

    @abstractmethod
    def file_of(self, path: Path, line: int, row: Row, split: Split) -> str | None:
        """The image of a row of the table at a path, below its folder; None if it is not in the split."""


class Camelyon17(HospitalImages):
    """Patches of lymph node sections, uint8 [N, 3, size, size], with the hospitals as owners, for `Natural`.

    Looked for as WILDS unpacks it: metadata.csv and patches in `root`/camelyon17_v1.0 or in `root`; patches are of 96 x
    96 pixels. Labels say whether the centre has tumor tissue. Train and test are the table's two parts, nine and one
    tenth of all hospitals' patches, drawn patch by patch. (WILDS itself tests on the hospitals 1 and 2, whose patches
    it leaves out of training: "hospital 1" and "hospital 2" here.) In memory at 64 pixels the train split takes 5 GB.
    """

    title, folder, table = "camelyon17", "camelyon17_v1.0", "metadata.csv"
    remedy = (
        "it is free (CC0): pip install wilds, run python -c \"from wilds import get_dataset; get_dataset('camelyon17', "
        "download=True, root_dir='data')\" (10 GB), and give the folder camelyon17_v1.0 that it makes"
    )
    columns = ("patient", "node", "x_coord", "y_coord", "tumor", "center", "split")
    key, label, classes = columns[:4], "tumor", ("normal", "tumor")
    hospitals = tuple(f"hospital {number}" for number in range(5))

    def file_of(self, path: Path, line: int, row: Row, split: Split) -> str | None:
        if _number_in(path, line, row, "split", 4) != ("train", "test").index(split):
            return None
        node, x, y = (_number_in(path, line, row, column, MOST) for column in ("node", "x_coord", "y_coord"))
        patient = f"{_number_in(path, line, row, 'patient', 1000):03d}"  # three digits in names of files
        section = f"patient_{patient}_node_{node}"
        return f"patches/{section}/patch_{section}_x_{x}_y_{y}.png"


class FedISIC2019(HospitalImages):
    """Skin lesions, uint8 [N, 3, size, size], with the centres as owners, for `Natural`: 18,597 train, 4,650 test.

    Looked for in `root`/fed_isic2019 or in `root`: FLamby's table train_test_split and its folder
    ISIC_2019_Training_Input_preprocessed, whose images have a shorter side of 224 pixels. Labels are ISIC's eight
    diagnoses. Both splits have all centres.
    """

    images = "ISIC_2019_Training_Input_preprocessed"
    title, folder, table = "fed-isic2019", "fed_isic2019", "train_test_split"
    remedy = (
        "it is free for research (CC BY-NC 4.0): run download_isic.py and resize_images.py of FLamby "
        "(https://github.com/owkin/FLamby, flamby/datasets/fed_isic2019/dataset_creation_scripts), and put the folder "
        f"{images} that they make and their file train_test_split into one folder"
    )
    columns = ("image", "target", "center", "fold")
    key, label, classes = columns[:1], "target", ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC")
    # in FLamby's order: centre 0 to 5
    hospitals = ("BCN", "HAM_vidir_molemax", "HAM_vidir_modern", "HAM_rosendahl", "MSK", "HAM_vienna_dias")

    def file_of(self, path: Path, line: int, row: Row, split: Split) -> str | None:
        if row["fold"] not in ("train", "test"):
            raise ValueError(f"{path}, line {line}: fold is {row['fold'][:40]!r}, neither train nor test")
        if row["fold"] != split:
            return None
        if not re.fullmatch("[A-Za-z0-9_]{1,64}", row["image"]):
            raise ValueError(f"{path}, line {line}: {row['image'][:40]!r} is no name of an image")
        return f"{self.images}/{row['image']}.jpg"


def _table_rows(path: Path, columns: tuple[str, ...], key: tuple[str, ...]) -> list[tuple[int, Row]]:
    """The rows of a table, each with its line; ValueError if it lacks a column, or names an image twice."""
    header, rows = read_csv(path)
    if absent := [name for name in columns if name not in header]:
        raise ValueError(f"{path} has no column {', '.join(absent)}; its first line is {','.join(header)[:200]}")
    first: dict[str, int] = {}
    for line, row in rows:
        name = ", ".join(row[column] for column in key)
        if first.setdefault(name, line) != line:
            raise ValueError(f"{path}, line {line}: the image {name[:80]!r} is in line {first[name]} already")
    return rows


def _number_in(path: Path, line: int, row: Row, column: str, below: int) -> int:
    """The whole number in a column, 0 to below - 1; ValueError that names the line if it is none."""
    value = row[column]
    if not (value.isascii() and value.isdecimal() and len(value) < 10 and int(value) < below):
        raise ValueError(f"{path}, line {line}: {column} is {value[:40]!r}, not a number from 0 to {below - 1}")
    return int(value)
