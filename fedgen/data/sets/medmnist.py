"""MedMNIST v2 (Yang et al. 2023, Scientific Data 10:41): medical images of 28 to 224 pixels, from its .npz files."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedgen.data.examples import DataSet, Examples, Split
from fedgen.data.formats.download import fetch, missing
from fedgen.data.padding import pad_images
from fedgen.data.sets.medmnist_files import CLASSES, MD5, SIZES, URL
from fedgen.io.files import read_npz

REMEDY = (
    "get {file} from https://zenodo.org/records/10519652 (CC BY 4.0, DermaMNIST CC BY-NC 4.0) and put it into {folder}"
)


class MedMNIST(DataSet):
    """One of MedMNIST's twelve sets of 2D images, uint8 [N, 1 or 3, size, size]; its validation images are left out.

    Looked for as `root`/pathmnist.npz (pathmnist_64.npz for 64 pixels) and in the folder medmnist of `root`, into which
    it is downloaded otherwise (DermaMNIST is CC BY-NC 4.0, the others CC BY 4.0). Classes are their numbers.
    ChestMNIST, whose images have several findings each, has no labels here.

    Args:
        name: of the set, e.g. "pathmnist", "bloodmnist", "organamnist".
        root: folder of data sets, that with the files, or the file.
        size: side of the images, 28, 64, 128 or 224; other than 28 the name ends in it, e.g. "pathmnist-64".
        pad_to: side after padding with black, e.g. 32; then the name ends in it.
    """

    def __init__(self, name: str, root: str | Path = "data", size: int = 28, pad_to: int | None = None) -> None:
        if size not in SIZES:
            raise ValueError(f"size={size} is not published; use one of {', '.join(map(str, SIZES))}")
        if not name.isidentifier():
            raise ValueError(f"name={name!r}: give a set of MedMNIST by its file's name, such as 'pathmnist'")
        self.flag, self.root, self.size, self.pad_to = name.lower(), Path(root), size, pad_to
        parts = [self.flag, *([str(size)] if size != 28 else []), *([str(pad_to)] if pad_to else [])]
        self.name = "-".join(parts)

    def read(self, split: Split) -> Examples:
        """The images of a split.

        Raises:
            FileNotFoundError: if the file is in none of the folders and cannot be downloaded.
            ValueError: if it is damaged or not of this form; the message says which array is wrong.
        """
        path = self._find()
        wanted = [f"{split}_images", f"{split}_labels", "train_labels"]
        arrays = read_npz(path, list(dict.fromkeys(wanted)))
        images = pad_images(_images(arrays[f"{split}_images"], path, split, self.size), self.pad_to)
        _check_classes(self.flag, {name: arrays[name] for name in wanted[1:]}, path)
        labels, classes = _labels(arrays[f"{split}_labels"], arrays["train_labels"], len(images), path, split)
        return Examples(images, labels, f"{self.name}/{split}", classes)

    def _find(self) -> Path:
        file = self.flag + (f"_{self.size}" if self.size != 28 else "") + ".npz"
        if self.root.is_file():
            return self.root
        folders = [self.root, self.root / "medmnist"]
        for folder in folders:
            if (folder / file).is_file():
                return folder / file
        cause: Exception | None = None
        if self.flag in MD5:  # of other sets no file is published
            try:
                return fetch(URL.format(file=file), folders[1], MD5[self.flag][SIZES.index(self.size)])
            except (OSError, RuntimeError) as error:
                cause = error
        raise missing(file, folders, REMEDY.format(file=file, folder=folders[1]), cause) from cause


def _images(images: np.ndarray, path: Path, split: str, size: int) -> Tensor:
    grey = images.ndim == 3
    shape = images.shape[1:] if grey else images.shape[1:3]
    if images.dtype != np.uint8 or not (grey or (images.ndim == 4 and images.shape[3] == 3)) or shape != (size, size):
        raise ValueError(
            f"{path}: {split}_images must be uint8 [N, {size}, {size}] or [N, {size}, {size}, 3], got {images.dtype}"
            f" {list(images.shape)}; sets of 3D images cannot be used"
        )
    tensor = torch.from_numpy(images)
    return tensor[:, None] if grey else tensor.permute(0, 3, 1, 2).contiguous()


def _check_classes(flag: str, labels: Mapping[str, np.ndarray], path: Path) -> None:
    """Raise ValueError for a label that is none of the set's published classes."""
    most = CLASSES.get(flag, 2**63)
    for name, given in labels.items():
        if given.shape[1:] == (1,) and given.dtype.kind in "iu" and len(rows := np.flatnonzero(given >= most)):
            label = given[rows[0], 0]
            raise ValueError(f"{path}: row {rows[0]} of {name} is {label}, and {flag} has the classes 0 to {most - 1}")


def _labels(
    labels: np.ndarray, train: np.ndarray, count: int, path: Path, split: str
) -> tuple[Tensor, tuple[str, ...]]:
    """Labels int64 [N] and their classes; none for images of several findings."""
    if labels.ndim != 2 or len(labels) != count or labels.dtype.kind not in "iu" or labels.shape[1:] != train.shape[1:]:
        raise ValueError(
            f"{path}: {split}_labels must be integers [{count}, 1], got {labels.dtype} {list(labels.shape)}"
        )
    if labels.shape[1] > 1:
        return torch.zeros(count, dtype=torch.int64), ()
    return torch.from_numpy(labels[:, 0].astype(np.int64)), tuple(map(str, range(int(train.max()) + 1)))
