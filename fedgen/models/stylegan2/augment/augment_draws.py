"""The random numbers of an augmentation: one value an image, and whether the transform fires on it."""

import torch
from torch import Tensor


class Draws:
    """Draws for one batch, a row an image, from torch's global generator of the images' device.

    Drawn in float32 whatever the images are of, so that float64 images meet the same transforms.

    Args:
        images: [N, C, H, W]; they fix count, device and dtype of all draws.
        p: the probability that multiplies each transform's own, a scalar; above 1 it acts as 1.
        percentile: q in (0, 1) draws nothing: values are their distributions' at q, and every transform fires. Normal
            draws are erfinv(2q - 1) there, the quantile without its factor sqrt(2), as in the reference arrays.
    """

    def __init__(self, images: Tensor, p: Tensor, percentile: float | None = None) -> None:
        self.count, self.device, self.dtype = len(images), images.device, images.dtype
        self.p, self.percentile = p, percentile

    def uniform(self, *columns: int) -> Tensor:
        """Uniform in [0, 1): [N, *columns]."""
        if self.percentile is not None:
            return self._constant(self.percentile, columns)
        return torch.rand(self.count, *columns, device=self.device).to(self.dtype)

    def symmetric(self, limit: float, *columns: int) -> Tensor:
        """Uniform in [-limit, limit): [N, *columns]."""
        return (2 * self.uniform(*columns) - 1) * limit

    def integer(self, below: int) -> Tensor:
        """Uniform among the integers from 0 to below - 1, as floats [N]."""
        return (self.uniform() * below).floor()

    def normal(self, std: float, *columns: int) -> Tensor:
        """Normal with mean 0: [N, *columns]."""
        if self.percentile is not None:
            return self._constant(2 * self.percentile - 1, columns).erfinv() * std
        return self._normal(columns) * std

    def half_normal(self, std: float, *columns: int) -> Tensor:
        """The magnitude of a normal draw with mean 0: [N, *columns]."""
        if self.percentile is not None:
            return self._constant(self.percentile, columns).erfinv() * std
        return self._normal(columns).abs() * std

    def scale(self, std: float) -> Tensor:
        """2 to the power of a normal draw: [N]."""
        return self.normal(std).exp2()

    def fires(self, value: Tensor, multiplier: float, otherwise: float) -> Tensor:
        """The values [N, ...] where the transform fires, with probability multiplier * p; elsewhere `otherwise`."""
        return self._where(value, multiplier * self.p, otherwise)

    def fires_half(self, value: Tensor, multiplier: float, otherwise: float) -> Tensor:
        """`fires` with the probability of which two independent halves make multiplier * p."""
        return self._where(value, 1 - (1 - multiplier * self.p).clamp(min=0).sqrt(), otherwise)

    def _where(self, value: Tensor, probability: Tensor, otherwise: float) -> Tensor:
        if self.percentile is not None:
            return value
        fired = torch.rand(self.count, device=self.device) < probability
        return torch.where(fired.reshape(-1, *[1] * (value.ndim - 1)), value, otherwise)

    def _constant(self, value: float, columns: tuple[int, ...]) -> Tensor:
        return torch.full((self.count, *columns), value, device=self.device, dtype=self.dtype)

    def _normal(self, columns: tuple[int, ...]) -> Tensor:
        return torch.randn(self.count, *columns, device=self.device).to(self.dtype)
