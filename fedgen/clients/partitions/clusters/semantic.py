"""Clients that own images alike: the semantic partition of Yuan et al. 2022 ("What Do We Mean by Generalization in
Federated Learning?", section 4.1 and App. D), restated from the paper and its released code.

Differs from them by default: labels' means are subtracted before clusters are matched, EM starts from k-means (the
paper does not say; the code's default is random) and is spared where it changes nothing, and clients of one image or
none are filled up. `Semantic.paper` has the published settings.
"""

from dataclasses import asdict
from typing import Any, Literal, get_args

import numpy as np
from torch import Tensor

from fedgen.clients.partitions.clusters.embedded_partition import EmbeddingLike, described, features_of
from fedgen.clients.partitions.clusters.label_clusters import Clustering, Clusters, find_clusters
from fedgen.clients.partitions.partition import Partition, at_least_one, check_assignment, require_labels
from fedgen.data.examples import Examples
from fedgen.own_code import warn
from fedgen.progress import track
from fedgen.seeds import derive, numpy_generator

Matching = Literal["kl", "random"]

PCA_EXAMPLES = 100_000  # components are fitted on a random sample of so many where there are more
EXACT_DIM = 4096  # features up to which the components come from the covariance; randomised SVD above
DEFAULT_CLUSTERING = Clustering()


def match_clusters(first: Clusters, second: Clusters) -> np.ndarray:
    """For each cluster of `first` its partner in `second`: a permutation [C] of least total KL(first || second)."""
    from scipy.optimize import linear_sum_assignment  # slow to import, and used by one partition

    return linear_sum_assignment(divergences(first, second))[1]


def divergences(first: Clusters, second: Clusters) -> np.ndarray:
    """KL(N(m_i, S_i) || N(n_j, T_j)) for all clusters i of `first` and j of `second`, in nats: float64 [C, C].

    1/2 [tr(T_j^-1 S_i) + (n_j - m_i)^T T_j^-1 (n_j - m_i) - d + ln|T_j| - ln|S_i|]. The trace and the quadratic in m_i
    are tr(T_j^-1 (S_i + m_i m_i^T)): one product of matrices [C, d^2] and [d^2, C]. Both sides have full covariances,
    or both diagonal ones.
    """
    origin = second.means.mean(axis=0)  # moving both sides changes nothing but rounding, which it keeps small
    m, n = first.means - origin, second.means - origin
    if first.covariances.ndim == 2:
        moments = first.covariances + m**2
        precisions = 1 / second.covariances
        pulls = precisions * n
        logs = [np.log(side.covariances).sum(axis=1) for side in (first, second)]
    else:
        moments = (first.covariances + m[:, :, None] * m[:, None, :]).reshape(len(m), -1)
        inverses = np.linalg.inv(second.covariances)
        pulls = (inverses @ n[:, :, None])[:, :, 0]
        precisions = inverses.reshape(len(n), -1)
        logs = [np.linalg.slogdet(side.covariances)[1] for side in (first, second)]
    squares = moments @ precisions.T - 2 * m @ pulls.T + (n * pulls).sum(axis=1)
    return 0.5 * (squares - m.shape[1] + logs[1] - logs[0][:, None])


def fill_small(
    owner: np.ndarray, labels: np.ndarray, points: np.ndarray, centres: np.ndarray, least: int
) -> np.ndarray:
    """The owners, int64 [N], after every client with fewer than `least` examples was filled up to `least`.

    A small client takes, one by one, the examples whose squared distance to its own centre of their label exceeds that
    to their owner's centre by the least, from clients that keep `least` themselves; the smallest client is served
    first. The number of clients stays: those who give names, cohorts and weights count on it.
    """
    owner = owner.copy()
    clients = centres.shape[1]
    sizes = np.bincount(owner, minlength=clients)
    for small in np.argsort(sizes, kind="stable")[: int((sizes < least).sum())]:
        kept = ((points - centres[labels, owner]) ** 2).sum(axis=1)
        cost = ((points - centres[labels, small]) ** 2).sum(axis=1) - kept
        for example in np.argsort(cost, kind="stable"):
            if sizes[small] >= least:
                break
            giver = owner[example]
            if giver != small and sizes[giver] > least:
                owner[example] = small
                sizes[giver] -= 1
                sizes[small] += 1
    return owner


