"""FEMNIST of LEAF (Caldas et al. 2018, arXiv 1812.01097): digits and letters by some 3,600 writers, from JSON files.

A file holds "users" and "user_data", by user the images "x" (784 numbers in [0, 1], 1 is white paper) and labels "y".
"""

import string
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedgen.data.examples import DataSet, Examples, Split
from fedgen.data.formats.download import missing
from fedgen.data.formats.image_files import pad_images
from fedgen.io.field_types import fault
from fedgen.io.files import read_json
from fedgen.progress import track

CLASSES = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)
REMEDY = (
    "clone https://github.com/TalwalkarLab/leaf, run ./preprocess.sh -s niid --sf 1.0 -k 0 -t sample in data/femnist, "
    "and copy its folders data/train and data/test into {folder}"
)


class FEMNIST(DataSet):
    """LEAF's FEMNIST, uint8 [N, 1, 28, 28], with the writers as owners, for the partition `Natural`.

    All JSON files of `root`/femnist/train or `root`/train (and test) are read in the order of their names, the writers
    of each in its order; LEAF's scripts make them. Split by LEAF's `-t sample`, both splits have the same writers, by
    `-t user` different ones. A file of 100 writers takes about 7 seconds, and 1 GB while it is read. The Hugging Face
    hub has the images, too, in another order and in one split: `HuggingFace("flwrlabs/femnist", channels=1,
    owner_column="writer_id")`.

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
        for path in track(files := self._find(split), f"reading {self.name}/{split}", len(files), "files"):
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

    def _find(self, split: Split) -> list[Path]:
        folders = [self.root / "femnist" / split, self.root / split]
        for folder in folders:
            if found := sorted(folder.glob("*.json")):
                return found
        raise missing(f"the {split} split of FEMNIST", folders, REMEDY.format(folder=self.root / "femnist"))


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
