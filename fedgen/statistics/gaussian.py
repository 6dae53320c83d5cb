"""Gaussian summaries of features that pool: the summary of two clients together needs neither client's images.

Moments are kept centred and in float64: uncentred sums in float32 lose the fourth digit of an FID, these none.
A summary of no more than D images keeps its centred features instead of a D x D matrix: smaller, and exact in rank.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import torch
from torch import Tensor


def eigh(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Ascending eigenvalues [..., n] and eigenvectors [..., n, n] of symmetric matrices, from their lower triangle."""
    try:
        return torch.linalg.eigh(matrix)
    except torch.linalg.LinAlgError:
        if not torch.isfinite(matrix).all():
            raise
    import scipy.linalg  # needed once in a thousand matrices, and slow to import

    singles = matrix.reshape(-1, *matrix.shape[-2:]).cpu().numpy()
    found = [map(torch.from_numpy, scipy.linalg.eigh(single, driver="ev")) for single in singles]
    values, vectors = (torch.stack(list(parts)) for parts in zip(*found))
    return values.reshape(matrix.shape[:-1]).to(matrix), vectors.reshape(matrix.shape).to(matrix)


CHUNK = 4096  # images converted to float64 at a time
BLOCK = 512  # rows of a scatter matrix computed together
LARGEST = 1e70  # of a feature whose fourth powers, in products of covariances, still have room in float64


@dataclass(frozen=True, eq=False)
class Gaussian:
    """Mean and second moment of features, with the population (divisor n) moments of a mixture when pooled by weight.

    Exactly one of `deviations` and `scatter` is given.

    Args:
        count: number of images n; after pooling by weight the effective number (Kish) 1 / sum_j v_j^2 of the per-image
            weights v, which is n again when the weights are n_i / n.
        mean: float64 [D].
        deviations: float64 [n, D], features minus mean: the form for n <= D.
        shares: float64 [n], the weight of each image in `deviations`, summing to 1; None if all are equal.
        scatter: float64 [D, D], count times the population covariance.
    """

    count: float
    mean: Tensor
    deviations: Tensor | None = None
    shares: Tensor | None = None
    scatter: Tensor | None = None

    def __post_init__(self) -> None:
        if (self.deviations is None) == (self.scatter is None):
            raise ValueError("a Gaussian holds exactly one of deviations [n, D] and scatter [D, D]")
        second = self.scatter if self.deviations is None else self.deviations
        assert second is not None
        shape = tuple(second.shape)
        if self.mean.ndim != 1 or second.ndim != 2 or shape[1] != len(self.mean):
            raise ValueError(f"moments disagree: mean {tuple(self.mean.shape)}, second moment {shape}")
        if self.scatter is not None and shape[0] != len(self.mean):
            raise ValueError(f"scatter must be [D, D] with D = {len(self.mean)}, got {shape}")
        if self.shares is not None and (self.deviations is None or len(self.shares) != len(self.deviations)):
            raise ValueError("shares give one weight to each row of deviations")
        if self.count < 1:
            raise ValueError(f"a summary needs at least one image, got count {self.count}")

    @property
    def dim(self) -> int:
        """The number of features D."""
        return len(self.mean)

    @property
    def is_low_rank(self) -> bool:
        """Whether the images' deviations are kept in place of a D x D matrix."""
        return self.deviations is not None

    def divisor(self, ddof: float) -> float:
        """count - ddof.

        Raises:
            ValueError: if it is not positive, as for one image and ddof = 1.
        """
        if self.count - ddof <= 0:
            needed = "use ddof=0, or at least two images (leave out clients with a single one)"
            raise ValueError(f"{self.count:g} image(s) have no covariance with ddof = {ddof:g}; {needed}")
        return self.count - ddof

    def root(self, ddof: float = 1) -> Tensor:
        """Rows R [n, D] with R^T R = covariance(ddof), of rank at most n - 1; only for a low-rank summary."""
        if self.deviations is None:
            raise ValueError("a dense summary holds no deviations; factor its covariance instead")
        scale = (self.count / self.divisor(ddof)) * self.image_shares()
        return self.deviations * scale.sqrt().unsqueeze(1)

    def covariance(self, ddof: float = 1) -> Tensor:
        """Covariance float64 [D, D]: scatter / (count - ddof). Computed at each call and never kept.

        With ddof = 1 and pooling by weight this is the reliability-weighted estimate, population / (1 - sum_j v_j^2).
        """
        if self.scatter is not None:
            return self.scatter / self.divisor(ddof)
        root = self.root(ddof)
        return root.T @ root

    def trace(self, ddof: float = 1) -> Tensor:
        """Trace of the covariance, scalar float64, without forming it."""
        if self.scatter is not None:
            return self.scatter.diagonal().sum() / self.divisor(ddof)
        return self.root(ddof).square().sum()

    def image_shares(self) -> Tensor:
        """Weight of each image in `deviations`, float64 [n], summing to 1."""
        if self.shares is not None:
            return self.shares
        rows = 0 if self.deviations is None else len(self.deviations)
        return self.mean.new_full((rows,), 1.0 / max(rows, 1), dtype=torch.float64)


