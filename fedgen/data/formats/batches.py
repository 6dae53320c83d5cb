"""Pickled batches: the form in which CIFAR and the downsampled ImageNet are published."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedgen.data.formats.pickles import read_pickle


@dataclass(frozen=True)
class PickledBatch:
    """A dictionary with images in rows, a red, a green and a blue plane each, and one or more lists of labels.

    Args:
        path: the file it came from.
        contents: what the file held.
        source: where to get the file, for messages.
    """

    path: Path
    contents: dict[str, Any]
    source: str

    @classmethod
    def open(cls, path: Path, source: str) -> "PickledBatch":
        """The batch in a file, read by `read_pickle`, which cannot run anything.

        Raises:
            ValueError: if the file is damaged, or holds anything but a dictionary of data.
        """
        contents = read_pickle(path)
        if not isinstance(contents, dict):
            found = type(contents).__name__
            raise ValueError(f"{path} is not a batch: it must hold a dictionary, not a {found}; get it again: {source}")
        return cls(path, contents, source)

    def images(self, side: int) -> np.ndarray:
        """The images, uint8 [N, 3, side, side].

        Raises:
            ValueError: if there are none, or of another size.
        """
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
        """The labels under a key, counted from 0: int64 [N] in 0 .. count - 1.

        Args:
            key: their name in the file.
            first: the number that the file gives the first class.
            count: how many classes there are.

        Raises:
            ValueError: if there is not one integer an image, or one is out of range.
        """
        labels, expected = self.contents.get(key), len(self.contents["data"])
        if not isinstance(labels, list) or len(labels) != expected or not all(type(label) is int for label in labels):
            raise ValueError(f"{self.path}: '{key}' must be a list of {expected} integers; get it again: {self.source}")
        shifted = np.array(labels, dtype=np.int64) - first
        if len(shifted) and not 0 <= shifted.min() <= shifted.max() < count:
            span = f"{shifted.min() + first} to {shifted.max() + first}"
            allowed = f"{first} to {first + count - 1}"
            raise ValueError(f"{self.path}: '{key}' run from {span}, not {allowed}; get it again: {self.source}")
        return shifted
