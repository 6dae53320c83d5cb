"""Fashion-MNIST (Xiao et al. 2017, arXiv 1708.07747): 60,000 train and 10,000 test images, 28 x 28 grey pixels."""

import gzip
import math
import zlib
from pathlib import Path

import numpy as np
import torch

from fedgen.data.dataset import DataSet, Split
from fedgen.data.download import fetch, missing
from fedgen.data.examples import Examples
from fedgen.data.padding import pad_images

CLASSES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
DEBIAN_FOLDER = Path("/usr/share/datasets/fashion-mnist")
REMEDY = "apt-get install dataset-fashion-mnist, or put the four *-ubyte.gz files of {url} into {folder}"
PREFIX = {"train": "train", "test": "t10k"}


class FashionMNIST(DataSet):
    """Fashion-MNIST, uint8 [N, 1, 28, 28], from its idx files, plain or gzipped.

    Looked for in `root`, in torchvision's place below it, and where Debian's package dataset-fashion-mnist puts it;
    then downloaded to torchvision's place, where the network allows.

    Args:
        root: folder of data sets.
        pad_to: side of the images after padding with black, e.g. 32; then the name is "fashion_mnist-32".
    """

    def __init__(self, root: str | Path = "data", pad_to: int | None = None) -> None:
        self.root = Path(root)
        self.pad_to = pad_to
        self.name = "fashion_mnist" if pad_to is None else f"fashion_mnist-{pad_to}"

    def read(self, split: Split) -> Examples:
        folder = self._find(split)
        images = read_idx(_idx_file(folder, f"{PREFIX[split]}-images-idx3-ubyte"))
        labels = read_idx(_idx_file(folder, f"{PREFIX[split]}-labels-idx1-ubyte"))
        inputs = pad_images(torch.from_numpy(images)[:, None], self.pad_to)
        return Examples(inputs, torch.from_numpy(labels).to(torch.int64), f"{self.name}/{split}", CLASSES)

    def _find(self, split: Split) -> Path:
        """The folder with the split's two files, downloading all four if there is none."""
        raw = self.root / "FashionMNIST" / "raw"
        folders = [self.root, raw, DEBIAN_FOLDER]
        names = [f"{PREFIX[split]}-images-idx3-ubyte", f"{PREFIX[split]}-labels-idx1-ubyte"]
        for folder in folders:
            if all(_idx_file(folder, name).exists() for name in names):
                return folder
        from torchvision.datasets import FashionMNIST as Source

        url = Source.mirrors[0]
        try:
            for name, md5 in Source.resources:
                fetch(url + name, raw, md5)
        except (OSError, RuntimeError) as error:
            raise missing(self.name, folders, REMEDY.format(url=url, folder=self.root), error) from error
        return raw


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
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is cut short or damaged ({error}); get it again") from error
    if len(data) < 4 or data[:3] != b"\0\0\x08" or len(data) < 4 + 4 * data[3]:
        raise ValueError(f"{path} is not an idx file of unsigned bytes; get it again")
    start = 4 + 4 * data[3]
    shape = tuple(int(side) for side in np.frombuffer(data[4:start], ">u4"))
    if len(data) - start != math.prod(shape):
        raise ValueError(f"{path} holds {len(data) - start} values, but its header says {shape}; get it again")
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape).copy()
