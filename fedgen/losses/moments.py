"""Moments of the generator's features: of the batch, of a queue of past batches, or of an exponential average.

A Fréchet distance from few images is biased and pulls the generator together: in 1280 features (an ImageNet network on
Fashion-MNIST) the scale that minimises its mean is 0.63 at 128 images and 0.96 at 2,000, where 1 is right. FD-Loss
(arXiv 2604.28190) estimates the moments from many past images and lets the gradient flow through the current ones
alone, which is what a queue and an exponential average do here. All moments are kept in float64.
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedgen.statistics import summarize

Layout = tuple[tuple[int, ...], torch.dtype]


class LateBuffers(nn.Module):
    """A module whose saved buffers are None until `allocate`, or until a checkpoint brings their shapes."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        self._late = names
        for name in names:
            self.register_buffer(name, None)

    def allocate(self, layouts: Mapping[str, Layout], device: torch.device) -> None:
        """Makes the buffers, zero; those that are there stay as they are."""
        for name, (shape, dtype) in layouts.items():
            present = self._buffers[name]
            if present is None:
                self._buffers[name] = torch.zeros(shape, dtype=dtype, device=device)
            elif tuple(present.shape) != shape or present.dtype != dtype:
                kept, needed = f"{list(present.shape)} {present.dtype}", f"{list(shape)} {dtype}"
                raise ValueError(f"{type(self).__name__} remembers {name} as {kept}, not {needed}; use a new loss")
            else:
                self._buffers[name] = present.to(device)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        saved = {name: state_dict[prefix + name] for name in self._late if prefix + name in state_dict}
        for name, value in saved.items():
            if self._buffers[name] is None:
                self._buffers[name] = torch.empty_like(value)
        if not saved:
            present = ((name, self._buffers[name]) for name in self._late)
            zeros = {prefix + name: torch.zeros_like(value) for name, value in present if value is not None}
            state_dict = {**state_dict, **zeros}
        super()._load_from_state_dict(state_dict, prefix, *rest)


@dataclass(frozen=True, eq=False)
class MomentEstimate:
    """Mean and covariance of the generator's population, estimated from a batch and what came before it."""

    mean: Tensor
    deviations: Tensor
    count: float
    rank: int
    weight: float
    share: float
    kept: float
    eps: float
    second: Tensor | None = None
    mass: float = 1.0
    offset: Tensor | None = None

    def stretch(self, ddof: float) -> float:
        """n / (n - ddof): the covariance over that of divisor n."""
        return self.count / (self.count - ddof)

    def root(self, ddof: float) -> Tensor:
        """Rows C [m, D] with C^T C the covariance, for a batch alone."""
        return self.deviations * (self.stretch(ddof) / len(self.deviations)) ** 0.5

    def trace(self, ddof: float) -> Tensor:
        """Trace of the covariance, scalar float64."""
        if self.second is None:
            return self.root(ddof).square().sum()
        trace = self.second.diagonal().sum() / self.mass
        if self.offset is not None:
            trace -= self.offset.square().sum()
        return trace * self.stretch(ddof)

    def covariance(self, ddof: float) -> Tensor:
        """The covariance, a new float64 [D, D]."""
        if self.second is None:
            root = self.root(ddof)
            return root.T @ root
        covariance = self.second * (self.stretch(ddof) / self.mass)
        if self.offset is not None:
            covariance.addr_(self.offset, self.offset, alpha=-self.stretch(ddof))
        return covariance

    def inner(self, matrix: Tensor, ddof: float) -> Tensor:
        """tr(matrix covariance) for a symmetric float64 matrix, without forming the covariance."""
        assert self.second is not None
        inner = torch.dot(matrix.flatten(), self.second.flatten()) / self.mass
        if self.offset is not None:
            inner -= self.offset @ matrix @ self.offset
        return inner * self.stretch(ddof)

    @property
    def magnitude(self) -> float:
        """Root mean square norm of the features."""
        return float((self.mean.square().sum() + self.trace(0)).sqrt())


