"""The mean cubic kernel between data sets from sums over images: what KID-all needs of clients that share no image.

KID's kernel is k(x, y) = (1 + <x, y> / D)^3. Around a public centre c, with z = x - c, t = <z, z'> / D and
h(z) = 1/2 + |c|^2 / (2 D) + <c, z> / D, it is (h(z) + h(z') + t)^3. Its mean over pairs of images needs, of each side,

- moments up to the second, which the sums of a FID hold already;
- the moment tilted along the centre, E <c, z> z z^T: D (D + 1) / 2 numbers more, none of them where c = 0;
- E t^3 = |E z z z|^2 / D^3, the squared norm of the third moments. This alone is estimated: with random signs w, the
  products psi(z) = <w_1, z> <w_2, z> <w_3, z> have E_w psi(z) psi(z') = <z, z'>^3 (tensor sketches, as in
  Kar and Karnick 2012), so q of their sums give it without bias and with its own standard error.

Centred on the pooled mean, third moments are small and so is the error: a tenth of what it is uncentred, and less. That
takes two rounds: first the sums, from which the server sends the pooled mean, then this sketch. A server with the
sketch of a generated set scores it against the pool itself, without asking the clients.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor

from fedgen.io.tensor_files import hash_tensors
from fedgen.seeds import generator
from fedgen.statistics.gaussian import CHUNK, Gaussian, check_features
from fedgen.statistics.statistic_messages import Message, MessageError, pack, unpack

SKETCHES = 256  # computed together: memory is [CHUNK, 3 * SKETCHES]


@dataclass(frozen=True)
class Estimate:
    """A value with its standard error, from the spread over sketches; images are held fixed.

    Args:
        value: without bias.
        error: one standard deviation; falls as one over the root of the number of sketches.
    """

    value: float
    error: float


class SetMoments(ABC):
    """The base of the terms of a mean kernel of one set of images."""

    count: float
    diagonal: float
    made: Mapping[str, str]

    def mean_kernel(self, other: Self) -> Estimate:
        """E k(x, y) over all pairs of this set's images with the other's; with itself, the diagonal is included.

        Raises:
            ValueError: if the two were read by different sketches.
        """
        check_alike(self.made, other.made)
        return self._between(other)

    def within(self, estimator: Literal["u", "v"] = "u") -> Estimate:
        """Mean kernel within the set: over pairs of different images ("u"), or all pairs ("v")."""
        pairs, count = self._between(self), self.count
        if estimator == "v":
            return pairs
        if estimator != "u" or count < 2:
            raise ValueError(f"estimator={estimator!r} of {count:g} images: choose 'u' (two images at least) or 'v'")
        return Estimate((count * pairs.value - self.diagonal) / (count - 1), pairs.error * count / (count - 1))

    def mmd2(self, other: Self, estimator: Literal["u", "v"] = "u") -> Estimate:
        """MMD^2 between the sets; its error (that of "v") falls with the distance, since both are sketched alike.

        Raises:
            ValueError: if the two were read by different sketches, or as `within`.
        """
        check_alike(self.made, other.made)
        found = self._distance(other)
        bias = sum(side._between(side).value - side.within(estimator).value for side in (self, other))
        return Estimate(found.value - bias, found.error)

    @abstractmethod
    def _between(self, other: Self) -> Estimate: ...

    @abstractmethod
    def _distance(self, other: Self) -> Estimate:
        """MMD^2 over all pairs."""


@dataclass(frozen=True, eq=False)
class KernelMoments(SetMoments):
    """The terms of the mean kernel of one set of images; `CubicSketch.read` makes them from a summed message.

    Args:
        count: images n.
        h: E h, E h^2 and E h^3.
        vectors: E z, E h z and E h^2 z, each [D], divided by sqrt(D).
        matrices: E z z^T and E h z z^T, each [D, D], divided by D.
        sketch: E psi of each sketch [q], divided by D^1.5.
        diagonal: E k(x, x).
        made: settings of the sketch: moments of other signs, centres or D do not compare.
    """

    count: float
    h: tuple[float, float, float]
    vectors: Sequence[Tensor]
    matrices: tuple[Tensor, Tensor]
    sketch: Tensor
    diagonal: float
    made: Mapping[str, str]

    kernel: ClassVar[str] = "cubic"

    def _between(self, other: "KernelMoments") -> Estimate:
        return estimate(self.sketch * other.sketch, self._smooth(other))

    def _distance(self, other: "KernelMoments") -> Estimate:
        smooth = self._smooth(self) + other._smooth(other) - 2 * self._smooth(other)
        return estimate((self.sketch - other.sketch).square(), smooth)

    def _smooth(self, other: "KernelMoments") -> float:
        (h, h2, h3), (g, g2, g3) = self.h, other.h
        (z, hz, h2z), (y, gy, g2y) = self.vectors, other.vectors
        (zz, hzz), (yy, gyy) = self.matrices, other.matrices
        first = h2z @ y + 2 * hz @ gy + z @ g2y
        second = (hzz * yy).sum() + (zz * gyy).sum()
        return h3 + 3 * h2 * g + 3 * h * g2 + g3 + 3 * float(first + second)


class Sketch(ABC):
    """A form in which all clients of a federation sum up their images for one kernel: a message that adds."""

    kind: ClassVar[str]  # of its messages
    dim: int
    number: int

    def __post_init__(self) -> None:
        if self.dim < 1 or self.number < 2:
            raise ValueError(f"a sketch needs dim >= 1 and number >= 2, got dim={self.dim} and number={self.number}")

    def message(self, features: Tensor, **meta: str) -> Message:
        """A client's part: the summable message of features [n, D], of the sketch's kind."""
        check_features(features)
        if features.shape[1] != self.dim:
            raise ValueError(f"the sketch takes {self.dim} features, got {features.shape[1]}; use one embedding")
        features = features.detach().cpu()
        tensors = {"count": torch.tensor(len(features), dtype=torch.float64), **self._sums(features)}
        return Message(self.kind, tensors, {**meta, **self.meta()})

    @abstractmethod
    def meta(self) -> dict[str, str]:
        """The remarks of its messages: those of other settings do not add."""

    @abstractmethod
    def _sums(self, features: Tensor) -> dict[str, Tensor]:
        """The message's tensors beside the count, float64: sums over the images."""

    def _check(self, message: Message, name: str) -> None:
        """Raises MessageError unless a message was made by this sketch's settings, with `number` entries in `name`."""
        meta, number = self.meta(), self.number
        if message.kind != self.kind:
            raise MessageError(f"expected a {self.kind!r} message, got {message.kind!r}")
        if any(message.meta.get(key) != value for key, value in meta.items()) or len(message.tensors[name]) != number:
            found = f"{len(message.tensors[name])} members, {dict(message.meta)}"
            raise MessageError(f"the message was made by other settings: {found}, expected {number}, {meta}")


