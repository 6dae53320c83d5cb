"""Handwritten digits that come with scikit-learn: 1,797 grey images of 8 x 8 pixels (UCI ML repository)."""

import torch

from fedgen.data.dataset import DataSet, Split
from fedgen.data.examples import Examples


class Digits(DataSet):
    """The 1,797 digits of scikit-learn, uint8 [1797, 1, 8, 8]; no files, no download, no test split."""

    name = "digits"
    splits = ("train",)

    def read(self, split: Split) -> Examples:
        """The digits, their 17 grey levels v spread to round(v * 255 / 16)."""
        from sklearn.datasets import load_digits

        bunch = load_digits()
        levels = torch.from_numpy(bunch.images).mul(255 / 16).round().to(torch.uint8)
        labels = torch.from_numpy(bunch.target).to(torch.int64)
        return Examples(levels[:, None], labels, f"{self.name}/{split}", tuple(map(str, bunch.target_names)))
