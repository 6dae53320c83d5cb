"""Clients that own similar images, by their features in an embedding: the semantic partition and nearest neighbours.

`Semantic` is that of Yuan et al. 2022 ("What Do We Mean by Generalization in Federated Learning?", section 4.1 and App.
D), restated from the paper and its released code. It differs from them by default: labels' means are subtracted before
clusters are matched, EM starts from k-means (the paper does not say; the code's default is random) and is skipped where
it changes nothing, and clients of one image or none are filled up. `Semantic.paper` has the published settings.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from fedgen.clients.partitions.by_label import ByClass
from fedgen.clients.partitions.partition import Partition, at_least_one, check_assignment, require_labels
from fedgen.data.examples import Examples
from fedgen.embeddings import Embedding, FeatureCache, NotFiniteError, embed, load_embedding
from fedgen.extras import need
from fedgen.models.empirical import nearest
from fedgen.own_code import warn
from fedgen.progress import track
from fedgen.seeds import derive, generator, numpy_generator

EmbeddingLike = str | Mapping[str, Any] | Embedding  # a name, or options of `load_embedding` with the key "name"
Matching = Literal["kl", "random"]
Covariance = Literal["full", "diag", "tied", "shrunk"]
Init = Literal["kmeans", "random"]
EM = Literal["auto", "always", "never"]

PCA_EXAMPLES = 100_000  # components are fitted on a random sample of this size where there are more
EXACT_DIM = 4096  # features up to which the components come from the covariance; randomised SVD above


class _InFeatures(Partition):
    """A partition by features in an embedding, which are kept in a folder if one is given."""

    def __init__(self, embedding: EmbeddingLike, cache: str | None) -> None:
        self.embedding = embedding
        self.cache = None if cache is None else str(cache)

    def settings(self) -> dict[str, Any]:
        given: Any = self.embedding
        if isinstance(given, Embedding):
            given = {"name": given.name, "fingerprint": given.fingerprint()}
        elif isinstance(given, Mapping):
            given = {key: str(value) if isinstance(value, Path) else value for key, value in given.items()}
        return {**super().settings(), "embedding": given}

    def _features(self, examples: Examples, purpose: str) -> Tensor:
        network = load_embedding(self.embedding)
        text = f"embedding {examples.name} with {network.name} to find {purpose}"
        cache = FeatureCache(self.cache) if self.cache else None
        try:
            features = embed(network, examples.inputs, description=text, cache=cache)
        except NotFiniteError as error:
            raise ValueError(f"{examples.name}: {error}{_label_and_owner(examples, error.place)}") from error
        except ValueError as error:
            raise ValueError(f"{examples.name}: {error}") from error
        if len(features) > 1 and bool((features == features[0]).all()):
            raise ValueError(
                f"{examples.name}: embedding {network.name} gives all {len(features)} examples the same features, which"
                f" leaves no {purpose} to find; use another embedding"
            )
        return features


def _label_and_owner(examples: Examples, place: int) -> str:
    """For example " (of class '3', of owner 'writer 7')"; "" for an example with neither."""
    known = [f"of class {examples.classes[int(examples.labels[place])]!r}"] if examples.is_labelled else []
    if examples.owners is not None:
        known.append(f"of owner {examples.owner_names[int(examples.owners[place])]!r}")
    return f" ({', '.join(known)})" if known else ""


@dataclass(frozen=True)
class Clustering:
    """Options for clustering a label's examples.

    Args:
        covariance: of a cluster. "full": its own; "diag": its own, variances alone; "tied": one for the label's
            clusters; "shrunk": between full and tied, (n S + d W) / (n + d) for a cluster of n points in d dimensions
            with covariance S, W being the tied one; never by EM. Full ones distinguish clusters that vary in different
            ways; of few points that differ by their means alone, tied and shrunk ones find partners more surely.
        init: what EM starts from: "kmeans" clusters, or "random" memberships. In hundreds of dimensions EM hardly moves
            away from random ones, so that clusters stay nearly random samples of the label.
        em: "always"; "never" for the k-means clusters as they are; "auto" skips it where it takes minutes and changes
            nothing: full covariances of k-means clusters of d points or fewer on average.
        fit_examples: a label with more examples is clustered by a random sample of this size, after which all are
            assigned; None for all.
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
        """True if clusters of `points_each` points on average in `dim` dimensions are fitted by EM."""
        if self.covariance == "shrunk" or self.em != "auto":
            return self.em == "always"
        return self.init == "random" or self.covariance != "full" or points_each > dim


