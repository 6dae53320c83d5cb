"""Data sets of pickled batches: CIFAR-10 and -100 (Krizhevsky 2009), 50,000 train and 10,000 test images of 32 x 32
RGB pixels; and the downsampled ImageNet (Chrabaszcz, Loshchilov and Hutter 2017, arXiv 1707.08819), 1,281,167 + 50,000.
"""

import io
import tarfile
from abc import abstractmethod
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from fedgen.data.examples import DataSet, Examples, Split
from fedgen.data.formats.image_files import join
from fedgen.io.field_types import conforms
from fedgen.io.regular_files import fetch, missing, read_regular
from fedgen.io.restricted_pickle import NUMBER_NAMES, DataType, Function, Name, make_array, unpickle
from fedgen.progress import track

SIZES = (8, 16, 32, 64)  # of ImageNet's images
GROUPS = {
    "aquatic_mammals": ("beaver", "dolphin", "otter", "seal", "whale"),
    "fish": ("aquarium_fish", "flatfish", "ray", "shark", "trout"),
    "flowers": ("orchid", "poppy", "rose", "sunflower", "tulip"),
    "food_containers": ("bottle", "bowl", "can", "cup", "plate"),
    "fruit_and_vegetables": ("apple", "mushroom", "orange", "pear", "sweet_pepper"),
    "household_electrical_devices": ("clock", "keyboard", "lamp", "telephone", "television"),
    "household_furniture": ("bed", "chair", "couch", "table", "wardrobe"),
    "insects": ("bee", "beetle", "butterfly", "caterpillar", "cockroach"),
    "large_carnivores": ("bear", "leopard", "lion", "tiger", "wolf"),
    "large_man-made_outdoor_things": ("bridge", "castle", "house", "road", "skyscraper"),
    "large_natural_outdoor_scenes": ("cloud", "forest", "mountain", "plain", "sea"),
    "large_omnivores_and_herbivores": ("camel", "cattle", "chimpanzee", "elephant", "kangaroo"),
    "medium_mammals": ("fox", "porcupine", "possum", "raccoon", "skunk"),
    "non-insect_invertebrates": ("crab", "lobster", "snail", "spider", "worm"),
    "people": ("baby", "boy", "girl", "man", "woman"),
    "reptiles": ("crocodile", "dinosaur", "lizard", "snake", "turtle"),
    "small_mammals": ("hamster", "mouse", "rabbit", "shrew", "squirrel"),
    "trees": ("maple_tree", "oak_tree", "palm_tree", "pine_tree", "willow_tree"),
    "vehicles_1": ("bicycle", "bus", "motorcycle", "pickup_truck", "train"),
    "vehicles_2": ("lawn_mower", "rocket", "streetcar", "tank", "tractor"),
}
"""The classes of each group; both are numbered in the order of their names, as in the archive's file "meta"."""

COARSE_CLASSES = tuple(sorted(GROUPS))
FINE_CLASSES = tuple(sorted(name for names in GROUPS.values() for name in names))
_GROUP_OF = {name: group for group, names in GROUPS.items() for name in names}
COARSE_OF_FINE = tuple(COARSE_CLASSES.index(_GROUP_OF[name]) for name in FINE_CLASSES)
"""The coarse label (0..19) of each fine label (0..99), for partitions from coarse to fine."""


@dataclass(frozen=True)
class PickledBatch:
    """A dictionary with images in rows, a red, a green and a blue plane each, and lists of labels."""

    path: Path
    contents: dict[str, Any]
    source: str

    @classmethod
    def open(cls, path: Path, source: str) -> "PickledBatch":
        contents = read_pickle(path)
        if not isinstance(contents, dict):
            found = type(contents).__name__
            raise ValueError(f"{path} is not a batch: it must hold a dictionary, not a {found}; get it again: {source}")
        return cls(path, contents, source)

    def images(self, side: int) -> np.ndarray:
        """The images, uint8 [N, 3, side, side]; ValueError if there are none, or of another size."""
        data = self.contents.get("data")
        values = 3 * side**2
        if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != values:
            found = f"{data.dtype} {list(data.shape)}" if isinstance(data, np.ndarray) else type(data).__name__
            raise ValueError(
                f"{self.path} is not a batch of {side} x {side} images: 'data' must be uint8 [N, {values}], "
                f"not {found}; get it again: {self.source}"
            )
        return data.reshape(-1, 3, side, side)

    def labels(self, key: str, first: int, count: int) -> np.ndarray:
        """The labels under a key, int64 [N] in 0 .. count - 1; in the file the first class is number `first`."""
        labels, expected = self.contents.get(key, ()), len(self.contents["data"])
        if not conforms(labels, list[Integral]) or len(labels) != expected:
            raise ValueError(f"{self.path}: '{key}' must be a list of {expected} integers; get it again: {self.source}")
        shifted = np.array(labels, dtype=np.int64) - first
        if len(shifted) and not 0 <= shifted.min() <= shifted.max() < count:
            span = f"{shifted.min() + first} to {shifted.max() + first}"
            allowed = f"{first} to {first + count - 1}"
            raise ValueError(f"{self.path}: '{key}' run from {span}, not {allowed}; get it again: {self.source}")
        return shifted


