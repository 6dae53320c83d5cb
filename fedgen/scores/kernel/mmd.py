"""Squared maximum mean discrepancy (KID with the cubic kernel) of full samples, to every client and to their pool.

With A_i, B, C_i the mean kernels within client i, within the generated images and between them, KD_i = A_i + B - 2 C_i.
sum_i w_i C_i is the pool's cross mean exactly and B is common, so avg - all = sum_i w_i A_i - A_pool depends on real
images alone: it is the same for every generator, and both aggregates rank alike. For V-statistics it is
sum_i w_i KD(P_pool, P_i); for U-statistics it is not, as pool and clients share images.

Errors are jackknife variances: leaving out image a removes its row and column of kernels, so every mean without it
follows from sums over its row. For a U-statistic they are rather too large, also where MMD^2 is zero and first-order
formulas give nothing.
"""

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from fedgen.scores.aggregate import (
    FederatedScore,
    OfFeatures,
    OverClients,
    RealInfluences,
    SharedVariances,
    Weights,
    client_blocks,
    combine,
    jackknife_variance,
    joined,
    resolve_weights,
    with_errors,
)
from fedgen.scores.definition import ClientSide, ScoreDefinition, require_finite
from fedgen.scores.kernel.kernels import Kernel, PolynomialKernel, RBFKernel, cross_sums, within_sums
from fedgen.statistics.gaussian import check_clients, check_features, check_generated

Estimator = Literal["u", "v"]
LARGEST = 1e280  # of a kernel: float64 has room for a sum over all pairs of images


@dataclass(frozen=True, eq=False)
class ClientSums:
    own: Tensor
    weighted: Tensor
    diagonal: Tensor
    clients: Tensor
    counts: Tensor
    weights: Tensor
    unbiased: bool

    def per_client(self, values: Tensor) -> Tensor:
        return values.new_zeros(len(self.counts)).index_add_(0, self.clients, values)

    def within(self) -> Tensor:
        return _mean(self.per_client(self.own), self.per_client(self.diagonal), self.counts, self.unbiased)

    def pool_moments(self) -> tuple[Tensor, Tensor, Tensor]:
        """Scalars: v_a v_b k(a, b) over pairs a != b, sum_a v_a^2 k(a, a), sum_a v_a^2, with v the images' shares."""
        shares = (self.weights / self.counts)[self.clients]
        return shares @ self.weighted, shares.square() @ self.diagonal, shares.square().sum()

    def slopes(self, between: Tensor) -> Tensor:
        """Slope [K] of the pool's MMD^2 as its mixture moves towards each client, up to a constant."""
        total, squares, norm = self.pool_moments()
        shares = self.weights / self.counts
        slope = 2 * (self.per_client(self.weighted) / self.counts - total)
        if self.unbiased:
            mean = _weighted_mean(total, squares, norm, unbiased=True)
            slope = (slope + mean * 2 * (shares - norm)) / (1 - norm)
        else:
            slope = slope + 2 * (shares * self.per_client(self.diagonal) / self.counts - squares)
        return slope - 2 * between


def real_variances(sums: ClientSums, between: Tensor) -> tuple[Tensor, RealInfluences]:
    """Variances over real images, which vary within each client on its own, of the clients' scores [K], and the images'
    influences on avg and all."""
    moments, found = sums.pool_moments(), RealInfluences(avg=[], all=[])
    of_clients = torch.zeros_like(sums.weights)
    start = 0
    for client, count in enumerate(sums.counts.tolist()):
        mine = slice(start, start + count)
        start += count
        if count < 2:
            continue
        cross = (between[mine].sum() - between[mine]) / (count - 1)
        row, diagonal = sums.own[mine], sums.diagonal[mine]
        within = _mean(row.sum() - 2 * row, diagonal.sum() - diagonal, torch.full_like(row, count - 1.0), sums.unbiased)
        weight = float(sums.weights[client])
        own, pool = within - 2 * cross, _pool_without(sums, moments, mine, weight) - 2 * weight * cross
        of_clients[client] = jackknife_variance(own)
        found["avg"].append((own, weight**2 * float(of_clients[client])))
        found["all"].append((pool, float(jackknife_variance(pool))))
    return of_clients, found


