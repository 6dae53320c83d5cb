"""Affine maps of colours, one an image, and images under them.

Formulas: StyleGAN2-ADA (Karras et al. 2020, arXiv 2006.06676), appendix B. v = (1, 1, 1) / sqrt(3) is the axis of grey:
the part of a colour along it has the colour's mean in every channel.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class ColorMap(NamedTuple):
    """Maps c -> matrix c + offset of RGB colours, as [N, 3, 4]: the matrix and, in the last column, the offset.

    The methods multiply a transform on the left: it is applied after the map.
    """

    rows: Tensor

    @classmethod
    def identity(cls, count: int, like: Tensor) -> "ColorMap":
        """`count` times c -> c, of a tensor's device and dtype."""
        return cls(torch.eye(3, 4, dtype=like.dtype, device=like.device).expand(count, 3, 4))

    def brighten(self, by: Tensor) -> "ColorMap":
        """Adds [N] to every channel."""
        return ColorMap(torch.cat([self.rows[..., :3], self.rows[..., 3:] + by[:, None, None]], dim=2))

    def scale(self, by: Tensor) -> "ColorMap":
        """Multiplies every channel by [N]."""
        return ColorMap(self.rows * by[:, None, None])

    def flip_luma(self, by: Tensor) -> "ColorMap":
        """Reflects about the plane orthogonal to v, where [N] is 1; not at all where it is 0."""
        return ColorMap(self.rows - 2 * by[:, None, None] * self._luma)

    def rotate_hue(self, angle: Tensor) -> "ColorMap":
        """Rotates about v by [N] radians (Rodrigues' formula)."""
        cos, sin = angle.cos()[:, None, None], angle.sin()[:, None, None]
        turned = (self.rows.roll(1, dims=1) - self.rows.roll(-1, dims=1)) / 3**0.5  # v x rows
        return ColorMap(self.rows * cos + turned * sin + self._luma * (1 - cos))

    def saturate(self, by: Tensor) -> "ColorMap":
        """Scales the part orthogonal to v by [N]."""
        return ColorMap(self._luma + (self.rows - self._luma) * by[:, None, None])

    def apply(self, images: Tensor) -> Tensor:
        """Images [N, 3, H, W] in other colours, or [N, 1, H, W] in the mean of the channels that grey becomes."""
        if images.shape[1] == 1:
            rows = self.rows.mean(dim=1)[:, :, None, None]
            return images * rows[:, :3].sum(dim=1, keepdim=True) + rows[:, 3:]
        matrix, offset = self.rows.split([3, 1], dim=2)
        return torch.baddbmm(offset, matrix, images.flatten(2)).reshape(images.shape)

    @property
    def _luma(self) -> Tensor:
        """The rows' part along v: [N, 1, 4]."""
        return self.rows.mean(dim=1, keepdim=True)