class Moments(LateBuffers):
    """A source of the moments of the generator's features.

    What is remembered lies in saved buffers alone, so that copying them in place from one object to another of the same
    options carries everything over. It changes in training mode with gradients enabled; in evaluation the value is the
    one that training would have had.

    The population lags behind the generator, by N/2m batches of a queue and 1 / (1 - decay) of an average. An objective
    that moves the generator within that time overshoots, and with a queue may swing ever wider: take smaller steps, a
    smaller weight or a shorter memory.

    Args:
        rescale: whether an image's gradient is that of a batch alone, 1/m of the sensitivity to the population, and not
            its share in the population: the batch then stands for all of it, as its images come from the generator as
            it is now. Without, a queue of N images gives gradients m/N as large.

    Examples:
        >>> import torch
        >>> from fedgen.losses import BatchMoments, Moments, QueueMoments
        >>> BatchMoments.remembers, QueueMoments.remembers
        (False, True)
        >>> isinstance(QueueMoments(100), Moments)
        True
    """

    def __init__(self, *names: str, rescale: bool = True) -> None:
        super().__init__(*names)
        self.rescale = rescale

    remembers = True

    def prepare(self, dim: int, device: torch.device) -> None:
        """Makes the buffers, if any, for features [m, dim]; ValueError if they are there for others."""

    @abstractmethod
    def count(self, images: int) -> float:
        """Number of images that the moments stand on, with n more."""

    @abstractmethod
    def estimate(self, features: Tensor, remember: bool) -> MomentEstimate:
        """The moments with this batch of finite features [m, D] included, which is kept if asked to `remember`."""


class BatchMoments(Moments):
    """The moments of the batch alone, as in Backpropagating through FID: biased (see above), nothing to remember.

    Examples:
        >>> import torch
        >>> from fedgen.losses import BatchMoments
        >>> found = BatchMoments().estimate(torch.tensor([[0.0], [2.0]]), remember=False)
        >>> found.mean, found.covariance(ddof=1)
        (tensor([1.], dtype=torch.float64), tensor([[2.]], dtype=torch.float64))
    """

    remembers = False

    def __init__(self) -> None:
        super().__init__()

    def count(self, images: int) -> float:
        return float(images)

    def estimate(self, features: Tensor, remember: bool) -> MomentEstimate:
        mean, deviations = _centre(features)
        count, dim = features.shape
        eps = torch.finfo(features.dtype).eps
        return MomentEstimate(mean, deviations, count, min(count - 1, dim), 1 / count, 1.0, 0.0, eps)


class QueueMoments(Moments):
    """The moments of the last `size` features, the batch included; before that many, of those there are.

    The sum of products is updated with the rows that come and those that go, and computed anew at each pass through the
    queue, so that rounding does not gather. Memory at D = 2048 and 10,000 features: 82 MB and 34 MB for the sum, once
    for each client that trains.

    Args:
        size: number of features, at least 2.
        rescale: see `Moments`; an image's gradient is N/m times that of its share.
        dtype: of the remembered features; those of float32 or less are then remembered exactly, others are rounded.

    Examples:
        >>> import torch
        >>> from fedgen.losses import QueueMoments
        >>> moments = QueueMoments(2)
        >>> moments.prepare(1, torch.device("cpu"))
        >>> [float(moments.estimate(torch.tensor([[value]]), remember=True).mean) for value in (0.0, 4.0, 8.0)]
        [0.0, 2.0, 6.0]
    """

    rows: Tensor
    seen: Tensor
    origin: Tensor
    total: Tensor
    second: Tensor

    def __init__(self, size: int = 10_000, rescale: bool = True, dtype: torch.dtype = torch.float32) -> None:
        super().__init__("rows", "seen", "origin", "total", "second", rescale=rescale)
        if size < 2:
            raise ValueError(f"size={size}: a queue needs at least two features")
        self.size, self.dtype = size, dtype

    def prepare(self, dim: int, device: torch.device) -> None:
        vector, square = ((dim,), torch.float64), ((dim, dim), torch.float64)
        rows, seen = ((self.size, dim), self.dtype), ((), torch.int64)
        self.allocate({"rows": rows, "seen": seen, "origin": vector, "total": vector, "second": square}, device)

    def count(self, images: int) -> float:
        return float(min(int(self.seen) + images, self.size))

    def estimate(self, features: Tensor, remember: bool) -> MomentEstimate:
        images, dim = features.shape
        if images > self.size:
            raise ValueError(f"a batch of {images} does not fit into a queue of {self.size}: QueueMoments({images})")
        batch = features.to(self.dtype)
        before, count = int(self.seen), self.count(images)
        state = (self.origin, self.total, self.second)
        origin, total, second = state if remember else (part.clone() for part in state)
        if before == 0:
            origin.copy_(batch.double().mean(0))
        places = torch.arange(before, before + images, device=features.device) % self.size
        dropped = max(0, min(images, before + images - self.size))
        new = batch.double() - origin
        old = self.rows[places[images - dropped :]].double() - origin
        total += new.sum(0) - old.sum(0)
        second.addmm_(torch.cat([new, -old]).T, torch.cat([new, old]))
        offset = total / count
        mean = origin + offset
        if remember:
            self.rows[places] = batch
            self.seen += images
            if (before + images) // self.size > before // self.size:
                summary = summarize(self.rows)
                self.origin.copy_(summary.mean)
                self.total.zero_()
                self.second.copy_(summary.covariance(ddof=0) * summary.count)
                offset, mean = torch.zeros_like(offset), self.origin.clone()
        return MomentEstimate(
            mean,
            batch.double() - mean,
            count,
            rank=min(int(count) - 1, dim),
            weight=(1.0 if self.rescale else images / count) / images,
            share=images / count,
            kept=min(before, self.size) / count,
            eps=max(torch.finfo(features.dtype).eps, torch.finfo(self.dtype).eps),
            second=second,
            mass=count,
            offset=offset,
        )