def _pool_without(sums: ClientSums, moments: tuple[Tensor, Tensor, Tensor], mine: slice, weight: float) -> Tensor:
    """A_pool without each of one client's images [n_i], whose weight the client's other images take over."""
    own, diagonal, weighted = sums.own[mine], sums.diagonal[mine], sums.weighted[mine]
    count = len(own)
    old, new = weight / count, weight / (count - 1)
    others = weighted - old * own  # share-weighted sum over the other clients' images
    total, squares, norm = moments
    total = total - old**2 * own.sum() - 2 * old * others.sum()
    total = total + new**2 * (own.sum() - 2 * own) + 2 * new * (others.sum() - others)
    squares = squares - old**2 * diagonal.sum() + new**2 * (diagonal.sum() - diagonal)
    norm = norm - old**2 * count + new**2 * (count - 1)
    return _weighted_mean(total, squares, norm, sums.unbiased)


def _mean(total: Tensor, diagonal: Tensor, counts: Tensor, unbiased: bool) -> Tensor:
    """Mean kernel from its sum off the diagonal and that on it; 0 where a U-statistic has a single image left."""
    if not unbiased:
        return (total + diagonal) / counts**2
    return torch.where(counts > 1, total / (counts * (counts - 1)).clamp(min=1), 0.0)


def _weighted_mean(total: Tensor, squares: Tensor, norm: Tensor, unbiased: bool) -> Tensor:
    if not unbiased:
        return total + squares
    return torch.where(norm < 1, total / (1 - norm).clamp(min=torch.finfo(norm.dtype).eps), 0.0)


def mmd2(x: Tensor, y: Tensor, kernel: Kernel | None = None, estimator: Estimator = "u") -> float:
    """MMD^2 between features x [n, D] and y [m, D], of all images, in float64.

    Memory beyond the features does not grow with n and m; time is (n^2 + m^2 + 2 n m) D multiplications.

    Args:
        x: floating features, converted a block at a time.
        y: likewise; n and m may differ.
        kernel: PolynomialKernel() (that of KID) if None.
        estimator: "u" (unbiased, may be negative; needs two images a side) or "v" (the empirical distributions' own).

    Raises:
        ValueError: for unusable features, or one image under "u".

    Examples:
        >>> import torch
        >>> from fedgen.scores import PolynomialKernel, mmd2
        >>> linear = PolynomialKernel(1, 1.0, 0.0)
        >>> mmd2(torch.tensor([[0.0], [2.0]]), torch.tensor([[4.0]]), linear, estimator="v")  # (1 - 4)^2
        9.0
    """
    kernel = kernel or PolynomialKernel()
    check_features(x)
    check_generated(y, x.shape[1])
    x, y = x.detach().cpu(), y.detach().cpu()
    sides = [_within(side, kernel, estimator, name)[2] for side, name in ((x, "x"), (y, "y"))]
    single = torch.zeros(len(x), dtype=torch.int64)
    between = cross_sums(x, single, 1, y, kernel)[0].sum() / (len(x) * len(y))
    return sides[0] + sides[1] - 2 * float(between)


def mmd2_subsets(
    x: Tensor, y: Tensor, kernel: Kernel | None = None, subsets: int = 100, size: int = 1000, seed: int = 2020
) -> tuple[float, float]:
    """Mean and standard deviation (ddof 0) of the U-statistic over random subsets, only to match other packages.

    Draws as torch-fidelity does: one RandomState(seed), for each subset x's indices first, without replacement. The
    deviation over subsets is not a standard error of the mean: subsets overlap, and full samples vary less.

    Raises:
        ValueError: if a side has fewer than `size` images or `size` is below 2.

    Examples:
        >>> import torch
        >>> from fedgen.scores import PolynomialKernel, mmd2_subsets
        >>> x, y = torch.zeros(4, 1), torch.full((4, 1), 3.0)
        >>> mmd2_subsets(x, y, PolynomialKernel(1, 1.0, 0.0), subsets=5, size=2)  # mean and spread
        (9.0, 0.0)
    """
    values = list(subset_values(x, y, kernel, subsets, size, seed))
    return float(np.mean(values)), float(np.std(values))


def subset_values(
    x: Tensor, y: Tensor, kernel: Kernel | None = None, subsets: int = 100, size: int = 1000, seed: int = 2020
) -> Iterator[float]:
    """The U-statistic of one random subset after another, as `mmd2_subsets` averages them."""
    check_features(x)
    check_generated(y, x.shape[1])
    if not 2 <= size <= min(len(x), len(y)):
        raise ValueError(f"subsets of size={size} need 2 to {min(len(x), len(y))}, the images of the smaller side")
    random = np.random.RandomState(seed)
    for _ in range(subsets):
        chosen = [side[torch.from_numpy(random.choice(len(side), size, replace=False))] for side in (x, y)]
        yield mmd2(chosen[0], chosen[1], kernel, "u")


