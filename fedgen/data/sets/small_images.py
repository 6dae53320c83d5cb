"""Small images as their publishers store them.

MNIST (LeCun, Bottou, Bengio and Haffner 1998) and Fashion-MNIST (Xiao et al. 2017, arXiv 1708.07747): 60,000 train and
10,000 test images of 28 x 28 grey pixels each, in idx files. MedMNIST v2 (Yang et al. 2023, Scientific Data 10:41):
medical images of 28 to 224 pixels, in .npz files. FEMNIST of LEAF (Caldas et al. 2018, arXiv 1812.01097): digits and
letters by some 3,600 writers, in JSON files that hold "users" and "user_data", by user the images "x" (784 numbers in
[0, 1], 1 is white paper) and labels "y".
"""

import math
import string
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedgen.data.examples import DataSet, Examples, Split
from fedgen.data.formats.image_files import pad_images
from fedgen.io.field_types import fault
from fedgen.io.files import read_json, read_npz
from fedgen.io.regular_files import fetch, fetch_any, missing, read_gzip, read_regular
from fedgen.progress import track

MOST_AXES = 32  # of an array; images have three
PREFIX = {"train": "train", "test": "t10k"}


class IdxDataSet(DataSet):
    """Grey images, uint8 [N, 1, H, W], from idx files, plain or gzipped; a subclass gives the attributes."""

    base_name: str
    classes: tuple[str, ...]
    torchvision_name: str  # of the class that knows the files' addresses and checksums, and of their folder
    more_folders: tuple[Path, ...] = ()
    remedy: str  # what to do where downloading fails; {url} and {folder} are filled in

    def __init__(self, root: str | Path = "data", pad_to: int | None = None) -> None:
        self.root, self.pad_to = Path(root), pad_to
        self.name = self.base_name if pad_to is None else f"{self.base_name}-{pad_to}"

    def read(self, split: Split) -> Examples:
        folder = self._find(split)
        images, labels = map(read_idx, _idx_files(folder, split))
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
            if all(path.exists() for path in _idx_files(folder, split)):
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


def _idx_files(folder: Path, split: Split) -> list[Path]:
    """The files of images and labels, each plain if there is such a file, else gzipped (which may not exist)."""
    plain = (folder / f"{PREFIX[split]}-{kind}-ubyte" for kind in ("images-idx3", "labels-idx1"))
    return [path if path.is_file() else path.with_name(f"{path.name}.gz") for path in plain]


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