def is_covariance(matrix: Tensor, slack: float) -> bool:
    """Whether a matrix [D, D] is a covariance to rounding: symmetric, and no direction has a negative variance."""
    symmetric = matrix / 2 + matrix.T / 2
    most = slack * float(symmetric.abs().max()) + torch.finfo(matrix.dtype).tiny
    if float((matrix - symmetric).abs().max()) > most:
        return False
    _, failed = torch.linalg.cholesky_ex(symmetric + most * torch.eye(len(matrix), dtype=matrix.dtype))
    return not bool(failed)


def check_features(features: Tensor, name: str = "features") -> None:
    """Raises ValueError unless features are floating, finite and [n >= 1, D >= 1]."""
    if features.ndim != 2 or not features.is_floating_point():
        raise ValueError(f"{name} must be floating [n, D], got {features.dtype} {tuple(features.shape)}")
    if len(features) < 1 or features.shape[1] < 1:
        raise ValueError(f"{name} are empty: {tuple(features.shape)}; leave out clients without images")
    if all(torch.isfinite(part.sum(dtype=torch.float64)) for part in features.split(CHUNK)):
        return  # NaN and infinity would have spread to the sum
    bad = sum(int((~torch.isfinite(part).all(dim=1)).sum()) for part in features.split(CHUNK))
    if bad:
        raise ValueError(f"{name}: {bad} of {len(features)} rows hold NaN or infinity; check images and embedding")


def check_size(features: Tensor, name: str = "features") -> None:
    """Raises ValueError for features so large that a product of their covariances would be infinite."""
    if features.dtype == torch.float64:  # others have no such numbers
        refuse_size(max(float(part.abs().max()) for part in features.detach().split(CHUNK)), f"{name} reach")


class SizeError(ValueError, OverflowError):
    pass


def refuse_size(size: float, what: str) -> None:
    """Raises SizeError for a size of features beyond LARGEST, with a sentence that begins with `what`."""
    if not size <= LARGEST:
        raise SizeError(
            f"{what} {size:.3g}: float64 has no room for products of covariances of features beyond {LARGEST:g};"
            " check the embedding, or divide all features by one number"
        )


def check_clients(clients: Sequence[Tensor], what: str = "features") -> None:
    """Raises ValueError unless there are clients, each with usable features [n_i, D] of one D."""
    if not clients:
        raise ValueError("a reference needs at least one client")
    for number, part in enumerate(clients):
        check_features(part, f"{what} of client {number}")
        if part.shape[1] != clients[0].shape[1]:
            raise ValueError(f"client {number} has {what} of D = {part.shape[1]}, client 0 of {clients[0].shape[1]}")


def check_generated(generated: Tensor, dim: int) -> None:
    """Raises ValueError unless generated features are usable, and as many as the clients' D."""
    check_features(generated, "generated features")
    if generated.shape[1] != dim:
        raise ValueError(f"{generated.shape[1]} features cannot be compared with {dim}; use one embedding for all")


def summarize(features: Tensor, name: str = "features") -> Gaussian:
    """Summary of features [n, D] of any floating dtype; two passes, float64, a chunk at a time.

    Args:
        features: of at least one image.
        name: of the features, in errors.

    Raises:
        ValueError: if features are not floating [n, D] with n >= 1, not finite, or beyond 1e70.
    """
    check_features(features, name)
    check_size(features, name)
    features = features.detach()
    count, dim = features.shape
    mean = torch.zeros(dim, dtype=torch.float64, device=features.device)
    for part in features.split(CHUNK):
        mean += part.double().sum(0) / count
    if count <= dim:
        return Gaussian(count, mean, deviations=features.double() - mean)
    scatter = torch.zeros(dim, dim, dtype=torch.float64, device=features.device)
    for part in features.split(CHUNK):
        _add_gram(scatter, part.double() - mean)
    return Gaussian(count, mean, scatter=mirror(scatter))


