"""The downsampled ImageNet (Chrabaszcz, Loshchilov and Hutter 2017, arXiv 1707.08819): 1,281,167 + 50,000 images."""

from pathlib import Path

import numpy as np

from fedgen.data.examples import Split
from fedgen.data.formats.pickled_batches import PickledBatch, PickledImages

SIZES = (8, 16, 32, 64)


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