@dataclass(frozen=True, eq=False)
class Clusters:
    """C Gaussian clusters: the cluster of each point [n], means [C, d], covariances [C, d, d] or variances [C, d]."""

    members: np.ndarray
    means: np.ndarray
    covariances: np.ndarray

    def ordered(self, order: np.ndarray) -> "Clusters":
        """The same clusters with cluster `order[i]` in the i-th place."""
        place = np.argsort(order)
        return replace(self, members=place[self.members], means=self.means[order], covariances=self.covariances[order])


def _need_sklearn(part: str) -> Any:
    return need(f"sklearn.{part}", "clusters", "the partition Semantic")  # a second to import


def find_clusters(points: np.ndarray, count: int, clustering: Clustering, seed: int, what: str) -> Clusters:
    """The clusters of points [n, d], each point in the one that most probably drew it (without EM: the nearest)."""
    warning_class = _need_sklearn("exceptions").ConvergenceWarning
    sample = points
    if clustering.fit_examples is not None and len(points) > clustering.fit_examples:
        chosen = np.random.default_rng(seed).choice(len(points), clustering.fit_examples, replace=False)
        sample = points[np.sort(chosen)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", warning_class)
        if clustering.by_em(len(sample) / count, points.shape[1]):
            found = _mixture(points, sample, count, clustering, seed)
        else:
            found = _nearest(points, sample, count, clustering, seed)
    for warning in caught:
        warn(f"{what}: {warning.message}", warning.category)
    return found


def _mixture(points: np.ndarray, sample: np.ndarray, count: int, clustering: Clustering, seed: int) -> Clusters:
    mixture = (
        _need_sklearn("mixture")
        .GaussianMixture(
            count,
            covariance_type=clustering.covariance,
            tol=clustering.tol,
            reg_covar=clustering.reg,
            max_iter=clustering.max_iter,
            n_init=clustering.n_init,
            init_params=clustering.init,
            random_state=seed,
        )
        .fit(sample)
    )
    covariances = mixture.covariances_
    if clustering.covariance == "tied":
        covariances = np.broadcast_to(covariances, (count, *covariances.shape))
    return Clusters(mixture.predict(points), mixture.means_, covariances)


def _nearest(points: np.ndarray, sample: np.ndarray, count: int, clustering: Clustering, seed: int) -> Clusters:
    means = _need_sklearn("cluster").KMeans(count, n_init=clustering.n_init, random_state=seed).fit(sample)
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


def match_clusters(first: Clusters, second: Clusters) -> np.ndarray:
    """For each cluster of `first` its partner in `second`: a permutation [C] of least total KL(first || second)."""
    from scipy.optimize import linear_sum_assignment  # slow to import, and used by one partition

    return linear_sum_assignment(divergences(first, second))[1]


def divergences(first: Clusters, second: Clusters) -> np.ndarray:
    """KL(N(m_i, S_i) || N(n_j, T_j)) for all clusters i of `first` and j of `second`, in nats: float64 [C, C]."""
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
    """The owners, int64 [N], after every client with fewer than `least` examples was filled up to `least`."""
    owner = owner.copy()
    sizes = np.bincount(owner, minlength=centres.shape[1])
    few = np.sort(sizes[sizes < least])
    if len(few):
        warn(
            f"{len(few)} of {len(sizes)} clients had fewer than min_examples={least} examples"
            f" ({', '.join(map(str, few))}; the largest {sizes.max()}) and are given the nearest of other clients,"
            f" {int((least - few).sum())} in all"
        )
    for small in np.argsort(sizes, kind="stable")[: len(few)]:
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


class Semantic(_InFeatures):
    """A client has one cluster of each label's images, similar across labels: dark digits, or animals on snow.

    All images are embedded and projected on principal components; each label's are clustered into `num_clients`
    Gaussians; then the labels, in random order, are matched to the one before them by the least total KL divergence.
    Every image belongs to one client. Clients' sizes differ, as clusters' do. For 60,000 images and 300 clients this
    takes about a minute on one core, once images are embedded.

    Args:
        num_clients: the number of clients, and of clusters of each label.
        embedding: whose features are clustered: a name, options of `load_embedding` with the key "name", or an
            embedding. Measure in another one, or the scores see the very features that made the clients.
        components: principal components kept at most; all there are if there are fewer features or examples. None for
            the features themselves.
        clustering: how a label is clustered.
        center_per_label: subtracts each label's mean before matching. Else KL between clusters of different labels is
            mostly about the labels (but not with "tied" covariances, whose matching the means cannot change).
        matching: "kl"; or "random" partners, the control whose clients' clusters are not similar across labels.
        min_examples: examples a client has at least; one with fewer is given the nearest of others, with a warning.
        cache: folder that keeps the features; embedded anew each time if None.

    Raises:
        ValueError: if a value lies outside the above; in `assign` for data without labels, a class with fewer images
            than there are clients, fewer examples than `min_examples` of each client, or images or features that the
            embedding cannot take or that hold NaN, naming the first such image, its class and its owner.
    """

    def __init__(
        self,
        num_clients: int,
        embedding: EmbeddingLike = "efficientnet-lite0",
        components: int | None = 256,
        clustering: Clustering = Clustering(),
        center_per_label: bool = True,
        matching: Matching = "kl",
        min_examples: int = 2,
        cache: str | None = None,
    ) -> None:
        super().__init__(embedding, cache)
        self.num_clients = at_least_one(num_clients, "num_clients")
        self.components = None if components is None else at_least_one(components, "components")
        self.clustering = clustering
        self.center_per_label = center_per_label
        if matching not in get_args(Matching):
            raise ValueError(f"matching must be one of {', '.join(get_args(Matching))}, got {matching!r}")
        self.matching = matching
        self.min_examples = at_least_one(min_examples, "min_examples")
        if clustering.fit_examples is not None and clustering.fit_examples < num_clients:
            raise ValueError(
                f"fit_examples={clustering.fit_examples} cannot form the {num_clients} clusters of each label"
                " (num_clients); use more, or None"
            )

    @classmethod
    def paper(
        cls, num_clients: int = 300, embedding: EmbeddingLike = "efficientnet-lite0-32", cache: str | None = None
    ) -> "Semantic":
        """The partition with the paper's settings (300 clients for CIFAR-10, 100 for CIFAR-100), but for two.

        EM everywhere, labels' means left in, no least size; a client that gets no image at all, which ends the
        released code, gets one. The paper embeds with EfficientNet-B3 at the images' own 32 px; the default here is
        EfficientNet-Lite0 at 32 px, whose weights come with this package. EM starts from k-means, as in the code's
        settings for CIFAR; with hundreds of full covariances it takes minutes where the default takes seconds.
        """
        always = Clustering(em="always")
        return cls(num_clients, embedding, 256, always, center_per_label=False, min_examples=1, cache=cache)

    def assign(self, examples: Examples, seed: int) -> list[np.ndarray]:
        self._check_counts(examples)
        _need_sklearn("cluster")  # before long work
        points = principal_components(self._features(examples, "clusters"), self.components, seed)
        owner = self._owners(points, examples, seed)
        return check_assignment([np.flatnonzero(owner == client) for client in range(self.num_clients)], len(examples))

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "clustering": asdict(self.clustering)}

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
        present, labels = np.unique(examples.labels.numpy(), return_inverse=True)
        random = numpy_generator(seed, "semantic", "matching")
        owner = np.empty(len(points), dtype=np.int64)
        centres = np.empty((len(present), self.num_clients, points.shape[1]))
        last = None
        # in the order of matching, so that the covariances of two labels at most are in memory
        order = random.permutation(len(present))
        for label in track(order, f"cluster {examples.name}", total=len(order), unit="labels"):
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
        return fill_small(owner, labels, points, centres, self.min_examples)