# The files of the sets of 2D images, as published in MedMNIST's package (medmnist 3.0.2, info.py).
URL = "https://zenodo.org/records/10519652/files/{file}"
SIZES = (28, 64, 128, 224)
MED_CLASSES = {
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
MEDMNIST = (
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
        arrays = read_npz(path, list(dict.fromkeys([f"{split}_images", f"{split}_labels", "train_labels"])))
        images = pad_images(_med_images(arrays[f"{split}_images"], path, split, self.size), self.pad_to)
        labels, classes = _med_labels(arrays, self.flag, split, len(images), path)
        return Examples(images, labels, f"{self.name}/{split}", classes)

    def _find(self) -> Path:
        file = self.flag + (f"_{self.size}" if self.size != 28 else "") + ".npz"
        folders = [self.root, self.root / "medmnist"]
        for path in (self.root, *(folder / file for folder in folders)):
            if path.is_file():
                return path
        cause: Exception | None = None
        if self.flag in MD5:  # of other sets no file is published
            try:
                return fetch(URL.format(file=file), folders[1], MD5[self.flag][SIZES.index(self.size)])
            except (OSError, RuntimeError) as error:
                cause = error
        raise missing(file, folders, MEDMNIST.format(file=file, folder=folders[1]), cause) from cause


def _med_images(images: np.ndarray, path: Path, split: str, size: int) -> Tensor:
    grey = images.ndim == 3
    shape = images.shape[1:] if grey else images.shape[1:3]
    if images.dtype != np.uint8 or not (grey or (images.ndim == 4 and images.shape[3] == 3)) or shape != (size, size):
        raise ValueError(
            f"{path}: {split}_images must be uint8 [N, {size}, {size}] or [N, {size}, {size}, 3], got {images.dtype}"
            f" {list(images.shape)}; sets of 3D images cannot be used"
        )
    tensor = torch.from_numpy(images)
    return tensor[:, None] if grey else tensor.permute(0, 3, 1, 2).contiguous()


def _med_labels(
    arrays: Mapping[str, np.ndarray], flag: str, split: str, count: int, path: Path
) -> tuple[Tensor, tuple[str, ...]]:
    """Labels int64 [N] and their classes; none for images of several findings."""
    labels, train = arrays[f"{split}_labels"], arrays["train_labels"]
    if labels.ndim != 2 or len(labels) != count or labels.dtype.kind not in "iu" or labels.shape[1:] != train.shape[1:]:
        raise ValueError(
            f"{path}: {split}_labels must be integers [{count}, 1], got {labels.dtype} {list(labels.shape)}"
        )
    if labels.shape[1] > 1:
        return torch.zeros(count, dtype=torch.int64), ()
    most = MED_CLASSES.get(flag, 2**63)
    for name, given in ((f"{split}_labels", labels), ("train_labels", train)):
        if given.dtype.kind in "iu" and len(rows := np.flatnonzero(given >= most)):
            label = given[rows[0], 0]
            raise ValueError(f"{path}: row {rows[0]} of {name} is {label}, and {flag} has the classes 0 to {most - 1}")
    return torch.from_numpy(labels[:, 0].astype(np.int64)), tuple(map(str, range(int(train.max()) + 1)))


CLASSES = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)
LEAF = (
    "clone https://github.com/TalwalkarLab/leaf, run ./preprocess.sh -s niid --sf 1.0 -k 0 -t sample in data/femnist, "
    "and copy its folders data/train and data/test into {folder}"
)


class FEMNIST(DataSet):
    """LEAF's FEMNIST, uint8 [N, 1, 28, 28], with the writers as owners, for the partition `Natural`.

    All JSON files of LEAF's scripts in `root`/femnist/train or `root`/train (and test) are read in the order of their
    names. Split by LEAF's `-t sample`, both splits have the same writers, by `-t user` different ones. A file of 100
    writers takes about 7 seconds, and 1 GB while it is read. The Hugging Face hub has the images in another order and
    in one split: `HuggingFace("flwrlabs/femnist", channels=1, owner_column="writer_id")`.

    Args:
        root: folder of data sets, or the folder with the folders train and test.
        digits_only: leave letters out; then the name is "femnist-digits". Writers without digits are no owners.
        ink: "black" on white paper, as published, or "white" on black, as in MNIST; then the name ends in "white".
        pad_to: side of the images after padding with the paper's colour, e.g. 32; then the name has it.
    """

    def __init__(
        self, root: str | Path = "data", digits_only: bool = False, ink: str = "black", pad_to: int | None = None
    ) -> None:
        if ink not in ("black", "white"):
            raise ValueError(f"ink={ink!r} is not known; use 'black' (as published) or 'white' (as in MNIST)")
        self.root, self.digits_only, self.ink, self.pad_to = Path(root), digits_only, ink, pad_to
        options = {"digits": digits_only, str(pad_to): pad_to is not None, "white": ink == "white"}
        self.name = "-".join(["femnist", *(name for name, given in options.items() if given)])

    def read(self, split: Split) -> Examples:
        """The images of a split, writer by writer; ValueError if no image is left."""
        images, labels = list[np.ndarray](), list[np.ndarray]()
        owners, owner_of = dict[str, int](), list[int]()
        count = 10 if self.digits_only else len(CLASSES)
        folders = [self.root / "femnist" / split, self.root / split]
        files = next((found for folder in folders if (found := sorted(folder.glob("*.json")))), [])
        if not files:
            raise missing(f"the {split} split of FEMNIST", folders, LEAF.format(folder=self.root / "femnist"))
        for path in track(files, f"reading {self.name}/{split}", len(files), "files"):
            for writer, pixels, numbers in read_writers(path):
                kept = numbers < count
                if kept.any():
                    images.append(pixels[kept])
                    labels.append(numbers[kept])
                    owner_of += [owners.setdefault(writer, len(owners))] * int(kept.sum())
        if not images:
            raise ValueError(f"{self.name}/{split} has no image in {files[0].parent}")
        ink = torch.from_numpy(255 - np.concatenate(images))  # white on black, so that padding adds paper
        ink = pad_images(ink, self.pad_to)
        inputs = ink if self.ink == "white" else 255 - ink
        classes = torch.from_numpy(np.concatenate(labels))
        return Examples(inputs, classes, f"{self.name}/{split}", CLASSES[:count], torch.tensor(owner_of), tuple(owners))


def read_writers(path: Path) -> list[tuple[str, np.ndarray, np.ndarray]]:
    """Each writer's name, images (uint8 [n, 1, 28, 28], 255 is paper) and labels (int64 [n]) in one of LEAF's files."""
    try:
        content = read_json(path)
        users, data = content["users"], content["user_data"]
        if wrong := fault(users, list[str]):
            raise TypeError(f"users {wrong}")
        if twice := next((user for user, times in Counter(users).items() if times > 1), ""):
            raise ValueError(f"users names {twice!r} twice")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is no file of LEAF's with users and user_data ({error!r})") from error
    found = []
    for user in users:
        try:
            found.append((user, *_to_arrays(data[user])))
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"{path}, user {user!r}: {error}") from error
    return found


def _to_arrays(own: Any) -> tuple[np.ndarray, np.ndarray]:
    levels, labels = np.asarray(own["x"], dtype=np.float64), np.asarray(own["y"])
    count = len(labels)
    if levels.size != count * 784 or (count and levels.shape != (count, 784)):
        raise ValueError(f"x has the shape {levels.shape}, but {count} labels need ({count}, 784)")
    if count and not (levels.min() >= 0 and levels.max() <= 1):
        raise ValueError(f"x lies in {levels.min()} to {levels.max()}, not in 0 to 1")
    if count and (labels.dtype.kind not in "iu" or not 0 <= labels.min() <= labels.max() < len(CLASSES)):
        raise ValueError(f"y must be integers from 0 to {len(CLASSES) - 1}")
    return np.rint(levels * 255).astype(np.uint8).reshape(count, 1, 28, 28), labels.astype(np.int64)
