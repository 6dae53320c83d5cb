"""MedMNIST v2 (Yang et al. 2023, Scientific Data 10:41): medical images of 28 to 224 pixels, from its .npz files."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedgen.data.examples import DataSet, Examples, Split
from fedgen.data.formats.download import fetch, missing
from fedgen.data.formats.image_files import pad_images
from fedgen.io.files import read_npz

# The files of the sets of 2D images, as published in MedMNIST's package (medmnist 3.0.2, info.py).
URL = "https://zenodo.org/records/10519652/files/{file}"
SIZES = (28, 64, 128, 224)
CLASSES = {
    **{"pathmnist": 9, "dermamnist": 7, "octmnist": 4, "pneumoniamnist": 2, "retinamnist": 5, "breastmnist": 2},
    **{"bloodmnist": 8, "tissuemnist": 8, "organamnist": 11, "organcmnist": 11, "organsmnist": 11},
}
"""set -> its number of classes; ChestMNIST's images have several findings"""
_CHECKSUMS = """
pathmnist a8b06965200029087d5bd730944a56c1 55aa9c1e0525abe5a6b9d8343a507616
          ac42d08fb904d92c244187169d1fd1d9 2c51a510bcdc9cf8ddb2af93af1eadec
chestmnist 02c8a6516a18b556561a56cbdd36c4a8 9de6cd0b934ebb5b7426cfba5efbae16
           db107e5590b27930b62dbaf558aebee3 45bd33e6f06c3e8cdb481c74a89152aa
dermamnist 0744692d530f8e62ec473284d019b0c7 b70a2f5635c6199aeaa28c31d7202e1f
           2defd784463fa5243564e855ed717de1 8974907d8e169bef5f5b96bc506ae45d
octmnist c68d92d5b585d8d81f7112f81e2d0842 e229e9440236b774d9f0dfef9d07bdaf
         0a97e76651ace45c5d943ee3f65b63ae abc493b6d529d5de7569faaef2773ba3
pneumoniamnist 28209eda62fecd6e6a2d98b1501bb15f 8f4eceb4ccffa70c672198ea285246c6
               05b46931834c231683c68f40c47b2971 d6a3c71de1b945ea11211b03746c1fe1
retinamnist bd4c0672f1bba3e3a89f0e4e876791e4 afda852cc34dcda56f86ad2b2457dbcc
            e48e916a24454daf90583d4e6efb1a18 eae7e3b6f3fcbda4ae613ebdcbe35348
breastmnist 750601b1f35ba3300ea97c75c52ff8f6 742edef2a1fd1524b2efff4bd7ba9364
            363e4b3f8d712e9b5de15470a2aaadf1 b56378a6eefa9fed602bb16d192d4c8b
bloodmnist 7053d0359d879ad8a5505303e11de1dc 2b94928a2ae4916078ca51e05b6b800b
           adace1e0ed228fccda1f39692059dd4c b718ff6835fcbdb22ba9eacccd7b2601
tissuemnist ebe78ee8b05294063de985d821c1c34b 123ece2eba09d0aa5d698fda57103344
            61b955355d7425a89687b06cca3ce0c2 b077128c4a949f0a4eb01517f9037b9c
organamnist 68e3f8846a6bd62f0c9bf841c0d9eacc 2dcccc29b88e6da5a01161ef20cda288
            eeae80d0a227a8d099027e1b3cfd3b60 50747347e05c87dd3aaf92c49f9f3170
organcmnist b9ceb9546e10131b32923c5bbeaea2b1 3ce34a8724ea6f548e6db4744d03b6a9
            773c1f009daa3fe5d9a2a201b2a7ed94 050f5e875dc056f6768abf94ec9995d1
organsmnist 9ab87b696fb54e2a387ebe992d6ed5f1 53a6d115339d874c25e309a994ff46d3
            ded0c5fa01a95dc4978b956f613e9b8e b354719e553fbbb2513d5533f52a4cb1
"""
_WORDS = _CHECKSUMS.split()
MD5 = {_WORDS[place]: _WORDS[place + 1 : place + 5] for place in range(0, len(_WORDS), 5)}
"""set -> the checksum of the file of each of `SIZES`"""
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
        self.name = self.flag + (f"-{size}" if size != 28 else "") + (f"-{pad_to}" if pad_to else "")

    def read(self, split: Split) -> Examples:
        """The images of a split."""
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
