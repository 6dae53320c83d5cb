"""Images in folders: one for each class, or all in one; in a folder for each owner; or as a CSV file lists them."""

import hashlib
import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from fedgen.data.examples import DataSet, Examples, Split, find_labels, find_owners
from fedgen.data.formats.image_files import SUFFIXES, Unread, check_form, images_below, join, read_image
from fedgen.data.items import Items, Part, collate_levels
from fedgen.data.lazy_examples import make_lazy
from fedgen.io.files import read_csv
from fedgen.io.regular_files import check_unpacked, most_unpacked
from fedgen.own_code import warn
from fedgen.progress import track

NUMBER = re.compile("0|[1-9][0-9]{0,3}")  # of a class, as a table of texts has it


class FittedImages(DataSet):
    """Images that are converted to `channels` and fitted to `size`, at once or when they are needed."""

    def __init__(self, name: str, size: int | None, channels: int, in_memory: bool) -> None:
        check_form(channels, size)
        self.name = name + (f"-{size}" if size else "")
        self.size, self.channels, self.in_memory = size, channels, in_memory

    def load_listed(self, found: "Listing", split: Split, unread: Unread | None = None) -> Examples:
        """Examples of listed images; `unread` learns what is not read of them."""
        name, labels = f"{self.name}/{split}", torch.as_tensor(found.labels)
        known = labels, name, found.classes, found.owners, found.owner_names
        if self.in_memory:
            return Examples(read_images(found.files, name, self.reader, unread), *known)
        items = Items([Part(ImageFiles(found.files, labels, self.reader), collate_levels)])
        return make_lazy(items, name, labels, *known[2:])

    @property
    def reader(self) -> "partial[Tensor]":
        """Gives a file's image, uint8 [C, H, W]."""
        return partial(read_image, channels=self.channels, size=self.size)


class ImageFolder(FittedImages):
    """Images below a folder, uint8 [N, C, H, W], in the order of their paths.

    If the folder has subfolders, each is a class with all images below it; otherwise all images lie in the folder
    itself and have no labels. With `owner_folders` the folder has a subfolder for each owner, whose images lie in it
    or in class folders in it, for the partition `Natural`: hospital/class/image or hospital/image. An owner may lack a
    class's folder, and the test split may have other owners.

    Args:
        root: the folder of the train split.
        size: side to which images are resized (bicubic, antialiased; the shorter side first, then the centre is cut
            out); by default all must have one size. Then the name ends in it, e.g. "pets-64".
        channels: 3 for RGB, 1 for grey; images are converted.
        name: what stored scores call the data; the folder's name by default.
        test_root: the folder of the test split, with the same classes; without it there is no test split.
        owner_folders: whether the first subfolders are owners.
        in_memory: False reads each image when it is needed, for more than memory holds, with the `num_workers` of the
            data module. Then a damaged image, or one of another size, is found when it is read.
    """

    def __init__(
        self,
        root: str | Path,
        size: int | None = None,
        channels: int = 3,
        name: str | None = None,
        test_root: str | Path | None = None,
        owner_folders: bool = False,
        in_memory: bool = True,
    ) -> None:
        super().__init__(name or Path(root).absolute().name, size, channels, in_memory)
        self.roots = {"train": Path(root)} | ({"test": Path(test_root)} if test_root else {})
        self.splits = tuple(self.roots)
        self.owner_folders = owner_folders

    def read(self, split: Split) -> Examples:
        """The images of a split.

        ValueError also if sizes differ and none is asked for, images lie beside folders, or the classes are not those
        of the train split.
        """
        unread = Unread()
        found = self._list(split, unread)
        if split == "test" and found.classes != (expected := self._list("train").classes):
            raise ValueError(f"{self.roots[split]} has the classes {found.classes}, but the train split has {expected}")
        examples = self.load_listed(found, split, unread)
        for remark in unread.remarks():
            warn(f"{self.roots[split]}: {remark}")
        return examples

    def read_from(self) -> list[Path]:
        return list(self.roots.values())

    def _list(self, split: Split, unread: Unread | None = None) -> "Listing":
        return (list_owned if self.owner_folders else list_images)(self.roots[split], unread)


class ImageManifest(FittedImages):
    """Images of a CSV file with the columns path, client and perhaps label, uint8 [N, C, H, W], in the order of rows.

    The clients are the images' owners, for the partition `Natural`; classes and owners stand in the order of their
    names. Labels that are all numbers, as "7", are the classes' numbers. Further columns are left alone.

    Args:
        path: the CSV file (UTF-8, with a header).
        root: the folder that the paths start from and stay within; the CSV file's by default.
        size: side to which images are resized, see `ImageFolder`. Then the name ends in it.
        channels: 3 for RGB, 1 for grey; images are converted.
        name: what stored scores call the data; the CSV file's name by default.
        in_memory: False reads each image when it is needed, see `ImageFolder`.
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
        self.path = Path(path)
        super().__init__(name or self.path.stem, size, channels, in_memory)
        self.root = self.path.parent if root is None else Path(root)

    def read(self, split: Split) -> Examples:
        """The images listed; ValueError also for a path out of the folder, or if sizes differ and none is asked for."""
        columns = read_columns(self.path)
        files = [self._place(path) for path in columns["path"]]
        values: list[Any] = columns.get("label", [])
        if all(NUMBER.fullmatch(value) for value in values):
            values = list(map(int, values))
        labels, classes = find_labels(None, values, len(files))
        found = Listing(files, labels, classes, *find_owners(None, columns["client"], len(files)))
        return self.load_listed(found, split)

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


@dataclass(frozen=True)
class Listing:
    """The images that there are, in order, with each one's label and owner, by positions in the names of these."""

    files: Sequence[Path]
    labels: Any  # a tensor or integers
    classes: tuple[str, ...]
    owners: Any = None
    owner_names: tuple[str, ...] = ()


