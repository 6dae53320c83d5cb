"""Handwritten digits that come with scikit-learn: 1,797 grey images of 8 x 8 pixels (UCI ML repository)."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from fedgen.data.examples import DataSet, Examples, Split

CLASSES = tuple(map(str, range(10)))


class Digits(DataSet):
    """The 1,797 digits of scikit-learn, uint8 [1797, 1, 8, 8]; no files, no download, no test split.

    Examples:
        >>> from fedgen import Digits
        >>> digits = Digits().read("train")
        >>> digits.inputs.shape, digits.inputs.dtype
        (torch.Size([1797, 1, 8, 8]), torch.uint8)
        >>> digits.labels[:5]
        tensor([0, 1, 2, 3, 4])
    """

    name = "digits"
    splits = ("train",)

    def read(self, split: Split) -> Examples:
        """The digits, their 17 grey levels v spread to round(v * 255 / 16)."""
        levels, labels = _read_installed() or _load()
        spread = levels.mul(255 / 16).round().to(torch.uint8)
        return Examples(spread.reshape(-1, 1, 8, 8), labels, f"{self.name}/{split}", CLASSES)


def _read_installed() -> tuple[torch.Tensor, torch.Tensor] | None:
    """Grey levels float64 [1797, 64] and labels of scikit-learn's file; importing it all takes seconds."""
    package = find_spec("sklearn")
    folders = package.submodule_search_locations if package is not None else None
    path = Path(folders[0]) / "datasets" / "data" / "digits.csv.gz" if folders else None
    if path is None or not path.is_file():
        return None
    rows = torch.from_numpy(np.loadtxt(path, delimiter=","))
    return rows[:, :-1], rows[:, -1].to(torch.int64)


def _load() -> tuple[torch.Tensor, torch.Tensor]:
    from sklearn.datasets import load_digits

    found = load_digits()
    return torch.from_numpy(found.data), torch.from_numpy(found.target).to(torch.int64)