@dataclass(frozen=True, eq=False)
class CubicSketch(Sketch):
    """The sketch that all clients of a federation make, for KID's kernel.

    Args:
        dim: features D.
        number: of sketches q.
        seed: public, of their random signs.
        centre: public, float64 [D]: the pooled mean of an earlier round, or some public mean; 0 if None.

    Raises:
        ValueError: for no feature, fewer than two sketches, or a centre that is not finite [D].
    """

    kind: ClassVar[str] = "cubic"
    dim: int
    number: int = 1000
    seed: int = 0
    centre: Tensor | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.centre is not None and not (self.centre.shape == (self.dim,) and torch.isfinite(self.centre).all()):
            raise ValueError(f"centre must be {self.dim} finite numbers, got shape {tuple(self.centre.shape)}")

    def _sums(self, features: Tensor) -> dict[str, Tensor]:
        centre = self._centre()
        sketch = torch.zeros(self.number, dtype=torch.float64)
        tilted = torch.zeros(self.dim, self.dim, dtype=torch.float64) if self.centre is not None else None
        diagonal = 0.0
        for part in features.split(CHUNK):
            images = part.double()
            diagonal += float((1 + images.square().sum(1) / self.dim).pow(3).sum())
            images = images - centre
            if tilted is not None:
                tilted.addmm_(images.T, images * (images @ centre).unsqueeze(1))
            for start in range(0, self.number, SKETCHES):
                block = self._signs[start : start + SKETCHES]
                products = (images @ block.double().view(-1, self.dim).T).view(len(images), -1, 3)
                sketch[start : start + SKETCHES] += products.prod(2).sum(0)
        return {
            "tilted": torch.zeros(0, dtype=torch.float64) if tilted is None else pack(tilted),
            "sketch": sketch,
            "diagonal": torch.tensor(diagonal, dtype=torch.float64),
        }

    def read(self, total: Message, pooled: Gaussian) -> KernelMoments:
        """The server's part: the moments in a sum of messages.

        Args:
            total: what `add` made of the clients' messages.
            pooled: the summary of the same images, as from their summed "sums" messages.

        Raises:
            MessageError: if the message was made by other settings, or the two are not of the same images.
        """
        self._check(total, "sketch")
        count = float(total.tensors["count"])
        if pooled.dim != self.dim or abs(pooled.count - count) > 0.5 or count < 1:
            sizes = f"{count:g} images and {self.dim} features, {pooled.count:g} and {pooled.dim}"
            raise MessageError(f"sketch and summary must be sums over the same clients, got {sizes}")
        centre, dim = self._centre(), self.dim
        mean = pooled.mean - centre
        second = pooled.covariance(ddof=0).addr_(mean, mean)
        packed = total.tensors["tilted"]
        try:
            tilted = unpack(packed, dim).div_(count * dim) if self.centre is not None else torch.zeros_like(second)
        except ValueError as error:
            raise MessageError(f"the tilted moments of a 'cubic' message are damaged: {error}") from error
        half = (1 + float(centre @ centre) / dim) / 2
        g = float(centre @ mean) / dim
        gz, g2z = second @ centre / dim, tilted @ centre / dim  # E g z and E g^2 z of g = <c, z> / D
        g2, g3 = float(centre @ gz) / dim, float(centre @ g2z) / dim
        h = half + g, half**2 + 2 * half * g + g2, half**3 + 3 * half**2 * g + 3 * half * g2 + g3
        vectors = mean, half * mean + gz, half**2 * mean + 2 * half * gz + g2z
        matrices = second / dim, tilted.add_(second, alpha=half).div_(dim)
        roots = [vector / dim**0.5 for vector in vectors]
        sketch = total.tensors["sketch"] / (count * dim**1.5)
        diagonal = float(total.tensors["diagonal"]) / count
        made = {**self.meta(), "number": str(self.number)}
        return KernelMoments(count, h, roots, matrices, sketch, diagonal, made)

    def mean_kernels(self, features: Tensor, moments: KernelMoments) -> tuple[Tensor, Tensor]:
        """E k(y, x) over a set's images x, of each y [m, D], and its gradient in y: float64 [m] and [m, D].

        Args:
            features: floating, on the CPU.
            moments: of the set, as this sketch read them.

        Raises:
            ValueError: if another sketch read them.
        """
        check_alike({**self.meta(), "number": str(self.number)}, moments.made)
        centre, root = self._centre(), self.dim**0.5
        z = (features.double() - centre) / root
        h = ((1 + centre.square().sum() / self.dim) / 2 + z @ centre / root).unsqueeze(1)
        (h1, h2, h3), (v0, v1, v2), (first, second) = moments.h, moments.vectors, moments.matrices
        a, b, c = (z @ torch.stack([v0, v1, v2], 1)).split(1, dim=1)  # E t, E h t and E h^2 t
        along, tilted = z @ first, z @ second
        d, e = (z * along).sum(1, keepdim=True), (z * tilted).sum(1, keepdim=True)  # E t^2 and E h t^2
        cubes, slopes = self._cubes(z, moments.sketch)
        values = h**3 + h3 + 3 * (h1 * h**2 + h2 * h + a * h**2 + 2 * b * h + c + d * h + e)
        in_h = 3 * h**2 + 6 * (h1 + a) * h + 3 * h2 + 6 * b + 3 * d
        in_z = 3 * (h**2 * v0 + 2 * h * v1 + v2) + 6 * (h * along + tilted) + slopes
        return values.squeeze(1) + cubes, in_h * centre / self.dim + in_z / root

    def _cubes(self, z: Tensor, sketch: Tensor) -> tuple[Tensor, Tensor]:
        """The estimate of E t^3 for each z [m, D], and its gradient in z."""
        values, slopes = z.new_zeros(len(z)), torch.zeros_like(z)
        for start in range(0, self.number, SKETCHES):
            block = self._signs[start : start + SKETCHES].double()
            a, b, c = (z @ block.reshape(-1, self.dim).T).view(len(z), -1, 3).unbind(2)
            shares = sketch[start : start + SKETCHES] / self.number
            values += (a * b * c) @ shares
            others = torch.stack([b * c, a * c, a * b], 2) * shares.unsqueeze(1)
            slopes += others.view(len(z), -1) @ block.reshape(-1, self.dim)
        return values, slopes

    def meta(self) -> dict[str, str]:
        centre = "0" if self.centre is None else hash_tensors([("centre", self.centre.double())])
        return {"seed": str(self.seed), "centre": centre, "dim": str(self.dim)}

    def _centre(self) -> Tensor:
        return torch.zeros(self.dim, dtype=torch.float64) if self.centre is None else self.centre.double().cpu()

    @cached_property
    def _signs(self) -> Tensor:
        draws = generator(self.seed, "cubic sketch", self.dim)
        return torch.randint(0, 2, (self.number, 3, self.dim), dtype=torch.int8, generator=draws).mul_(2).sub_(1)


