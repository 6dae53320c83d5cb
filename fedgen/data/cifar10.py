"""CIFAR-10 (Krizhevsky 2009): 50,000 train and 10,000 test images, 32 x 32 RGB pixels, in ten classes."""

import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedgen.data.dataset import DataSet, Split
from fedgen.data.download import fetch, missing
from fedgen.data.examples import Examples
from fedgen.data.pickles import read_pickle

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
FILES = {"train": [f"data_batch_{part}" for part in range(1, 6)], "test": ["test_batch"]}
FOLDER = "cifar-10-batches-py"
URL = "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"
MD5 = "c58f30108f718f92721af3b95e74349a"


class CIFAR10(DataSet):
    """CIFAR-10, uint8 [N, 3, 32, 32], from the pickled batches, read by `read_pickle`, which cannot run anything.

    Looked for in `root` and in its folder cifar-10-batches-py; then downloaded there, where the network allows.

    Args:
        root: folder of data sets, or the folder of the batches itself.
    """

    name = "cifar10"

    def __init__(self, root: str | Path = "data") -> None:
        self.root = Path(root)

    def read(self, split: Split) -> Examples:
        folder = self._find(split)
        batches = [read_batch(folder / file) for file in FILES[split]]
        inputs = torch.from_numpy(np.concatenate([images for images, _ in batches]))
        labels = torch.from_numpy(np.concatenate([labels for _, labels in batches]))
        return Examples(inputs, labels, f"{self.name}/{split}", CLASSES)

    def _find(self, split: Split) -> Path:
        """The folder with the split's batches, downloading them if there is none."""
        folders = [self.root / FOLDER, self.root]
        for folder in folders:
            if all((folder / file).is_file() for file in FILES[split]):
                return folder
        try:
            with tarfile.open(fetch(URL, self.root, MD5)) as archive:
                archive.extractall(self.root, filter="data")
        except (OSError, RuntimeError, tarfile.TarError) as error:
            remedy = f"download {URL} and unpack it: tar xzf cifar-10-python.tar.gz -C {self.root}"
            raise missing(self.name, folders, remedy, error) from error
        return folders[0]


def read_batch(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """The images, uint8 [N, 3, 32, 32], and labels, int64 [N], of a pickled batch.

    Raises:
        ValueError: if the file is damaged, holds anything but data, or is not a CIFAR-10 batch.
    """
    batch: Any = read_pickle(path)
    data = batch.get("data") if isinstance(batch, dict) else None
    labels = batch.get("labels") if isinstance(batch, dict) else None
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != 3072:
        raise ValueError(f"{path} is not a CIFAR-10 batch: 'data' must be uint8 [N, 3072]; get it again from {URL}")
    if not isinstance(labels, list) or len(labels) != len(data) or not all(type(label) is int for label in labels):
        raise ValueError(f"{path} is not a CIFAR-10 batch: 'labels' must be {len(data)} integers; get it again")
    return data.reshape(-1, 3, 32, 32), np.array(labels, dtype=np.int64)
