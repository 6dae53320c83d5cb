"""Gaussian clusters of one label's examples: the mixtures of the semantic partition (Yuan et al. 2022, App. D)."""

import warnings
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np

from fedgen.own_code import warn

Covariance = Literal["full", "diag", "tied", "shrunk"]
Init = Literal["kmeans", "random"]
EM = Literal["auto", "always", "never"]


@dataclass(frozen=True)
class Clustering:
    """Options for clustering a label's examples.

    Args:
        covariance: of a cluster. "full": its own; "diag": its own, variances alone; "tied": one for the label's
            clusters; "shrunk": between full and tied, (n S + d W) / (n + d) for a cluster of n points in d dimensions
            with covariance S, W being the tied one; never by EM. Full ones tell clusters apart that vary in ways of
            their own; of few points that differ by their means alone, tied and shrunk ones find partners more surely.
        init: what EM starts from: "kmeans" clusters, or "random" memberships. In hundreds of dimensions EM hardly moves
            away from random ones, so that clusters stay nearly random samples of the label.
        em: "always"; "never" for the k-means clusters as they are; "auto" spares it where it takes
            minutes and changes nothing: full covariances of k-means clusters of d points or fewer on average.
        fit_examples: a label of more examples is clustered by a random sample of so many, after which all are assigned;
            None for all.
        max_iter: steps of EM at most.
        tol: EM ends where the mean log-likelihood grows by less.
        reg: added to the covariances' diagonals, above 0: a cluster of fewer points than dimensions has no other spread
            in some directions.
        n_init: starts of EM, or of k-means without it, the best of which is kept.

    Raises:
        ValueError: if a value lies outside the above, or two of them exclude each other.
    """

    covariance: Covariance = "full"
    init: Init = "kmeans"
    em: EM = "auto"
    fit_examples: int | None = 10_000
    max_iter: int = 100
    tol: float = 1e-3
    reg: float = 1e-4
    n_init: int = 1

    def __post_init__(self) -> None:
        for name, known in (("covariance", get_args(Covariance)), ("init", get_args(Init)), ("em", get_args(EM))):
            if getattr(self, name) not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)}, got {getattr(self, name)!r}")
        for name in ("max_iter", "n_init", "fit_examples"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if not self.reg > 0 or not self.tol > 0:
            raise ValueError(f"reg and tol must be above 0, got reg={self.reg} and tol={self.tol}")
        if self.covariance == "shrunk" and self.em == "always":
            raise ValueError("EM has no shrunk covariances; use em='never', or full, diag or tied ones")
        if self.init == "random" and (self.covariance == "shrunk" or self.em == "never"):
            raise ValueError("without EM clusters are those of k-means, so that init='random' does not apply")

    def by_em(self, points_each: float, dim: int) -> bool:
        """Whether clusters of so many points on average in `dim` dimensions are fitted by EM."""
        if self.covariance == "shrunk" or self.em != "auto":
            return self.em == "always"
        return self.init == "random" or self.covariance != "full" or points_each > dim


@dataclass(frozen=True, eq=False)
class Clusters:
    """C Gaussian clusters and who belongs to them.

    Args:
        members: the cluster of each point, int64 [n]; a cluster may have none.
        means: float64 [C, d].
        covariances: float64 [C, d, d], or variances [C, d] of diagonal ones.
    """

    members: np.ndarray
    means: np.ndarray
    covariances: np.ndarray

    def ordered(self, order: np.ndarray) -> "Clusters":
        """The same clusters, cluster `order[i]` being the i-th now; `order` is a permutation of 0..C-1."""
        place = np.argsort(order)
        return replace(self, members=place[self.members], means=self.means[order], covariances=self.covariances[order])


def find_clusters(points: np.ndarray, count: int, clustering: Clustering, seed: int, what: str) -> Clusters:
    """The clusters of points [n, d], each point in the one that most probably drew it (without EM: the nearest)."""
    from sklearn.exceptions import ConvergenceWarning  # a second to import

    sample = points
    if clustering.fit_examples is not None and len(points) > clustering.fit_examples:
        chosen = np.random.default_rng(seed).choice(len(points), clustering.fit_examples, replace=False)
        sample = points[np.sort(chosen)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        if clustering.by_em(len(sample) / count, points.shape[1]):
            found = _mixture(points, sample, count, clustering, seed)
        else:
            found = _nearest(points, sample, count, clustering, seed)
    for warning in caught:
        warn(f"{what}: {warning.message}", warning.category)
    return found


def _mixture(points: np.ndarray, sample: np.ndarray, count: int, clustering: Clustering, seed: int) -> Clusters:
    from sklearn.mixture import GaussianMixture  # a second to import

    mixture = GaussianMixture(
        count,
        covariance_type=clustering.covariance,
        tol=clustering.tol,
        reg_covar=clustering.reg,
        max_iter=clustering.max_iter,
        n_init=clustering.n_init,
        init_params=clustering.init,
        random_state=seed,
    ).fit(sample)
    covariances = mixture.covariances_
    if clustering.covariance == "tied":
        covariances = np.broadcast_to(covariances, (count, *covariances.shape))
    return Clusters(mixture.predict(points), mixture.means_, covariances)


def _nearest(points: np.ndarray, sample: np.ndarray, count: int, clustering: Clustering, seed: int) -> Clusters:
    from sklearn.cluster import KMeans  # a second to import

    means = KMeans(count, n_init=clustering.n_init, random_state=seed).fit(sample)
    members, centres = means.predict(points).astype(np.int64), means.cluster_centers_
    deviations = points - centres[members]
    return Clusters(members, centres, spreads(deviations, members, count, clustering))


def spreads(deviations: np.ndarray, members: np.ndarray, count: int, clustering: Clustering) -> np.ndarray:
    """The covariances of clusters, divisor n: float64 [C, d, d], or variances [C, d] of diagonal ones."""
    dim = deviations.shape[1]
    parts = [deviations[members == cluster] for cluster in range(count)]
    if clustering.covariance == "diag":
        return np.stack([(part**2).sum(axis=0) / max(len(part), 1) for part in parts]) + clustering.reg
    within = deviations.T @ deviations / len(deviations)
    ridge = clustering.reg * np.eye(dim)
    if clustering.covariance == "tied":
        return np.broadcast_to(within + ridge, (count, dim, dim))
    prior = dim if clustering.covariance == "shrunk" else 0
    covariances = np.empty((count, dim, dim))
    for cluster, part in enumerate(parts):
        covariances[cluster] = (part.T @ part + prior * within) / max(len(part) + prior, 1) + ridge
    return covariances
