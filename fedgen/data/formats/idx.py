"""Data sets in four idx files: the form of MNIST (LeCun et al. 1998) and of those made to replace it."""

import gzip
import io
import math
import zlib
from pathlib import Path

import numpy as np
import torch

from fedgen.data.examples import DataSet, Examples, Split
from fedgen.data.formats.download import fetch_any, missing
from fedgen.data.padding import pad_images
from fedgen.io.regular_files import check_unpacked, most_unpacked, read_regular

MOST_AXES = 32  # of an array; images have three
PREFIX = {"train": "train", "test": "t10k"}


class IdxDataSet(DataSet):
    """Grey images, uint8 [N, 1, H, W], from idx files, plain or gzipped; a subclass says which.

    Looked for in `root`, in torchvision's place below it and in `more_folders`; then downloaded to torchvision's place,
    where the network allows.

    Args:
        root: folder of data sets.
        pad_to: side of the images after padding with black; then the name ends in it, e.g. "mnist-32".
    """

    base_name: str
    classes: tuple[str, ...]
    torchvision_name: str
    """The class of torchvision that knows the files' addresses and checksums; its files lie in a folder so named."""
    more_folders: tuple[Path, ...] = ()
    remedy: str
    """What to do where downloading fails; {url} and {folder} are filled in."""

    def __init__(self, root: str | Path = "data", pad_to: int | None = None) -> None:
        self.root = Path(root)
        self.pad_to = pad_to
        self.name = self.base_name if pad_to is None else f"{self.base_name}-{pad_to}"

    def read(self, split: Split) -> Examples:
        """The images of a split.

        Raises:
            FileNotFoundError: if its files are nowhere and cannot be downloaded.
            ValueError: if a file is damaged, or images and labels differ in number.
        """
        folder = self._find(split)
        images, labels = (read_idx(_idx_file(folder, name)) for name in _file_names(split))
        if images.ndim != 3 or labels.shape != images.shape[:1]:
            found = f"images {images.shape} and labels {labels.shape}"
            raise ValueError(f"the {split} files in {folder} must hold images [N, H, W] and N labels, not {found}")
        inputs = pad_images(torch.from_numpy(images)[:, None], self.pad_to)
        return Examples(inputs, torch.from_numpy(labels).to(torch.int64), f"{self.name}/{split}", self.classes)

    def _find(self, split: Split) -> Path:
        """The folder with the split's two files, downloading all four if there is none."""
        raw = self.root / self.torchvision_name / "raw"
        folders = [self.root, raw, *self.more_folders]
        for folder in folders:
            if all(_idx_file(folder, name).exists() for name in _file_names(split)):
                return folder
        from torchvision import datasets

        source = getattr(datasets, self.torchvision_name)
        try:
            for name, md5 in source.resources:
                fetch_any([mirror + name for mirror in source.mirrors], raw, md5)
        except (OSError, RuntimeError) as error:
            remedy = self.remedy.format(url=source.mirrors[0], folder=self.root)
            raise missing(self.name, folders, remedy, error) from error
        return raw


def _file_names(split: Split) -> tuple[str, str]:
    """The names of the split's images and labels."""
    return f"{PREFIX[split]}-images-idx3-ubyte", f"{PREFIX[split]}-labels-idx1-ubyte"


def _idx_file(folder: Path, name: str) -> Path:
    """The plain file if there is one, otherwise the gzipped one (which may not exist)."""
    plain = folder / name
    return plain if plain.is_file() else folder / f"{name}.gz"


def read_idx(path: Path) -> np.ndarray:
    """The uint8 array of an idx file: two zero bytes, type code 8, number of axes, big-endian sides, then the values.

    Raises:
        ValueError: if the file is cut short, damaged or of another type.
    """
    try:
        data = _unpacked(path) if path.suffix == ".gz" else read_regular(path)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is cut short or damaged ({error}); get it again") from error
    if len(data) < 4 or data[:3] != b"\0\0\x08" or len(data) < 4 + 4 * data[3]:
        raise ValueError(f"{path} is not an idx file of unsigned bytes; get it again")
    start = 4 + 4 * data[3]
    shape = tuple(int(side) for side in np.frombuffer(data[4:start], ">u4"))
    if len(data) - start != math.prod(shape):
        raise ValueError(f"{path} holds {len(data) - start} values, but its header says {shape}; get it again")
    if len(shape) > MOST_AXES or math.prod(max(side, 1) for side in shape) >= 2**63:
        raise ValueError(f"{path} says that it has the sides {shape}, which no array has; get it again")
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape).copy()


def _unpacked(path: Path) -> bytes:
    """The content of a gzipped file, unless it unfolds into far more than it holds."""
    content = read_regular(path)
    most = most_unpacked(len(content))
    with gzip.open(io.BytesIO(content)) as file:
        data = file.read(most + 1)
    check_unpacked(len(data), len(content), str(path))
    return data
