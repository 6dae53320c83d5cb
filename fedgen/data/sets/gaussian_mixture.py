"""The toy of the papers on avg and all: points of clients N((-1, 0), I) and N((+1, 0), I) in the plane."""

from collections.abc import Sequence

import torch

from fedgen.data.examples import DataSet, Examples, Split
from fedgen.seeds import generator


class GaussianMixture(DataSet):
    """Points drawn from Gaussians, float32 [N, D]; the label is the component, so ByClass makes one client of each.

    Pooled, the default is a mixture with mean 0 and covariance diag(2, 1).

    Args:
        num_points: points of each component in each split.
        means: the components' means.
        std: standard deviation along every axis.
        seed: the same seed gives the same points; "train" and "test" are independent draws.
    """

    name = "gaussian_mixture"

    def __init__(
        self,
        num_points: int = 50_000,
        means: Sequence[Sequence[float]] = ((-1.0, 0.0), (1.0, 0.0)),
        std: float = 1.0,
        seed: int = 0,
    ) -> None:
        if num_points < 1 or std < 0 or not means or len({len(mean) for mean in means}) != 1:
            given = f"num_points={num_points}, std={std}, means={means}"
            raise ValueError(f"{given}: num_points must be at least 1, std at least 0, means of one length")
        self.num_points, self.means, self.std, self.seed = num_points, means, std, seed

    def read(self, split: Split) -> Examples:
        centres = torch.tensor(self.means, dtype=torch.float32)
        count, dim = centres.shape
        noise = torch.randn(count, self.num_points, dim, generator=generator(self.seed, self.name, split))
        points = (noise * self.std + centres[:, None]).reshape(-1, dim)
        labels = torch.arange(count).repeat_interleave(self.num_points)
        classes = tuple(f"component {component}" for component in range(count))
        return Examples(points, labels, f"{self.name}/{split}", classes)
