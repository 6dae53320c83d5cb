"""Images of hospitals that a data set's table lists, with the hospitals as owners.

Camelyon17 of WILDS (Bandi et al. 2018; Koh et al. 2021, arXiv 2012.07421): 455,954 patches of five hospitals.
Fed-ISIC2019 of FLamby (Ogier du Terrail et al. 2022, arXiv 2210.04620): 23,247 skin lesions of six centres.
"""

import re
from abc import abstractmethod
from pathlib import Path

from fedgen.data.examples import Examples, Split
from fedgen.data.formats.download import missing
from fedgen.data.formats.image_folder import FittedImages, Listing
from fedgen.io.files import read_csv

MOST = 10**9  # of coordinates and numbers of nodes
Row = dict[str, str]


class HospitalImages(FittedImages):
    """Colour images uint8 [N, 3, size, size] in the order of a table, whose owners are hospitals.

    Args:
        root: folder of data sets, or that of this one.
        size: side of the images (bicubic, antialiased; the shorter side first, then the centre is cut out). The name
            ends in it.
        in_memory: False reads each image when it is needed, with the `num_workers` of the data module.
    """

    title: str
    folder: str
    table: str
    remedy: str
    columns: tuple[str, ...]
    key: tuple[str, ...]
    """The columns that name an image."""
    label: str
    """The column of labels, positions in `classes`; that of hospitals, positions in `hospitals`, is "center"."""
    classes: tuple[str, ...]
    hospitals: tuple[str, ...]

    def __init__(self, root: str | Path = "data", size: int = 64, in_memory: bool = True) -> None:
        super().__init__(self.title, size, 3, in_memory)
        self.root = Path(root)

    def read(self, split: Split) -> Examples:
        found = self._list(self._find(), split)
        if absent := [file for file in found.files if not file.is_file()]:
            missed = f"{len(absent)} of the {len(found.files)} images of {self.name}/{split}, first {absent[0].name},"
            raise missing(missed, [absent[0].parent], self.remedy)
        return self.load_listed(found, split)

    def _find(self) -> Path:
        folders = [self.root / self.folder, self.root]
        for folder in folders:
            if (folder / self.table).is_file():
                return folder
        raise missing(f"{self.table} of {self.title}", folders, self.remedy)

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
