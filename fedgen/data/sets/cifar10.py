"""CIFAR-10 (Krizhevsky 2009): 50,000 train and 10,000 test images, 32 x 32 RGB pixels, in ten classes."""

import numpy as np

from fedgen.data.formats.batches import PickledBatch
from fedgen.data.sets.cifar import CIFAR


class CIFAR10(CIFAR):
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
