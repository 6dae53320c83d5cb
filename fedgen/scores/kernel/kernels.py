"""Kernels on features, in float64 and a block at a time, and their sums over pairs of images.

The polynomial kernel is that of KID (Binkowski et al. 2018, arXiv 1801.01401). It depends on the features' scale, so
its values compare within one embedding only.

On few features it is the inner product of few monomials, phi: sum_b k(a, b) = <phi(a), sum_b phi(b)>. The same sums
then take time in n + m in place of n m: a second in place of ten minutes for 100,000 points in the plane.

Sums within a set are over pairs of different images, and no image with itself is ever added and taken off again: of the
cubic kernel an outlier r times the others has r^6 with itself and r^3 with them, so that r = 1e5 would leave no digits.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations_with_replacement
from math import comb, factorial, prod
from typing import ClassVar

import torch
from torch import Tensor

from fedgen.ranks import spread

BLOCK = 2048  # images of a block: memory beyond the features is a few blocks of [2048, D] and [2048, 2048]
MONOMIALS = 64  # at most, for sums by monomials: D = 5 under the cubic kernel
_Pair = tuple[slice, slice]
_Sums = tuple[Tensor, Tensor]


class Kernel(ABC):
    """A positive definite function of two feature vectors.

    For its gradient it is also written around an origin o, so that rounding spares what all features have in common:
    k(x, y) = f(u) with u = <x - o, y - o> + a(x) + a(y). `offsets` is a, `profile` is f with its derivative.

    Attributes:
        is_bounded: whether values lie in [0, 1], whatever the features.

    Examples:
        >>> import torch
        >>> from fedgen.scores import PolynomialKernel, RBFKernel
        >>> points = torch.tensor([[1.0], [2.0]])
        >>> PolynomialKernel(1, 1.0, 0.0).diagonal(points), RBFKernel(1.0).diagonal(points)
        (tensor([1., 4.], dtype=torch.float64), tensor([1., 1.], dtype=torch.float64))
    """

    is_bounded: ClassVar[bool] = False

    @abstractmethod
    def block(self, x: Tensor, y: Tensor) -> Tensor:
        """Values float64 [n, m] between x [n, D] and y [m, D], both float64."""

    @abstractmethod
    def diagonal(self, x: Tensor) -> Tensor:
        """Values of each image with itself, float64 [n]."""

    @abstractmethod
    def offsets(self, centred: Tensor, origin: Tensor) -> tuple[Tensor, Tensor]:
        """a(x), float64 [n], and its gradient in x, float64 [n, D] or [1, D], for x - origin [n, D] and origin [D]."""

    @abstractmethod
    def profile(self, u: Tensor, dim: int) -> tuple[Tensor, Tensor]:
        """f(u) and f'(u) of u float64 [n, m] with D = dim, in memory of their own; u is overwritten."""

    def monomials(self, x: Tensor) -> Tensor | None:
        """phi(x) float64 [n, M] with k(x, y) = <phi(x), phi(y)>, M at most 64; None where there is none so small."""
        return None


