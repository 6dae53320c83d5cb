"""Images that a CSV file lists, with who owns each and its label."""

import os
import re
from pathlib import Path
from typing import Any

from fedgen.data.annotations import find_labels, find_owners
from fedgen.data.examples import DataSet, Examples, Split
from fedgen.data.formats.image_files import check_form
from fedgen.data.formats.image_folder import read_images
from fedgen.data.formats.image_items import lazy_images
from fedgen.io.files import read_csv

NUMBER = re.compile("0|[1-9][0-9]{0,3}")  # of a class, as a table of texts has it


class ImageManifest(DataSet):
    """Images of a CSV file with the columns path, client and perhaps label, uint8 [N, C, H, W], in the order of rows.

    The clients are the images' owners, for the partition `Natural`; classes and owners stand in the order of their
    names. Labels that are all numbers, as "7", are the classes' numbers. Further columns are left alone.

    Args:
        path: the CSV file (UTF-8, with a header).
        root: the folder that the paths start from and stay within; the CSV file's by default.
        size: side to which images are resized, see `ImageFolder`. Then the name ends in it.
        channels: 3 for RGB, 1 for grey; images are converted.
        name: what stored scores call the data; the CSV file's name by default.
        in_memory: False reads each image when it is needed, for more than memory holds, with the `num_workers` of the
            data module. Then a damaged image, or one of another size, is found when it is read.
    """

    splits = ("train",)

    def __init__(
        self,
        path: str | Path,
        root: str | Path | None = None,
        size: int | None = None,
        channels: int = 3,
        name: str | None = None,
        in_memory: bool = True,
    ) -> None:
        check_form(channels, size)
        self.path = Path(path)
        self.root = self.path.parent if root is None else Path(root)
        self.size = size
        self.channels = channels
        self.in_memory = in_memory
        self.name = (name or self.path.stem) + (f"-{size}" if size else "")

    def read(self, split: Split) -> Examples:
        """The images listed.

        Raises:
            FileNotFoundError: if there is no such CSV file.
            ValueError: if it has no rows, lacks a column or a value, or a path leads out of the folder; if images
                cannot be read (all are listed), or sizes differ and none is asked for.
        """
        columns = read_columns(self.path)
        name = f"{self.name}/{split}"
        files = [self._place(path) for path in columns["path"]]
        values: list[Any] = columns.get("label", [])
        if all(NUMBER.fullmatch(value) for value in values):
            values = list(map(int, values))
        labels, classes = find_labels(None, values, len(files))
        known = labels, name, classes, *find_owners(None, columns["client"], len(files))
        if not self.in_memory:
            return lazy_images(files, *known, channels=self.channels, size=self.size)
        return Examples(read_images(files, name, self.channels, self.size), *known)

    def _place(self, path: str) -> Path:
        home = os.path.abspath(self.root)
        file = Path(os.path.abspath(os.path.join(home, path)))
        if not file.is_relative_to(home):
            raise ValueError(f"{self.path}: {path} leads out of {home}; give root=, a folder that holds all images")
        return file


def read_columns(path: Path) -> dict[str, list[str]]:
    """The columns path and client, and label if there is one, without spaces around the values."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no {path.absolute()}; give a CSV file with the columns path, client, label")
    header, rows = read_csv(path)
    if absent := {"path", "client"} - set(header):
        raise ValueError(f"{path} has no column {' or '.join(sorted(absent))}; its first line is {header}")
    columns: dict[str, list[str]] = {name: [] for name in ("path", "client", "label") if name in header}
    for line, row in rows:
        for name, values in columns.items():
            value = row[name].strip()
            if not value:
                raise ValueError(f"{path}, line {line}: there is no {name}")
            values.append(value)
    if not columns["path"]:
        raise ValueError(f"{path} lists no images")
    return columns
