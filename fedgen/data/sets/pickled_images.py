"""Data sets of pickled batches: CIFAR-10 and -100 (Krizhevsky 2009), 50,000 train and 10,000 test images of 32 x 32
RGB pixels; and the downsampled ImageNet (Chrabaszcz, Loshchilov and Hutter 2017, arXiv 1707.08819), 1,281,167 + 50,000.
"""

import tarfile
from abc import abstractmethod
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from fedgen.data.examples import DataSet, Examples, Split
from fedgen.data.formats.download import fetch, missing
from fedgen.data.formats.image_files import join
from fedgen.data.formats.pickled_batches import PickledBatch
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


class PickledImages(DataSet):
    """Colour images uint8 [N, 3, side, side] in pickled batches; a subclass gives the attributes and `read_labels`."""

    classes: tuple[str, ...]  # images of further ones are left out
    train_files: tuple[str, ...]
    test_files: tuple[str, ...]
    folder: str  # in the archive
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
        folders, cause = [self.root / self._folder(split), self.root], None
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

    def _folder(self, split: Split) -> str:
        return self.folder


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

    Looked for in `root` and in its folders Imagenet32_train and Imagenet32_val, as the archives are named; it cannot
    be downloaded without an account. All train images take 3.9 GB (15.7 GB at 64 pixels). The batches are read by
    `read_pickle`, which cannot run anything. Classes are in the batches' own order, that of ILSVRC's development kit
    (class 1 is the kit fox, n02119789), which is not the alphabetical one of torchvision; they are named "1", "2", ...

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
        self.size = self.side = size
        self.num_classes = 1000 if classes is None else classes
        self.classes = tuple(map(str, range(1, self.num_classes + 1)))
        self.name = f"imagenet{size}" + ("" if classes is None else f"-first{classes}")

    def read_labels(self, batch: PickledBatch) -> np.ndarray:
        return batch.labels("labels", first=1, count=1000)

    def _folder(self, split: Split) -> str:
        return f"Imagenet{self.size}_{'train' if split == 'train' else 'val'}"