@dataclass(frozen=True)
class PolynomialKernel(Kernel):
    """(gamma <x, y> + coef0)^degree.

    Args:
        degree: 3 for KID.
        gamma: 1 / D if None.
        coef0: 1 for KID.

    Examples:
        >>> import torch
        >>> from fedgen.scores import PolynomialKernel
        >>> kernel = PolynomialKernel(degree=3, gamma=1.0, coef0=1.0)
        >>> kernel.block(torch.tensor([[1.0]]), torch.tensor([[2.0]]))  # (1 * 2 + 1)^3
        tensor([[27.]])
    """

    degree: int = 3
    gamma: float | None = None
    coef0: float = 1.0

    def __post_init__(self) -> None:
        if self.degree < 1 or int(self.degree) != self.degree:
            raise ValueError(f"degree must be a whole number of at least 1, got {self.degree}")

    def block(self, x: Tensor, y: Tensor) -> Tensor:
        return self._power(x @ y.T, x.shape[1])

    def diagonal(self, x: Tensor) -> Tensor:
        return torch.cat([self._power(part.double().square().sum(1), x.shape[1]) for part in x.split(BLOCK)])

    def offsets(self, centred: Tensor, origin: Tensor) -> tuple[Tensor, Tensor]:
        origin = origin.double()  # u = <x, y>
        return centred.double() @ origin + origin.square().sum() / 2, origin.unsqueeze(0)

    def profile(self, u: Tensor, dim: int) -> tuple[Tensor, Tensor]:
        gamma = 1.0 / dim if self.gamma is None else self.gamma
        base = u.mul_(gamma).add_(self.coef0)
        power = base.pow(self.degree - 1)
        return base.mul_(power), power.mul_(self.degree * gamma)

    def monomials(self, x: Tensor) -> Tensor | None:
        dim, gamma = x.shape[1], 1.0 / x.shape[1] if self.gamma is None else self.gamma
        if comb(dim + self.degree, self.degree) > MONOMIALS or gamma < 0 or self.coef0 < 0:
            return None  # a negative coefficient has no real root
        # <z, z'>^degree of z = (sqrt(gamma) x, sqrt(coef0)), by the multinomial theorem
        z = torch.cat([x.double() * gamma**0.5, x.new_full((len(x), 1), self.coef0**0.5, dtype=torch.float64)], 1)
        terms = list(combinations_with_replacement(range(dim + 1), self.degree))
        times = [factorial(self.degree) / prod(factorial(term.count(j)) for j in set(term)) for term in terms]
        return z[:, torch.tensor(terms, device=x.device)].prod(2) * z.new_tensor(times).sqrt()

    def _power(self, products: Tensor, dim: int) -> Tensor:
        base = products.mul_(1.0 / dim if self.gamma is None else self.gamma).add_(self.coef0)
        return base.pow_(self.degree)


@dataclass(frozen=True)
class RBFKernel(Kernel):
    """exp(-|x - y|^2 / (2 sigma^2)).

    Args:
        sigma: sqrt(D) if None.

    Examples:
        >>> import torch
        >>> from fedgen.scores import RBFKernel
        >>> RBFKernel(sigma=1.0).block(torch.tensor([[0.0]]), torch.tensor([[0.0], [2.0]]))  # 1 and exp(-2^2 / 2)
        tensor([[1.0000, 0.1353]])
    """

    is_bounded: ClassVar[bool] = True

    sigma: float | None = None

    def __post_init__(self) -> None:
        if self.sigma is not None and not self.sigma > 0:
            raise ValueError(f"sigma must be positive, got {self.sigma}")

    def block(self, x: Tensor, y: Tensor) -> Tensor:
        sigma = self.sigma or x.shape[1] ** 0.5
        origin = x.mean(0)
        x, y = x - origin, y - origin  # |x|^2 + |y|^2 - 2 <x, y> loses digits far from the origin
        squares = (x @ y.T).mul_(-2).add_(x.square().sum(1, keepdim=True)).add_(y.square().sum(1))
        return squares.clamp_(min=0).mul_(-0.5 / sigma**2).exp_()

    def diagonal(self, x: Tensor) -> Tensor:
        return torch.ones(len(x), dtype=torch.float64, device=x.device)

    def offsets(self, centred: Tensor, origin: Tensor) -> tuple[Tensor, Tensor]:
        centred = centred.double()  # u = -|x - y|^2 / 2
        return centred.square().sum(1) / -2, -centred

    def profile(self, u: Tensor, dim: int) -> tuple[Tensor, Tensor]:
        variance = dim if self.sigma is None else self.sigma**2
        values = u.mul_(1 / variance).exp_()
        return values, values * (1 / variance)


def block_pairs(rows: int, columns: int, symmetric: bool) -> Iterator[_Pair]:
    """The blocks of a rows x columns kernel matrix; of a symmetric one those on and above the diagonal."""
    for i in range(0, rows, BLOCK):
        for j in range(i if symmetric else 0, columns, BLOCK):
            yield slice(i, min(i + BLOCK, rows)), slice(j, min(j + BLOCK, columns))