class EMAMoments(Moments):
    """Exponential averages of the batches' first and second moments.

    A batch counts decay times as much as the next, and all together 1 from the first batch on, which therefore is the
    batch form; there is no start from zero to correct. The images then count unequally: their effective (Kish) number
    is m (1 + decay) / (1 - decay) in the end, 256,000 for 0.999 and m = 128, and the covariance has the divisor that
    minus ddof, as of a pool by weights. The averages are of raw moments: where the mean moves, its movement is in the
    covariance. Memory at D = 2048: 34 MB, once for each client that trains.

    Args:
        decay: per batch, between 0 and 1; about 1 / (1 - decay) batches count.
        rescale: see `Moments`; an image's gradient is 1 / (1 - decay) times that of its share.

    Examples:
        >>> import torch
        >>> from fedgen.losses import EMAMoments
        >>> moments = EMAMoments(decay=0.5)
        >>> moments.prepare(1, torch.device("cpu"))
        >>> [float(moments.estimate(torch.full((2, 1), value), remember=True).mean) for value in (0.0, 3.0)]
        [0.0, 2.0]
    """

    mean: Tensor
    covariance: Tensor
    mass: Tensor
    squares: Tensor
    seen: Tensor

    def __init__(self, decay: float = 0.999, rescale: bool = True) -> None:
        super().__init__("mean", "covariance", "mass", "squares", "seen", rescale=rescale)
        if not 0 < decay < 1:
            raise ValueError(f"decay={decay}: must lie between 0 and 1; 0.999 remembers about 1,000 batches")
        self.decay = decay

    def prepare(self, dim: int, device: torch.device) -> None:
        mean, covariance = ((dim,), torch.float64), ((dim, dim), torch.float64)
        number, seen = ((), torch.float64), ((), torch.int64)
        layouts = {"mean": mean, "covariance": covariance, "mass": number, "squares": number, "seen": seen}
        self.allocate(layouts, device)

    def count(self, images: int) -> float:
        mass, squares = self._masses(images)
        return mass**2 / squares

    def estimate(self, features: Tensor, remember: bool) -> MomentEstimate:
        images, dim = features.shape
        mass, squares = self._masses(images)
        share = 1 / mass
        batch_mean, deviations = _centre(features)
        shift = batch_mean - self.mean
        covariance = self.covariance if remember else self.covariance.clone()
        covariance.addmm_(deviations.T, deviations, beta=1 - share, alpha=share / images)
        covariance.addr_(shift, shift, alpha=share * (1 - share))
        mean = self.mean + share * shift
        seen = int(self.seen) + images
        if remember:
            for buffer, value in ((self.mass, mass), (self.squares, squares), (self.seen, seen)):
                buffer.fill_(value)
            self.mean.copy_(mean)
        return MomentEstimate(
            mean,
            deviations + (batch_mean - mean),
            mass**2 / squares,
            rank=min(seen - 1, dim),
            weight=(1.0 if self.rescale else share) / images,
            share=share,
            kept=1 - share,
            eps=torch.finfo(features.dtype).eps,
            second=covariance,
        )

    def _masses(self, images: int) -> tuple[float, float]:
        """Sum of the batches' weights, the newest 1, and of the images' squared weights."""
        return self.decay * float(self.mass) + 1, self.decay**2 * float(self.squares) + 1 / images


def _centre(features: Tensor) -> tuple[Tensor, Tensor]:
    """Mean [D] and deviations [m, D] in float64; of equal rows, exactly zero."""
    deviations = features.double() - features[0].double()  # far from the origin, so that the mean rounds little
    rest = deviations.mean(0)
    return features[0].double() + rest, deviations - rest