def estimate(values: Tensor, known: float = 0.0) -> Estimate:
    return Estimate(known + float(values.mean()), float(values.std()) / len(values) ** 0.5)


def check_alike(made: Mapping[str, str], other: Mapping[str, str]) -> None:
    if dict(made) != dict(other):
        raise ValueError(f"moments of different sketches do not compare: {dict(made)} and {dict(other)}")


@dataclass(frozen=True, eq=False)
class FourierMoments(SetMoments):
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
    diagonal = 1.0

    @property
    def kernel(self) -> str:
        """The kernel whose means these give."""
        return f"rbf {self.sigma!r}"

    def _between(self, other: "FourierMoments") -> Estimate:
        return estimate((self.waves * other.waves.conj()).real)

    def _distance(self, other: "FourierMoments") -> Estimate:
        return estimate((self.waves - other.waves).abs().square())


@dataclass(frozen=True)
class FourierSketch(Sketch):
    """The sketch that all clients of a federation make, for the RBF kernel, by random Fourier features.

    exp(-|x - y|^2 / (2 sigma^2)) is E_w cos(<w, x - y>) with w ~ N(0, I / sigma^2) (Rahimi and Recht 2007), so the sums
    of cos <w, x> and sin <w, x> over a client's images give its mean kernel with any other set without bias and with a
    standard error.

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
        super().__post_init__()
        if self.sigma is not None and not 0 < self.sigma < math.inf:
            raise ValueError(f"sigma must be positive and finite, got {self.sigma}")

    def _sums(self, features: Tensor) -> dict[str, Tensor]:
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
        self._check(total, "cosines")
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
