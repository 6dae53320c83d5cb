"""The downsampled ImageNet (Chrabaszcz, Loshchilov and Hutter 2017, arXiv 1707.08819): 1,281,167 + 50,000 images."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedgen.data.examples import DataSet, Examples, Split
from fedgen.data.formats.download import missing
from fedgen.data.formats.pickled_batches import PickledBatch
from fedgen.progress import track

FILES = {"train": tuple(f"train_data_batch_{part}" for part in range(1, 11)), "test": ("val_data",)}
PUBLISHED = {"train": "train", "test": "val"}
SIZES = (8, 16, 32, 64)
SOURCE = "https://image-net.org/download-images"


class ImageNet32(DataSet):
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

    def __init__(self, root: str | Path = "data", size: int = 32, classes: int | None = None) -> None:
        if size not in SIZES:
            raise ValueError(f"size={size} is not published; use one of {', '.join(map(str, SIZES))}")
        if classes is not None and not 1 <= classes <= 1000:
            raise ValueError(f"classes={classes}: keep 1 to 1000 of the classes, or None for all")
        self.root = Path(root)
        self.size = size
        self.num_classes = 1000 if classes is None else classes
        self.name = f"imagenet{size}" + ("" if classes is None else f"-first{classes}")

    def read(self, split: Split) -> Examples:
        """The images of a split, file by file; beside them memory holds up to three copies of one batch."""
        images: list[np.ndarray] = []
        labels: list[np.ndarray] = []
        files = self._find(split)
        for file in track(files, f"reading {self.name}/{split}", len(files), "batches"):
            batch_images, batch_labels = self._read_batch(file)
            images.append(batch_images)
            labels.append(batch_labels)
        names = tuple(str(number) for number in range(1, self.num_classes + 1))
        return Examples(_join(images), torch.from_numpy(np.concatenate(labels)), f"{self.name}/{split}", names)

    def _read_batch(self, file: Path) -> tuple[np.ndarray, np.ndarray]:
        """The images and labels, from 0, of the classes to keep."""
        batch = PickledBatch.open(file, SOURCE)
        images, labels = batch.images(self.size), batch.labels("labels", first=1, count=1000)
        kept = labels < self.num_classes
        return (images, labels) if kept.all() else (images[kept], labels[kept])

    def _find(self, split: Split) -> list[Path]:
        """The split's batches."""
        folders = [self.root, self.root / f"Imagenet{self.size}_{PUBLISHED[split]}"]
        for folder in folders:
            if all((folder / file).is_file() for file in FILES[split]):
                return [folder / file for file in FILES[split]]
        wanted = f"{FILES[split][0]} to {FILES[split][-1]}" if len(FILES[split]) > 1 else FILES[split][0]
        remedy = (
            f"it is free for research, but needs an account: log in at {SOURCE}, download the images of "
            f"{self.size} x {self.size} pixels and unpack {wanted} into {folders[1]}"
        )
        raise missing(f"{self.name}/{split}", folders, remedy)


def _join(parts: list[np.ndarray]) -> Tensor:
    """The parts after each other in one tensor; the list is emptied, so that memory never holds all of them twice."""
    joined = torch.empty(sum(map(len, parts)), *parts[0].shape[1:], dtype=torch.uint8)
    start = 0
    while parts:
        part = torch.from_numpy(parts.pop(0))
        joined[start : start + len(part)] = part
        start += len(part)
    return joined