def pool(summaries: Iterable[Gaussian], weights: Sequence[float] | Tensor | None = None) -> Gaussian:
    """The summary of the union of the images, or of the mixture sum_i w_i P_i when weights are given.

    Without weights it equals `summarize` of the concatenated features to rounding. With weights the moments are the
    population moments of the mixture, and `count` is the effective number of images. Low-rank as long as the images
    number no more than D. Summaries are taken one at a time: an iterator needs memory for one of them and the result.

    Args:
        summaries: at least one, all of the same D.
        weights: one non-negative number a summary, normalised here; None stands for the counts.

    Raises:
        ValueError: for no summaries, differing D, or weights negative, not finite, all zero or of another length.
    """
    running = RunningPool(by_count=weights is None)
    if weights is None:
        for summary in summaries:
            running.add(summary, summary.count)
        return running.result()
    values = torch.as_tensor(weights, dtype=torch.float64).tolist()
    if any(not 0 <= value < float("inf") for value in values):
        raise ValueError(f"weights must be finite and not negative, got {values}")
    for one, mass in zip_longest(summaries, values):
        if one is None or mass is None:
            raise ValueError(f"weights need one value a summary, got {len(values)} weights")
        running.add(one, mass)
    return running.result()


class RunningPool:
    """A pool that grows by one summary at a time, for callers that cannot hold them all; `pool` in a loop.

    Args:
        by_count: whether masses are counts, so that the number of images is their plain sum and not the effective one.
    """

    def __init__(self, by_count: bool) -> None:
        self.by_count = by_count
        self.mass = 0.0
        self._pooled: Gaussian | None = None

    def add(self, summary: Gaussian, mass: float) -> None:
        """Adds a summary with a mass, on any scale that all masses share; zero leaves it out."""
        if mass == 0:
            return
        own = self._pooled
        self._pooled = summary if own is None else _merge(own, self.mass, summary, mass, self.by_count)
        self.mass += mass

    def result(self) -> Gaussian:
        """The pooled summary so far.

        Raises:
            ValueError: if nothing of positive mass was added.
        """
        if self._pooled is None:
            raise ValueError("nothing to pool: give at least one summary with a positive weight")
        return self._pooled


def _merge(left: Gaussian, left_mass: float, right: Gaussian, right_mass: float, by_count: bool) -> Gaussian:
    """The mixture of two summaries in proportion to their masses (Chan, Golub and LeVeque 1979, for two sets)."""
    if left.dim != right.dim:
        raise ValueError(f"cannot pool summaries of {left.dim} and {right.dim} features; use one embedding for all")
    p, q = left_mass / (left_mass + right_mass), right_mass / (left_mass + right_mass)
    count = left.count + right.count if by_count else 1.0 / (p * p / left.count + q * q / right.count)
    shift = right.mean - left.mean
    mean = left.mean + q * shift
    rows = [side.deviations for side in (left, right) if side.deviations is not None]
    if len(rows) == 2 and len(rows[0]) + len(rows[1]) <= left.dim:
        deviations = torch.cat([rows[0] - q * shift, rows[1] + p * shift])
        return Gaussian(count, mean, deviations, torch.cat([p * left.image_shares(), q * right.image_shares()]))
    scatter = torch.outer(shift, shift * (count * p * q))
    for summary, share in ((left, p), (right, q)):
        if summary.scatter is not None:
            scatter.add_(summary.scatter, alpha=count * share / summary.count)
        else:
            _add_gram(scatter, summary.root(ddof=0) * (count * share) ** 0.5)
    return Gaussian(count, mean, scatter=mirror(scatter))


def _add_gram(scatter: Tensor, rows: Tensor) -> None:
    """Adds rows^T rows [D, D] to the upper triangle, for little more than half the cost of the whole."""
    for i in range(0, len(scatter), BLOCK):
        scatter[i : i + BLOCK, i:].addmm_(rows[:, i : i + BLOCK].T, rows[:, i:])


def mirror(scatter: Tensor) -> Tensor:
    """The symmetric matrix of an upper triangle, in place."""
    for i in range(0, len(scatter), BLOCK):
        edge = min(i + BLOCK, len(scatter))
        block = scatter[i:edge, i:edge]
        block.copy_(block.triu() + block.triu(1).T)
        scatter[edge:, i:edge] = scatter[i:edge, edge:].T
    return scatter