def read_images(files: Sequence[Path], name: str, read: "partial[Tensor]", unread: Unread | None = None) -> Tensor:
    """The images of these files, uint8 [N, C, H, W]; ValueError that names all that cannot be read, or the sizes."""
    images, broken = list[Tensor](), list[str]()
    made = Counter[tuple[int, int]]()  # bytes of each file's images, under whatever name it is listed again
    for file in track(files, f"reading {name}", len(files), "images"):
        try:
            images.append(read(file, unread=unread)[None])
        except ValueError as error:
            broken.append(str(error))
            continue
        known = file.stat()
        made[known.st_dev, known.st_ino] += images[-1].nbytes
        if made[known.st_dev, known.st_ino] > most_unpacked(known.st_size):
            times = sum(other.samefile(file) for other in files if other.exists())
            check_unpacked(times * images[-1].nbytes, known.st_size, f"{file}, listed {times} times,")
    if broken:
        listing = "\n  ".join(broken)
        raise ValueError(f"{len(broken)} of {len(files)} images of {name} cannot be read:\n  {listing}")
    shapes = {tuple(image.shape[2:]): file for image, file in zip(images, files)}
    if len(shapes) > 1:
        found = ", ".join(f"{h} x {w} ({file})" for (h, w), file in list(shapes.items())[:5])
        raise ValueError(f"the images of {name} have {len(shapes)} sizes: {found}; give size= to resize them")
    return join(images)


def list_images(root: Path, unread: Unread | None = None) -> Listing:
    classes = folders_in(root, "class", unread)
    groups = [images_below(root / name, recursive=True, unread=unread) for name in classes]
    groups = groups or [images_below(root, recursive=False)]
    for group, name in zip(groups, classes or [""]):
        if not group:
            raise FileNotFoundError(f"{(root / name).absolute()} has no images ({', '.join(sorted(SUFFIXES))})")
    labels = [label for label, group in enumerate(groups) for _ in group]
    return Listing([file for group in groups for file in group], labels, tuple(classes))


def list_owned(root: Path, unread: Unread | None = None) -> Listing:
    names = folders_in(root, "owner", unread)
    if not names:
        raise FileNotFoundError(f"{root.absolute()} has no folders; with owner_folders each owner's images lie in one")
    parts = {name: list_images(root / name, unread) for name in names}
    classes = sorted({name for part in parts.values() for name in part.classes})
    flat = [name for name, part in parts.items() if not part.classes]
    if classes and flat:
        raise ValueError(
            f"{root / flat[0]} has no class folders, but other owners have ({', '.join(classes[:3])}...); give every "
            "owner class folders, or none"
        )
    places = {name: label for label, name in enumerate(classes)}
    labels = [places[part.classes[label]] if classes else 0 for part in parts.values() for label in part.labels]
    owners = [owner for owner, part in enumerate(parts.values()) for _ in part.files]
    files = [file for part in parts.values() for file in part.files]
    return Listing(files, labels, tuple(classes), owners, tuple(names))


def folders_in(root: Path, kind: str, unread: Unread | None = None) -> list[str]:
    """Names of a folder's folders of a kind, in order, without hidden ones; `unread` counts what else is no image."""
    if not root.is_dir():
        raise FileNotFoundError(f"there is no folder {root.absolute()}; give the folder that holds the images")
    names = sorted(path.name for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))
    unread = unread or Unread()
    images = images_below(root, recursive=False, unread=unread)
    unread.folders -= len(names)
    if names and images:
        raise ValueError(
            f"{root} holds both images (such as {images[0].name}) and folders; move them into {kind} folders"
        )
    return names


class ImageFiles(Dataset[tuple[Tensor, int]]):
    """Files and labels, int64 [N], as items (uint8 [C, H, W], label); `read` gives a path's image."""

    def __init__(self, files: Sequence[Path], labels: Tensor, read: partial[Tensor]) -> None:
        self.files, self.targets, self.read = [str(file) for file in files], labels, read

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, position: int) -> tuple[Tensor, int]:
        return self.read(Path(self.files[position])), int(self.targets[position])

    def content_id(self) -> str:
        """A hash of the files' names, sizes and times of change, and of how they are read."""
        own = [self.read.func.__name__, self.read.args, self.read.keywords]
        digest = hashlib.blake2b(repr(own).encode(), digest_size=16)
        for file in self.files:
            known = Path(file).stat()
            digest.update(f"{file} {known.st_size} {known.st_mtime_ns}\n".encode())
        return digest.hexdigest()
