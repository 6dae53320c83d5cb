"""Embeddings without a network: the pixels themselves, and points as they are."""

import torch
from torch import Tensor

from fedgen.embeddings.base import Embedding


class Pixels(Embedding):
    """Grey levels / 255, in [0, 1], flattened: [N, C * H * W].

    Scores in pixels say little about how images look; they cost nothing, depend on no weights, and serve as the second,
    unrelated embedding that a loss never used.
    """

    def __init__(self) -> None:
        super().__init__("pixels", dim=None)

    def features(self, levels: Tensor) -> Tensor:
        return levels.flatten(1) / 255


class Identity(Embedding):
    """Points [N, D] as they are, in float32; never quantised.

    For toys such as Gaussian mixtures, whose points have no grey levels, and for features that were computed elsewhere.
    """

    takes_points = True

    def __init__(self) -> None:
        super().__init__("identity", dim=None)

    def features(self, levels: Tensor) -> Tensor:
        return levels

    def forward(self, images: Tensor) -> Tensor:
        """The points [N, D], float32.

        Raises:
            ValueError: for images, or for points that are not floats.
        """
        self.check(tuple(images.shape))
        if images.dtype not in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
            raise ValueError(f"embedding identity takes float points [N, D], got {images.dtype}")
        return self.checked(self.features(images), len(images))

    def check(self, shape: tuple[int, ...]) -> None:
        """Raise ValueError for a shape that is not [N, D]."""
        if len(shape) != 2 or shape[1] < 1:
            raise ValueError(
                f"embedding identity takes points [N, D], got shape {list(shape)}; "
                "for images choose another embedding, for example efficientnet-lite0 or pixels"
            )
