"""The common form of CIFAR-10 and CIFAR-100 (Krizhevsky 2009): 32 x 32 RGB images in pickled batches in one archive."""

import tarfile
from abc import abstractmethod
from pathlib import Path

import numpy as np
import torch

from fedgen.data.examples import DataSet, Examples, Split
from fedgen.data.formats.batches import PickledBatch
from fedgen.data.formats.download import fetch, missing


class CIFAR(DataSet):
    """A data set of the CIFAR family, uint8 [N, 3, 32, 32]; a subclass says which and reads the labels.

    Looked for in `root` and in `folder` in it; then downloaded there, where the network allows.

    Args:
        root: folder of data sets, or the folder of the batches itself.
    """

    classes: tuple[str, ...]
    train_files: tuple[str, ...]
    test_files: tuple[str, ...]
    folder: str
    """The folder in the archive."""
    url: str
    md5: str

    def __init__(self, root: str | Path = "data") -> None:
        self.root = Path(root)

    @abstractmethod
    def read_labels(self, batch: PickledBatch) -> np.ndarray:
        """The labels of a batch, int64 [N]."""

    def read(self, split: Split) -> Examples:
        """The images of a split, in the order of the files.

        Raises:
            FileNotFoundError: if its files are nowhere and cannot be downloaded.
            ValueError: if a file is damaged, holds anything but data, or is no batch of this data set.
        """
        files = self.train_files if split == "train" else self.test_files
        folder = self._find(files)
        batches = [PickledBatch.open(folder / file, self.url) for file in files]
        inputs = torch.from_numpy(np.concatenate([batch.images(32) for batch in batches]))
        labels = torch.from_numpy(np.concatenate([self.read_labels(batch) for batch in batches]))
        return Examples(inputs, labels, f"{self.name}/{split}", self.classes)

    def _find(self, files: tuple[str, ...]) -> Path:
        """The folder with these files, downloading them if there is none."""
        folders = [self.root / self.folder, self.root]
        for folder in folders:
            if all((folder / file).is_file() for file in files):
                return folder
        try:
            with tarfile.open(fetch(self.url, self.root, self.md5)) as archive:
                archive.extractall(self.root, filter="data")
        except (OSError, RuntimeError, tarfile.TarError) as error:
            unpack = f"tar xzf {self.url.rpartition('/')[2]} -C {self.root}"
            raise missing(self.name, folders, f"download {self.url} and unpack it: {unpack}", error) from error
        return folders[0]
