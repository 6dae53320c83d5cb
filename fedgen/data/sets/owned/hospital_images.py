"""Images of hospitals that a data set's table lists: what Camelyon17 and Fed-ISIC2019 share."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from fedgen.data.examples import DataSet, Examples, Split
from fedgen.data.formats.download import missing
from fedgen.data.formats.image_files import check_form
from fedgen.data.formats.image_folder import Listing, read_images
from fedgen.data.formats.image_items import lazy_images
from fedgen.io.files import read_csv


class HospitalImages(DataSet):
    """Colour images uint8 [N, 3, size, size] in the order of a table, whose owners are hospitals.

    A subclass gives `title`, `folder`, `table` and `remedy`, and `list_split`.

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

    def __init__(self, root: str | Path = "data", size: int = 64, in_memory: bool = True) -> None:
        check_form(3, size)
        self.root, self.size, self.in_memory = Path(root), size, in_memory
        self.name = f"{self.title}-{size}"

    def read(self, split: Split) -> Examples:
        """The images of a split.

        Raises:
            FileNotFoundError: if the table or images are missing; the message counts them.
            ValueError: if the table is damaged or images cannot be read (all are listed).
        """
        place = self._find()
        found = self.list_split(place, split)
        name = f"{self.name}/{split}"
        if absent := [file for file in found.files if not file.is_file()]:
            missed = f"{len(absent)} of the {len(found.files)} images of {name}, first {absent[0].name},"
            raise missing(missed, [absent[0].parent], self.remedy)
        known = torch.tensor(found.labels), name, found.classes, torch.tensor(found.owners), found.owner_names
        if not self.in_memory:
            return lazy_images(found.files, *known, size=self.size)
        return Examples(read_images(found.files, name, 3, self.size), *known)

    def _find(self) -> Path:
        """The folder with the table."""
        folders = [self.root / self.folder, self.root]
        for folder in folders:
            if (folder / self.table).is_file():
                return folder
        raise missing(f"{self.table} of {self.title}", folders, self.remedy)

    @abstractmethod
    def list_split(self, place: Path, split: Split) -> Listing:
        """The images of a split, with labels and hospitals, by the table in a folder."""


def table_rows(path: Path, columns: Sequence[str], key: Sequence[str]) -> list[tuple[int, dict[str, str]]]:
    """The rows of a table, each with its line; the columns of `key` name the image.

    Raises:
        ValueError: if it lacks a column, names an image twice, or is no CSV file.
    """
    header, rows = read_csv(path)
    if absent := [name for name in columns if name not in header]:
        raise ValueError(f"{path} has no column {', '.join(absent)}; its first line is {','.join(header)[:200]}")
    first: dict[str, int] = {}
    for line, row in rows:
        name = ", ".join(row[column] for column in key)
        if first.setdefault(name, line) != line:
            raise ValueError(f"{path}, line {line}: the image {name[:80]!r} is in line {first[name]} already")
    return rows


def number_in(path: Path, line: int, row: dict[str, str], column: str, below: int) -> int:
    """The whole number in a column, 0 to below - 1.

    Raises:
        ValueError: if it is none; the message names the line.
    """
    value = row[column]
    if not (value.isascii() and value.isdecimal() and len(value) < 10 and int(value) < below):
        raise ValueError(f"{path}, line {line}: {column} is {value[:40]!r}, not a number from 0 to {below - 1}")
    return int(value)


def listing(
    files: list[Path], labels: list[int], classes: tuple[str, ...], hospitals: list[int], name_of: Callable[[int], str]
) -> Listing:
    """The listing of images whose hospitals are given by number; those without an image are no owners."""
    present = sorted(set(hospitals))
    places = {number: place for place, number in enumerate(present)}
    owners = tuple(places[number] for number in hospitals)
    return Listing(files, labels, classes, owners, tuple(name_of(number) for number in present))