def within_sums(x: Tensor, kernel: Kernel, clients: Tensor, shares: Tensor) -> tuple[Tensor, Tensor]:
    """Each image's kernel's sum over its client's other images and its weighted sum over all others, float64 [n] twice.

    Clients [n] are ascending, shares [n] the weights in the second sum. Ranks `together` divide the blocks among them.
    """
    if kernel.monomials(x[:1]) is not None:
        parts = x.split(clients.unique_consecutive(return_counts=True)[1].tolist())
        of_clients = [_sums_over_others(part, kernel, torch.ones_like(shares[: len(part)])) for part in parts]
        return torch.cat(of_clients), _sums_over_others(x, kernel, shares)
    own = torch.zeros(len(x), dtype=torch.float64, device=x.device)
    weighted = torch.zeros_like(own)
    rows_of = lru_cache(1)(lambda start: x[start : start + BLOCK].double())  # once for all blocks of a row

    def sums(pair: _Pair) -> tuple[_Sums, _Sums | None]:
        rows, columns = pair
        block = kernel.block(rows_of(rows.start), x[columns].double())
        if rows == columns:
            block.diagonal().zero_()
        of_all = block @ shares[columns], shares[rows] @ block
        if clients[rows][-1] < clients[columns][0]:  # no client has images in both
            return of_all, None
        if clients[rows][0] != clients[columns][-1]:
            block = block * (clients[rows].unsqueeze(1) == clients[columns])
        return of_all, (block.sum(1), block.sum(0))

    pairs = list(block_pairs(len(x), len(x), symmetric=True))
    for (rows, columns), (of_all, of_own) in zip(pairs, spread(sums, pairs)):
        for total, found in ((weighted, of_all), (own, of_own)):
            if found is not None:
                total[rows] += found[0]
                if rows != columns:
                    total[columns] += found[1]
    return own, weighted


def cross_sums(x: Tensor, clients: Tensor, number: int, y: Tensor, kernel: Kernel) -> tuple[Tensor, Tensor]:
    """Kernel sums between clients' images and generated ones: [K, m] over each client's images, [n] over all of y."""
    if kernel.monomials(x[:1]) is not None:
        single = torch.zeros(len(y), dtype=torch.int64, device=y.device)
        of_clients, generated = _monomial_sums(x, clients, number, kernel), _monomial_sums(y, single, 1, kernel)[0]
        return _rows(y, of_clients.T, kernel).T, _rows(x, generated, kernel)
    over_clients = torch.zeros(number, len(y), dtype=torch.float64, device=x.device)
    over_generated = torch.zeros(len(x), dtype=torch.float64, device=x.device)
    rows_of = lru_cache(1)(lambda start: x[start : start + BLOCK].double())  # once for all blocks of a row

    def sums(pair: _Pair) -> _Sums:
        rows, columns = pair
        block = kernel.block(rows_of(rows.start), y[columns].double())
        first, last = int(clients[rows][0]), int(clients[rows][-1])
        of_clients = block.new_zeros(last - first + 1, block.shape[1])
        return of_clients.index_add_(0, clients[rows] - first, block), block.sum(1)

    pairs = list(block_pairs(len(x), len(y), symmetric=False))
    for (rows, columns), (of_clients, of_rows) in zip(pairs, spread(sums, pairs)):
        first = int(clients[rows][0])
        over_clients[first : first + len(of_clients), columns] += of_clients
        over_generated[rows] += of_rows
    return over_clients, over_generated


def _sums_over_others(x: Tensor, kernel: Kernel, shares: Tensor) -> Tensor:
    """Sum of share_b k(a, b) over the images b other than a, for each image a of x, float64 [n]."""
    after = _sums_over_earlier(x.flip(0), kernel, shares.flip(0)).flip(0)
    return _sums_over_earlier(x, kernel, shares) + after


def _sums_over_earlier(x: Tensor, kernel: Kernel, shares: Tensor) -> Tensor:
    found, before = [], None
    for part, share in zip(x.split(BLOCK), shares.split(BLOCK)):
        phi = _monomials(part, kernel)
        before = torch.zeros_like(phi[:1]) if before is None else before
        sums = torch.cat([before, phi * share.unsqueeze(1)]).cumsum(0)
        found.append((phi * sums[:-1]).sum(1))
        before = sums[-1:]
    return torch.cat(found)


def _monomial_sums(x: Tensor, groups: Tensor, number: int, kernel: Kernel) -> Tensor:
    sums = x.new_zeros(number, _monomials(x[:1], kernel).shape[1], dtype=torch.float64)
    for part, group in zip(x.split(BLOCK), groups.split(BLOCK)):
        sums.index_add_(0, group, _monomials(part, kernel))
    return sums


def _rows(x: Tensor, sums: Tensor, kernel: Kernel) -> Tensor:
    """<phi(x), sums>, float64: [n] for sums [M], [n, K] for [M, K]."""
    return torch.cat([_monomials(part, kernel) @ sums for part in x.split(BLOCK)])


def _monomials(x: Tensor, kernel: Kernel) -> Tensor:
    phi = kernel.monomials(x)
    assert phi is not None
    return phi