def principal_components(features: Tensor, components: int | None, seed: int) -> np.ndarray:
    """Centred features on their first principal components, neither scaled nor whitened: float64 [N, k]."""
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
    components_of = _need_sklearn("decomposition").PCA(kept, svd_solver=solver, random_state=start)
    return np.asarray(components_of.fit(sample).transform(values))


class VarianceLimited(_InFeatures):
    """One client for each class that occurs: an image of it, drawn at random, and its nearest (Euclidean) ones.

    All other examples belong to no client. The image of a class depends on the seed and the class alone, so that
    within classes clients of more neighbours hold those of fewer.

    Args:
        neighbours: K; a client holds K + 1 images. The papers have K = 20 in Inception's features, and leave open if
            the image itself is one of them; 19 gives clients of 20 images.
        embedding: whose features give the distances: a name, options of `load_embedding` with the key "name", or an
            embedding. Measure in another one, or the scores see the very distances that made the clients.
        across_classes: False looks for neighbours among the image's class; True among all examples, which then go to
            the client that they are nearest to, as long as it needs any.
        cache: folder that keeps the features; embedded anew each time if None.

    Raises:
        ValueError: for a number below 1; in `assign` for data without labels, a class with too few images, or images
            that the embedding cannot take.
    """

    def __init__(
        self,
        neighbours: int = 20,
        embedding: EmbeddingLike = "efficientnet-lite0",
        across_classes: bool = False,
        cache: str | None = None,
    ) -> None:
        super().__init__(embedding, cache)
        self.neighbours = at_least_one(neighbours, "neighbours")
        self.across_classes = across_classes

    def assign(self, examples: Examples, seed: int) -> list[np.ndarray]:
        names, size = self.names(examples), self.neighbours + 1
        if self.across_classes and size * len(names) > len(examples):
            raise ValueError(
                f"{len(names)} clients of {size} images (an image and neighbours={self.neighbours}) are more than the"
                f" {len(examples)} of {examples.name}; use fewer neighbours"
            )
        anchors = draw_anchors(examples, seed, needed=1 if self.across_classes else size)
        features = self._features(examples, "neighbours")
        if self.across_classes:
            clients = share_neighbours(features, anchors, self.neighbours)
        else:
            clients = class_neighbours(examples, features, anchors, self.neighbours)
        return check_assignment([client.numpy() for client in clients], len(examples), names)

    def names(self, examples: Examples) -> list[str]:
        require_labels(examples, "VarianceLimited")
        return ByClass().names(examples)