def read_pickle(path: str | Path) -> Any:
    """Plain data and numeric arrays from a pickle of which nothing can run; ValueError for anything else."""
    # text of Python 2 is read as Latin-1; keys that are bytes become text
    data = read_regular(path)
    try:
        stream = io.BytesIO(data)
        value = unpickle(stream, _ALLOWED, states={_Array: _Array.set_state})
        if stream.read(1):
            raise ValueError("there are data behind its end")
        return _plain(value, {}, depth=0)
    except Exception as error:
        raise ValueError(
            f"{path} is not a complete pickle of plain data ({error}); it was not loaded. If it was downloaded, get it "
            "again from its publisher"
        ) from error


@dataclass(eq=False)
class _Array:
    """An array in the making: NumPy pickles it empty, to be filled by its state."""

    value: np.ndarray | None = None

    def set_state(self, state: Any) -> None:
        if not isinstance(state, tuple) or len(state) != 5:
            raise ValueError("an array has a state that NumPy does not write")
        self.value = make_array(*state[1:])


_ARRAY_TYPE = Name()  # numpy.ndarray: only ever an argument


def _reconstruct(kind: Any, shape: Any, code: Any) -> _Array:
    if kind is not _ARRAY_TYPE:
        raise ValueError("only plain NumPy arrays are allowed")
    return _Array()


_ALLOWED: dict[tuple[str, str], Name] = {
    **NUMBER_NAMES,
    ("numpy", "ndarray"): _ARRAY_TYPE,
    **{(f"numpy.{core}.multiarray", "_reconstruct"): Function(_reconstruct) for core in ("core", "_core")},
}


def _plain(value: Any, seen: dict[int, Any], depth: int) -> Any:
    """The value with arrays in the making replaced by arrays; containers are rebuilt, each once."""
    if depth > 16:
        raise ValueError("it is nested too deeply")
    if isinstance(value, _Array):
        return value.value
    if isinstance(value, Name | DataType):
        raise ValueError("it holds a name where data should be")
    if not isinstance(value, dict | list | tuple):
        return value
    if id(value) not in seen:
        if isinstance(value, dict):
            keys = (key.decode("latin1") if isinstance(key, bytes) else key for key in value)
            seen[id(value)] = dict(zip(keys, (_plain(item, seen, depth + 1) for item in value.values())))
        else:
            seen[id(value)] = type(value)(_plain(item, seen, depth + 1) for item in value)
    return seen[id(value)]


class PickledImages(DataSet):
    """Colour images uint8 [N, 3, side, side] in pickled batches; a subclass gives the attributes and `read_labels`."""

    classes: tuple[str, ...]  # images of further ones are left out
    train_files: tuple[str, ...]
    test_files: tuple[str, ...]
    folder: str  # in the archive; {} is "train" or "val"
    url: str  # of the archive, or where it can be had
    md5: str = ""  # of an archive that can be downloaded
    remedy = "download {url} and unpack it: tar xzf {archive} -C {root}"
    side = 32

    def __init__(self, root: str | Path = "data") -> None:
        self.root = Path(root)

    @abstractmethod
    def read_labels(self, batch: PickledBatch) -> np.ndarray:
        """The labels of a batch, int64 [N], from 0."""

    def read(self, split: Split) -> Examples:
        """The images of a split, file by file; beside them memory holds up to three copies of one batch."""
        images, labels, files = [], [], self._find(split)
        for file in track(files, f"reading {self.name}/{split}", len(files), "batches"):
            batch = PickledBatch.open(file, self.url)
            pixels, numbers = batch.images(self.side), self.read_labels(batch)
            kept = numbers < len(self.classes)
            images.append(torch.from_numpy(pixels if kept.all() else pixels[kept]))
            labels.append(torch.from_numpy(numbers[kept]))
        return Examples(join(images), torch.cat(labels), f"{self.name}/{split}", self.classes)

    def _find(self, split: Split) -> list[Path]:
        names = self.train_files if split == "train" else self.test_files
        folders, cause = [self.root / self.folder.format("train" if split == "train" else "val"), self.root], None
        for folder in folders:
            if all((folder / name).is_file() for name in names):
                return [folder / name for name in names]
        try:
            if self.md5:
                with tarfile.open(fetch(self.url, self.root, self.md5)) as archive:
                    archive.extractall(self.root, filter="data")
                return [folders[0] / name for name in names]
        except (OSError, RuntimeError, tarfile.TarError) as error:
            cause = error
        known = {"url": self.url, "archive": self.url.rpartition("/")[2], "root": self.root, "folder": folders[0]}
        wanted = " to ".join(dict.fromkeys((names[0], names[-1])))
        remedy = self.remedy.format(**known, side=self.side, files=wanted)
        raise missing(f"{self.name}/{split}", folders, remedy, cause) from cause