class Semantic(Partition):
    """A client has one cluster of each label's images, alike across labels: dark digits, or animals on snow.

    All images are embedded and projected on principal components; each label's are clustered into `num_clients`
    Gaussians; then the labels, in random order, are matched to the one before them by the least total KL divergence.
    Every image belongs to one client. Clients' sizes differ, as clusters' do. For 60,000 images and 300 clients this
    takes about a minute on one core, once images are embedded.

    Args:
        num_clients: the number of clients, and of clusters of each label.
        embedding: in whose features images are alike: a name, options of `load_embedding` with the key "name", or an
            embedding. Measure in another one, or the scores see the very features that made the clients.
        components: principal components kept at most; all there are if there are fewer features or examples. None for
            the features themselves.
        clustering: how a label is clustered.
        center_per_label: subtracts each label's mean before matching. Else KL between clusters of different labels is
            mostly about the labels ("tied" covariances apart, whose matching the means cannot change).
        matching: "kl"; or "random" partners, the control whose clients are clusters of each label but not alike.
        min_examples: examples a client has at least; one with fewer is given the nearest of others, with a warning.
        cache: folder that keeps the features; embedded anew each time if None.

    Raises:
        ValueError: if a value lies outside the above.
    """

    def __init__(
        self,
        num_clients: int,
        embedding: EmbeddingLike = "efficientnet-lite0",
        components: int | None = 256,
        clustering: Clustering = DEFAULT_CLUSTERING,
        center_per_label: bool = True,
        matching: Matching = "kl",
        min_examples: int = 2,
        cache: str | None = None,
    ) -> None:
        self.num_clients = at_least_one(num_clients, "num_clients")
        self.embedding = embedding
        self.components = None if components is None else at_least_one(components, "components")
        self.clustering = clustering
        self.center_per_label = center_per_label
        if matching not in get_args(Matching):
            raise ValueError(f"matching must be one of {', '.join(get_args(Matching))}, got {matching!r}")
        self.matching = matching
        self.min_examples = at_least_one(min_examples, "min_examples")
        self.cache = None if cache is None else str(cache)
        if clustering.fit_examples is not None and clustering.fit_examples < num_clients:
            raise ValueError(
                f"fit_examples={clustering.fit_examples} cannot form the {num_clients} clusters of each label"
                " (num_clients); use more, or None"
            )

    @classmethod
    def paper(
        cls,
        num_clients: int = 300,
        embedding: EmbeddingLike = "efficientnet-lite0-32",
        cache: str | None = None,
    ) -> "Semantic":
        """The partition with the paper's settings (300 clients for CIFAR-10, 100 for CIFAR-100), but for two.

        EM everywhere, labels' means left in, no least size; a client that gets no image at all, which ends the
        released code, gets one. The paper embeds with EfficientNet-B3 at the images' own 32 px; the default here is
        EfficientNet-Lite0 at 32 px, whose weights install with a package. EM starts from k-means, as in the code's
        settings for CIFAR; with hundreds of full covariances it takes minutes where the default takes seconds.
        """
        clustering = Clustering(em="always")
        return cls(num_clients, embedding, 256, clustering, center_per_label=False, min_examples=1, cache=cache)

    def assign(self, examples: Examples, seed: int) -> list[np.ndarray]:
        """Assign every example, as every partition does.

        Raises:
            ValueError: for data without labels, a class with fewer images than there are clients, fewer examples than
                `min_examples` of each client, or images or features that the embedding cannot take or that hold NaN,
                naming the first such image, its class and its owner.
        """
        self._check_counts(examples)
        points = principal_components(
            features_of(examples, self.embedding, self.cache, "clusters"), self.components, seed
        )
        owner = self._owners(points, examples, seed)
        return check_assignment([np.flatnonzero(owner == client) for client in range(self.num_clients)], len(examples))

    def settings(self) -> dict[str, Any]:
        """Class name and arguments for JSON; an embedding by its name and fingerprint."""
        own = {"embedding": described(self.embedding), "clustering": asdict(self.clustering)}
        return super().settings() | own

    def _check_counts(self, examples: Examples) -> None:
        require_labels(examples, "Semantic")
        for name, count in zip(examples.classes, examples.label_counts().tolist()):
            if 0 < count < self.num_clients:
                raise ValueError(
                    f"class {name!r} of {examples.name} has {count} examples, and Semantic forms {self.num_clients} "
                    "clusters of each class (num_clients); use fewer clients, or leave the class out"
                )
        if len(examples) < self.num_clients * self.min_examples:
            raise ValueError(
                f"{self.num_clients} clients of min_examples={self.min_examples} are more than the {len(examples)}"
                f" examples of {examples.name}; use fewer clients"
            )

    def _owners(self, points: np.ndarray, examples: Examples, seed: int) -> np.ndarray:
        """The client of each example, int64 [N]."""
        present, labels = np.unique(examples.labels.numpy(), return_inverse=True)
        count = len(present)
        random = numpy_generator(seed, "semantic", "matching")
        owner = np.empty(len(points), dtype=np.int64)
        centres = np.empty((count, self.num_clients, points.shape[1]))
        last = None
        # In the order of matching, so that the covariances of two labels are in memory and never those of all.
        for label in track(random.permutation(count), f"cluster {examples.name}", total=count, unit="labels"):
            own = np.flatnonzero(labels == label)
            if self.center_per_label:
                points[own] -= points[own].mean(axis=0)
            start = derive(seed, "semantic", "clusters", int(present[label])) % 2**32
            what = f"clusters of class {examples.classes[present[label]]!r} of {examples.name}"
            found = find_clusters(points[own], self.num_clients, self.clustering, start, what)
            if self.matching == "random":
                found = found.ordered(random.permutation(self.num_clients))
            elif last is not None:
                found = found.ordered(match_clusters(last, found))
            owner[own], centres[label], last = found.members, found.means, found
        return self._filled(owner, labels, points, centres)

    def _filled(self, owner: np.ndarray, labels: np.ndarray, points: np.ndarray, centres: np.ndarray) -> np.ndarray:
        sizes = np.bincount(owner, minlength=self.num_clients)
        small = sizes[sizes < self.min_examples]
        if len(small):
            warn(
                f"{len(small)} of {self.num_clients} clients had fewer than min_examples={self.min_examples} examples"
                f" ({', '.join(map(str, np.sort(small)))}; the largest {sizes.max()}) and are given the nearest of"
                f" other clients, {int((self.min_examples - small).sum())} in all"
            )
            owner = fill_small(owner, labels, points, centres, self.min_examples)
        return owner


def principal_components(features: Tensor, components: int | None, seed: int) -> np.ndarray:
    """Centred features on their first principal components, neither scaled nor whitened: float64 [N, k]."""
    from sklearn.decomposition import PCA  # a second to import

    values = features.double().numpy()
    if components is None:
        return values - values.mean(axis=0)
    sample = values
    if len(values) > PCA_EXAMPLES:
        chosen = numpy_generator(seed, "semantic", "components").choice(len(values), PCA_EXAMPLES, replace=False)
        sample = values[np.sort(chosen)]
    kept = min(components, *sample.shape)
    solver = "covariance_eigh" if sample.shape[1] <= min(len(sample), EXACT_DIM) else "auto"
    start = derive(seed, "semantic", "components") % 2**32
    return PCA(kept, svd_solver=solver, random_state=start).fit(sample).transform(values)