class KernelReference(OfFeatures):
    """The clients' cached side of MMD^2: features, kernel means within each client and the pool, and row sums.

    Args:
        features: [n_i, D] of each client, of any floating dtype (kept as they are).
        kernel: PolynomialKernel() if None.
        estimator: "u" or "v", as in `mmd2`, for every mean within a set.
        weights: "examples" (n_i / n): the pool is the union of the images. "uniform" or K numbers: the pool is the
            mixture sum_i w_i P_i, every image with v = w_i / n_i. Its U-statistic is the weighted one,
            sum_{a != b} v_a v_b k(a, b) / (1 - sum_a v_a^2), the plain one when all v are equal.

    Raises:
        ValueError: for unusable features or weights, or a client of one image under "u".

    Attributes:
        within: A_i, float64 [K].
        within_pool: A_pool.
        gap: avg - all, the same for every generated set.

    Examples:
        >>> import torch
        >>> from fedgen.scores import KernelReference, PolynomialKernel
        >>> clients = [torch.tensor([[-1.0]]), torch.tensor([[1.0]])]
        >>> linear = KernelReference.from_features(clients, PolynomialKernel(1, 1.0, 0.0), estimator="v")
        >>> score = linear.score(torch.tensor([[0.0]]), errors=False)  # squared distances of the means
        >>> score.values["avg"], score.values["all"]
        (1.0, 0.0)
    """

    def __init__(
        self,
        features: Iterable[Tensor],
        kernel: Kernel | None = None,
        estimator: Estimator = "u",
        weights: Weights = "examples",
    ) -> None:
        parts = [part.detach().cpu() for part in features]
        self.kernel = kernel or PolynomialKernel()
        self.estimator = estimator
        check_means(parts, estimator)
        self.counts = [len(part) for part in parts]
        self.weights = resolve_weights(weights, self.counts)
        self.features = joined(parts)
        counts = torch.tensor(self.counts)
        self._clients = torch.repeat_interleave(torch.arange(len(parts)), counts)
        shares = (self.weights / counts)[self._clients]
        own, weighted = within_sums(self.features, self.kernel, self._clients, shares)
        diagonal = checked_diagonal(self.features, self.kernel, "the clients' features")
        self._sums = ClientSums(own, weighted, diagonal, self._clients, counts, self.weights, estimator == "u")
        self.within = self._sums.within()
        self.within_pool = float(_weighted_mean(*self._sums.pool_moments(), estimator == "u"))
        self.gap = float(self.weights @ self.within) - self.within_pool

    def score(self, generated: Tensor, errors: bool = True) -> FederatedScore:
        """MMD^2 of generated features [m, D] to every client, avg, all and worst.

        Args:
            generated: floating features; one set for all clients.
            errors: whether to add standard errors, from row sums that the score forms anyway: the jackknife that leaves
                out one image at a time. Generated images vary as one sample; real ones within each client, the weights
                and the worst client staying what they are. A client of one image ("v") adds none.

        Raises:
            ValueError: for unusable features, another D, or one image under "u".
        """
        check_generated(generated, self.features.shape[1])
        generated = generated.detach().cpu()
        rows, diagonal, within = _within(generated, self.kernel, self.estimator, "the generated side")
        others = len(generated) - 1
        sums = rows.sum() - 2 * rows, diagonal.sum() - diagonal
        without = _mean(*sums, torch.full_like(rows, others), self.estimator == "u")

        def variance(between: Tensor) -> Tensor:
            return jackknife_variance(without - 2 * (between.sum(-1, keepdim=True) - between) / others)

        shared = SharedVariances(self.weights, variance)
        means, over_generated = torch.zeros_like(self.weights), torch.zeros_like(self._sums.own)
        for clients, images in client_blocks(self.counts, len(generated)):
            block = self.features[images], self._clients[images] - clients.start, clients.stop - clients.start
            over_clients, over_generated[images] = cross_sums(*block, generated, self.kernel)
            between = over_clients / self._sums.counts[clients].unsqueeze(1)  # [b, m]: kernel of client i with image g
            means[clients] = between.mean(1)
            if errors:
                shared.add(clients, between)
        per_client = self.within + within - 2 * means
        pooled = self.within_pool + within - 2 * float(self.weights @ means)
        score = combine("kid", per_client, pooled, self.weights)
        if not errors:
            return score
        beyond = OverClients(per_client, self._sums.slopes(means), self.weights)
        of_clients, influences = real_variances(self._sums, over_generated / len(generated))
        average, of_pool = (sum(variance for _, variance in influences[how]) for how in ("avg", "all"))
        found = with_errors(score, shared, None, (average, of_pool, of_clients), beyond)
        return replace(found, real_influences=influences)


