"""The mean RBF kernel between data sets from sums over images: random Fourier features (Rahimi and Recht 2007).

exp(-|x - y|^2 / (2 sigma^2)) is E_w cos(<w, x - y>) with w ~ N(0, I / sigma^2), so the sums of cos <w, x> and of
sin <w, x> over a client's images, 2 q numbers, give its mean kernel with any other set without bias and with a standard
error.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedgen.seeds import generator
from fedgen.statistics.gaussian import CHUNK
from fedgen.statistics.sketches import (
    Estimate,
    Sketch,
    check_alike,
    check_message,
    check_sizes,
    estimate,
    within_set,
)
from fedgen.statistics.statistic_messages import Message, MessageError


@dataclass(frozen=True, eq=False)
class FourierMoments:
    """The terms of the mean RBF kernel of one set of images; `FourierSketch.read` makes them from a summed message.

    Args:
        count: images n.
        waves: E exp(i <w, x>) for each w, complex128 [q].
        sigma: the kernel's.
        made: settings of the sketch: moments of other waves do not compare.
    """

    count: float
    waves: Tensor
    sigma: float
    made: Mapping[str, str]

    @property
    def kernel(self) -> str:
        """The kernel whose means these give."""
        return f"rbf {self.sigma!r}"

    def mean_kernel(self, other: "FourierMoments") -> Estimate:
        """E k(x, y) over all pairs of this set's images with the other's; with itself, the diagonal is included.

        Raises:
            ValueError: if the two were read by different sketches.
        """
        check_alike(self.made, other.made)
        return estimate((self.waves * other.waves.conj()).real)

    def within(self, estimator: Literal["u", "v"] = "u") -> Estimate:
        """Mean kernel within the set: over pairs of different images ("u"), or all pairs ("v")."""
        return within_set(self.mean_kernel(self), self.count, 1.0, estimator)

    def mmd2(self, other: "FourierMoments", estimator: Literal["u", "v"] = "u") -> Estimate:
        """MMD^2 between the sets; its error (that of "v") falls with the distance, since both share their waves.

        Raises:
            ValueError: if the two were read by different sketches, or as `within`.
        """
        check_alike(self.made, other.made)
        found = estimate((self.waves - other.waves).abs().square())
        bias = sum(side.mean_kernel(side).value - side.within(estimator).value for side in (self, other))
        return Estimate(found.value - bias, found.error)


@dataclass(frozen=True)
class FourierSketch(Sketch):
    """The sketch that all clients of a federation make, for the RBF kernel.

    Args:
        dim: features D.
        number: of random waves q; a message has 2 q numbers.
        seed: public, of the waves.
        sigma: the kernel's; sqrt(D) if None.

    Raises:
        ValueError: for no feature, fewer than two waves, or a sigma that is not positive and finite.
    """

    kind: ClassVar[str] = "fourier"
    dim: int
    number: int = 4000
    seed: int = 0
    sigma: float | None = None

    def __post_init__(self) -> None:
        check_sizes(self.dim, self.number)
        if self.sigma is not None and not 0 < self.sigma < math.inf:
            raise ValueError(f"sigma must be positive and finite, got {self.sigma}")

    def _sums(self, features: Tensor) -> dict[str, Tensor]:
        """Return the sums of cosines [q] and of sines [q]."""
        draws = generator(self.seed, "fourier sketch", self.dim)
        waves = torch.randn(self.number, self.dim, generator=draws, dtype=torch.float64) / self._sigma()
        sums = {name: torch.zeros(self.number, dtype=torch.float64) for name in ("cosines", "sines")}
        for part in features.split(CHUNK):
            angles = part.double() @ waves.T
            sums["cosines"] += angles.cos().sum(0)
            sums["sines"] += angles.sin().sum(0)
        return sums

    def read(self, total: Message) -> FourierMoments:
        """The server's part: the moments in a sum of messages.

        Raises:
            MessageError: if the message was made by other settings, or counts no image.
        """
        check_message(total, self.kind, self.meta(), self.number, "cosines")
        if total.tensors["sines"].shape != total.tensors["cosines"].shape:
            raise MessageError("a 'fourier' message must have as many sines as cosines")
        count = float(total.tensors["count"])
        if count < 1:
            raise MessageError(f"a 'fourier' message must count at least one image, got {count:g}")
        waves = torch.complex(total.tensors["cosines"], total.tensors["sines"]) / count
        return FourierMoments(count, waves, self._sigma(), {**self.meta(), "number": str(self.number)})

    def meta(self) -> dict[str, str]:
        return {"seed": str(self.seed), "sigma": repr(self._sigma()), "dim": str(self.dim)}

    def _sigma(self) -> float:
        return float(self.sigma or self.dim**0.5)  # 3 is 3.0
