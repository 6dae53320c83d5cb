"""Squared maximum mean discrepancy (KID with the cubic kernel) of full samples, to every client and to their pool.

With A_i, B, C_i the mean kernels within client i, within the generated images and between them, KD_i = A_i + B - 2 C_i.
sum_i w_i C_i is the pool's cross mean exactly and B is common, so avg - all = sum_i w_i A_i - A_pool depends on real
images alone: it is the same for every generator, and both aggregates rank alike.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedgen.scores.aggregate import FederatedScore, OfClients, Weights, combine, resolve_weights
from fedgen.scores.joined import joined
from fedgen.scores.kernel.kernels import Kernel, PolynomialKernel, cross_sums, within_sums
from fedgen.scores.kernel.mmd_errors import ClientSums, generated_variances, real_variances
from fedgen.scores.over_clients import OverClients
from fedgen.statistics.gaussian import check_clients, check_features

Estimator = Literal["u", "v"]
LARGEST = 1e280  # of a kernel: float64 has room for a sum over all pairs of images


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
    _check_pair(x, y)
    x, y = x.detach().cpu(), y.detach().cpu()
    sides = [_mean_within(side, kernel, estimator, name) for side, name in ((x, "x"), (y, "y"))]
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
    _check_pair(x, y)
    if not 2 <= size <= min(len(x), len(y)):
        raise ValueError(
            f"subsets of {size} images need 2 <= size <= {min(len(x), len(y))}, the images of the smaller side"
        )
    random = np.random.RandomState(seed)
    for _ in range(subsets):
        chosen = [side[torch.from_numpy(random.choice(len(side), size, replace=False))] for side in (x, y)]
        yield mmd2(chosen[0], chosen[1], kernel, "u")


class KernelReference(OfClients):
    """The clients' cached side of MMD^2: features, kernel means within each client and the pool, and row sums.

    Attributes:
        weights: float64 [K], summing to 1, shared by avg and all.
        counts: images of each client.
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
        self, features: Iterable[Tensor], kernel: Kernel | None, estimator: Estimator, weights: Weights
    ) -> None:
        parts = [part.detach().cpu() for part in features]
        self.kernel = kernel or PolynomialKernel()
        self.estimator = _check_estimator(estimator)
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
        self.within, self.within_pool = self._sums.within(), float(self._sums.within_pool())
        self.gap = float(self.weights @ self.within) - self.within_pool

    @classmethod
    def from_features(
        cls,
        features: Iterable[Tensor],
        kernel: Kernel | None = None,
        estimator: Estimator = "u",
        weights: Weights = "examples",
    ) -> "KernelReference":
        """The reference of clients given by features [n_i, D], of any floating dtype (kept as they are).

        Args:
            features: one tensor a client.
            kernel: PolynomialKernel() if None.
            estimator: "u" or "v", as in `mmd2`, for every mean within a set.
            weights: "examples" (n_i / n): the pool is the union of the images. "uniform" or K numbers: the pool is the
                mixture sum_i w_i P_i, every image with v = w_i / n_i. Its U-statistic is the weighted one,
                sum_{a != b} v_a v_b k(a, b) / (1 - sum_a v_a^2), the plain one when all v are equal.

        Raises:
            ValueError: for unusable features or weights, or a client of one image under "u".
        """
        return cls(features, kernel, estimator, weights)

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
        _check_pair(self.features, generated)
        generated = generated.detach().cpu()
        number = len(self.counts)
        over_clients, over_generated = cross_sums(self.features, self._clients, number, generated, self.kernel)
        between = over_clients / self._sums.counts.unsqueeze(1)  # [K, m], mean kernel of client i with image g
        rows, diagonal, within = _within(generated, self.kernel, self.estimator, "the generated side")
        means = between.mean(1)
        per_client = self.within + within - 2 * means
        pooled = self.within_pool + within - 2 * float(self.weights @ means)
        if not errors:
            return combine("kid", per_client, pooled, self.weights)
        worst = int(per_client.masked_fill(self.weights == 0, -torch.inf).argmax())
        found = {
            "generated": generated_variances(between, rows, diagonal, self.weights, worst, self.estimator == "u"),
            "real": real_variances(self._sums, over_generated / len(generated), worst),
        }
        roots = {side: {key: value**0.5 for key, value in parts.items()} for side, (parts, _) in found.items()}
        own = {side: variances.sqrt() for side, (_, variances) in found.items()}
        beyond = OverClients(per_client, self._sums.slopes(means), self.weights)
        return combine("kid", per_client, pooled, self.weights, None, roots, own, over_clients=beyond)


def _within(x: Tensor, kernel: Kernel, estimator: Estimator, name: str) -> tuple[Tensor, Tensor, float]:
    """Row sums [n] over the other images, the diagonal [n], and the mean kernel of one set with itself."""
    count = len(x)
    if _check_estimator(estimator) == "u" and count < 2:
        raise ValueError(f"{name} has one image, the U-statistic needs two; use estimator='v'")
    diagonal = checked_diagonal(x, kernel, name)
    single = torch.zeros(count, dtype=torch.int64)
    rows, _ = within_sums(x, kernel, single, torch.ones(count, dtype=torch.float64))
    total = float(rows.sum())
    mean = total / (count * (count - 1)) if estimator == "u" else (total + float(diagonal.sum())) / count**2
    return rows, diagonal, mean


def _mean_within(x: Tensor, kernel: Kernel, estimator: Estimator, name: str) -> float:
    return _within(x, kernel, estimator, name)[2]


def _check_estimator(estimator: Estimator) -> Estimator:
    if estimator not in ("u", "v"):
        raise ValueError(f"estimator must be 'u' or 'v', got {estimator!r}")
    return estimator


def _check_pair(x: Tensor, y: Tensor) -> None:
    check_features(x, "features")
    check_features(y, "generated features")
    if x.shape[1] != y.shape[1]:
        raise ValueError(f"{y.shape[1]} features cannot be compared with {x.shape[1]}; use one embedding for all")


def checked_diagonal(features: Tensor, kernel: Kernel, name: str) -> Tensor:
    """The kernel of each of the features with itself, float64 [n], which no kernel with another exceeds.

    Args:
        features: [n, D].
        kernel: the kernel.
        name: of the features, in errors.

    Raises:
        ValueError: if sums of kernels would be infinite.
    """
    diagonal = kernel.diagonal(features)
    if not (largest := float(diagonal.max())) <= LARGEST:
        raise ValueError(
            f"{name}: the kernel of an image with itself is {largest:.3g}, and sums of such have no room in float64;"
            " check the embedding, or divide all features by one number"
        )
    return diagonal


def check_means(clients: Sequence[Tensor], estimator: Estimator) -> None:
    """Raises ValueError unless each client has features of one D, and as many images as means within it need."""
    check_clients(clients)
    for number, part in enumerate(clients):
        if estimator == "u" and len(part) < 2:
            raise ValueError(
                f"client {number} has one image, the U-statistic needs two; use estimator='v' or leave the client out"
            )