def _within(x: Tensor, kernel: Kernel, estimator: Estimator, name: str) -> tuple[Tensor, Tensor, float]:
    """Row sums [n] over the other images, the diagonal [n], and the mean kernel of one set with itself."""
    count = len(x)
    check_estimator(estimator)
    if estimator == "u" and count < 2:
        raise ValueError(f"{name} has one image, the U-statistic needs two; use estimator='v'")
    diagonal = checked_diagonal(x, kernel, name)
    single = torch.zeros(count, dtype=torch.int64)
    rows, _ = within_sums(x, kernel, single, torch.ones(count, dtype=torch.float64))
    total = float(rows.sum())
    mean = total / (count * (count - 1)) if estimator == "u" else (total + float(diagonal.sum())) / count**2
    return rows, diagonal, mean


def check_estimator(estimator: str) -> None:
    if estimator not in get_args(Estimator):
        raise ValueError(f"estimator must be 'u' or 'v', got {estimator!r}")


def checked_diagonal(features: Tensor, kernel: Kernel, name: str) -> Tensor:
    """The kernel of each of the features with itself, float64 [n], which no kernel with another exceeds."""
    diagonal = kernel.diagonal(features)
    if not (largest := float(diagonal.max())) <= LARGEST:
        remedy = "check the embedding, or divide all features by one number"
        raise ValueError(f"{name}: the kernel of an image with itself is {largest:.3g}, beyond {LARGEST:g}; {remedy}")
    return diagonal


def check_means(clients: Sequence[Tensor], estimator: Estimator) -> None:
    """Raises ValueError unless each client has features of one D, and as many images as means within it need."""
    check_estimator(estimator)
    check_clients(clients)
    for number, part in enumerate(clients):
        if estimator == "u" and len(part) < 2:
            raise ValueError(
                f"client {number} has one image, the U-statistic needs two; leave it out or use estimator='v'"
            )


@dataclass(frozen=True)
class KernelScore(ScoreDefinition):
    """MMD^2 with a kernel.

    Args:
        estimator: "u" (unbiased, may be negative) or "v".
    """

    shares_out: ClassVar[bool] = True

    estimator: Estimator = "u"

    def __post_init__(self) -> None:
        check_estimator(self.estimator)

    @property
    @abstractmethod
    def kernel(self) -> Kernel: ...

    @property
    def has_powers(self) -> bool:
        return self.estimator != "u"

    def prepare(self, clients: ClientSide) -> KernelReference:
        return KernelReference.from_features(clients.features, self.kernel, self.estimator, clients.weights)


@dataclass(frozen=True)
class PolynomialScore(KernelScore):
    """KID (Binkowski et al. 2018, arXiv 1801.01401): MMD^2 with the kernel (gamma x.y + coef0)^degree, of all images.

    Args:
        degree: of the polynomial.
        gamma: 1 / D if None.
        coef0: the constant.
    """

    name: ClassVar[str] = "kid"

    degree: int = PolynomialKernel.degree
    gamma: float | None = PolynomialKernel.gamma
    coef0: float = PolynomialKernel.coef0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_finite(degree=self.degree, **({} if self.gamma is None else {"gamma": self.gamma}), coef0=self.coef0)
        _ = self.kernel  # which refuses numbers out of range

    @property
    def kernel(self) -> PolynomialKernel:
        return PolynomialKernel(self.degree, self.gamma, self.coef0)


@dataclass(frozen=True)
class GaussianKernelScore(KernelScore):
    """MMD^2 with the Gaussian kernel. CMMD (Jayasumana et al. 2024, arXiv 2401.09603) is 1000 times estimator "v".

    Args:
        sigma: the kernel's bandwidth; see `RBFKernel`.
    """

    name: ClassVar[str] = "kid-rbf"

    sigma: float | None = RBFKernel.sigma

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sigma is not None:
            require_finite(sigma=self.sigma)
        _ = self.kernel

    @property
    def kernel(self) -> RBFKernel:
        return RBFKernel(self.sigma)