class CIFAR10(PickledImages):
    """CIFAR-10, uint8 [N, 3, 32, 32], from the pickled batches, read by `read_pickle`, which cannot run anything.

    Looked for in `root` and in its folder cifar-10-batches-py; then downloaded there, where the network allows.

    Args:
        root: folder of data sets, or the folder of the batches itself.
    """

    name = "cifar10"
    classes = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
    train_files = tuple(f"data_batch_{part}" for part in range(1, 6))
    test_files = ("test_batch",)
    folder = "cifar-10-batches-py"
    url = "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"
    md5 = "c58f30108f718f92721af3b95e74349a"

    def read_labels(self, batch: PickledBatch) -> np.ndarray:
        return batch.labels("labels", first=0, count=10)


class CIFAR100(PickledImages):
    """CIFAR-100, uint8 [N, 3, 32, 32], from its pickled files, read by `read_pickle`, which cannot run anything.

    Looked for in `root` and in its folder cifar-100-python; then downloaded there, where the network allows.

    Args:
        root: folder of data sets, or the folder of the files itself.
        labels: "fine" for the 100 classes, "coarse" for their 20 groups; then the name is "cifar100-coarse".
            `COARSE_OF_FINE` gives the group of each class.
    """

    train_files = ("train",)
    test_files = ("test",)
    folder = "cifar-100-python"
    url = "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz"
    md5 = "eb9058c3a382ffc7106e4002c42a8d85"

    def __init__(self, root: str | Path = "data", labels: Literal["fine", "coarse"] = "fine") -> None:
        super().__init__(root)
        if labels not in ("fine", "coarse"):
            raise ValueError(f"labels={labels!r} is not known; use 'fine' (100 classes) or 'coarse' (20 groups)")
        self.labels = labels
        self.classes = FINE_CLASSES if labels == "fine" else COARSE_CLASSES
        self.name = "cifar100" if labels == "fine" else "cifar100-coarse"

    def read_labels(self, batch: PickledBatch) -> np.ndarray:
        """The fine or coarse labels, once it is sure that both tell the same story."""
        fine = batch.labels("fine_labels", first=0, count=100)
        coarse = batch.labels("coarse_labels", first=0, count=20)
        if (wrong := np.flatnonzero(np.array(COARSE_OF_FINE)[fine] != coarse)).size:
            pair = f"fine label {fine[wrong[0]]} with coarse label {coarse[wrong[0]]}"
            raise ValueError(f"{batch.path}: {pair} (image {wrong[0]}) is not in CIFAR-100; get it again: {self.url}")
        return fine if self.labels == "fine" else coarse


class ImageNet32(PickledImages):
    """ImageNet at 32 x 32 pixels, uint8 [N, 3, 32, 32], from the pickled batches; the validation images are "test".

    Looked for in `root` and in its folders Imagenet32_train and Imagenet32_val; downloading needs an account. All train
    images take 3.9 GB (15.7 GB at 64 pixels). Batches are read by `read_pickle`, which cannot run anything. Classes,
    "1", "2", ..., are in the order of ILSVRC's development kit (1 is the kit fox, n02119789), not torchvision's.

    Args:
        root: folder of data sets, or the folder of the batches itself.
        size: side of the published images: 8, 16, 32 or 64. Then the name is e.g. "imagenet64".
        classes: keep the first so many of the 1,000 classes alone; the papers make the first 100 into 100 clients.
            Then the name is e.g. "imagenet32-first100".
    """

    train_files = tuple(f"train_data_batch_{part}" for part in range(1, 11))
    test_files = ("val_data",)
    url = "https://image-net.org/download-images"
    remedy = (
        "it is free for research, but needs an account: log in at {url}, download the images of {side} x {side} pixels"
        " and unpack {files} into {folder}"
    )

    def __init__(self, root: str | Path = "data", size: int = 32, classes: int | None = None) -> None:
        if size not in SIZES:
            raise ValueError(f"size={size} is not published; use one of {', '.join(map(str, SIZES))}")
        if classes is not None and not 1 <= classes <= 1000:
            raise ValueError(f"classes={classes}: keep 1 to 1000 of the classes, or None for all")
        super().__init__(root)
        self.size, self.side, self.folder = size, size, f"Imagenet{size}_{{}}"
        self.num_classes = 1000 if classes is None else classes
        self.classes = tuple(map(str, range(1, self.num_classes + 1)))
        self.name = f"imagenet{size}" + ("" if classes is None else f"-first{classes}")

    def read_labels(self, batch: PickledBatch) -> np.ndarray:
        return batch.labels("labels", first=1, count=1000)
