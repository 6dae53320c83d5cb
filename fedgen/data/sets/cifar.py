"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009): 50,000 train and 10,000 test images of 32 x 32 RGB pixels each, in pickled
batches in one archive; ten classes, or 100 of 20 groups.
"""

from pathlib import Path
from typing import Literal

import numpy as np

from fedgen.data.formats.pickled_batches import PickledBatch, PickledImages

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