def draw_anchors(examples: Examples, seed: int, needed: int = 1) -> list[int]:
    """The position of one image of each class that occurs, at random by seed and class."""
    anchors = []
    for label in examples.labels.unique().tolist():
        own = (examples.labels == label).nonzero().flatten()
        if len(own) < needed:
            raise ValueError(
                f"class {examples.classes[label]!r} of {examples.name} has {len(own)} images, and its client needs"
                f" {needed}; use fewer neighbours, or leave the class out"
            )
        anchors.append(int(own[torch.randint(len(own), (), generator=generator(seed, "variance limited", label))]))
    return anchors


def class_neighbours(examples: Examples, features: Tensor, anchors: Sequence[int], count: int) -> list[Tensor]:
    """For each anchor its position and those of the `count` nearest images of its class, nearest first."""
    found = []
    for anchor in anchors:
        own = (examples.labels == examples.labels[anchor]).nonzero().flatten()
        found.append(own[nearest(features[own], int((own == anchor).nonzero()), count)])
    return found


def share_neighbours(features: Tensor, anchors: Sequence[int], count: int) -> list[Tensor]:
    """For each anchor its position and those of `count` near images, nearest first; each image has one anchor."""
    reach = min(len(anchors) * (count + 1), len(features)) - 1  # others cannot have taken more than these
    pairs = []
    for owner, anchor in enumerate(anchors):
        near = nearest(features, anchor, reach)[1:]
        distances = (features[near].double() - features[anchor].double()).square().sum(1)
        pairs += [(far, owner, place) for far, place in zip(distances.tolist(), near.tolist())]
    taken = set(anchors)
    found = [[anchor] for anchor in anchors]
    for _, owner, place in sorted(pairs):
        if place not in taken and len(found[owner]) <= count:
            taken.add(place)
            found[owner].append(place)
    return [torch.tensor(own) for own in found]
