"""Heterogeneity of a federation's clients, before anything is trained, beside random clients of the same images.

Every measure depends on the clients' sizes and on how few images there are. So the same images are assigned again: to
clients of the same sizes ("iid"), and, where there are labels, to clients of the same sizes and labels ("labels"). What
the clients have beyond the first is heterogeneity; what they have beyond the second is not about labels.

Each measure gives one number a client, whose mean with weights n_i / n is the federation's.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fedgen.clients import Client
from fedgen.embeddings import Embedding, FeatureCache, NotFiniteError, embed
from fedgen.scores.frechet.frechet import frechet_distance
from fedgen.scores.kernel.kernels import Kernel, PolynomialKernel, block_pairs, within_sums
from fedgen.scores.of_model.diversity import vendi_score
from fedgen.seeds import generator, subset
from fedgen.statistics.gaussian import CHUNK, check_features, summarize

TITLES = {
    "between": "variance between clients",
    "fid": "FID to the pool",
    "kid": "KID to the pool",
    "vendi": "Vendi score",
    "labels": "labels, total variation",
    "entropy": "entropy above grey, nats",
}
CONTROLS = {"iid": "IID, same sizes", "labels": "same sizes and labels"}


def sizes_of(owners: Tensor) -> Tensor:
    """The number of images of each client, int64 [K], of owners int64 [N] in 0..K-1."""
    if owners.ndim != 1 or not len(owners) or int(owners.min()) < 0:
        raise ValueError(f"owners must be client numbers from 0, one an image, got {tuple(owners.shape)}")
    sizes = owners.bincount()
    if not sizes.all():
        raise ValueError(f"client {int((sizes == 0).nonzero()[0])} has no image; number clients without gaps")
    return sizes


def variance_between(features: Tensor, owners: Tensor) -> Tensor:
    """|m_i - m|^2 / tr C of each client, float64 [K]; their mean is the share of the variance between clients."""
    sizes, dim = sizes_of(owners), features.shape[1]
    mean = sum((part.sum(0, dtype=torch.float64) for part in features.split(CHUNK)), torch.zeros(dim)) / len(features)
    sums, total = torch.zeros(len(sizes), dim, dtype=torch.float64), 0.0
    for part, own in zip(features.split(CHUNK), owners.split(CHUNK)):
        centred = part.double() - mean
        sums.index_add_(0, own, centred)
        total += float(centred.square().sum()) / len(features)
    return (sums / sizes.unsqueeze(1)).square().sum(1) / total if total > 0 else torch.zeros(len(sizes)).double()


def fid_to_pool(features: Tensor, assignments: Sequence[Tensor]) -> Tensor:
    """The Fréchet distance from each client to all clients together, float64 [R, K], for each of R assignments."""
    pooled, count = summarize(features), len(sizes_of(assignments[0]))
    found = torch.full((len(assignments), count), torch.nan, dtype=torch.float64)
    for values, owners in zip(found, assignments):
        for client in range(count):
            if (own := owners == client).sum() > 1:
                values[client] = frechet_distance(summarize(features[own]), pooled)[0]
    return found


def kid_to_pool(features: Tensor, assignments: Sequence[Tensor], kernel: Kernel | None = None) -> Tensor:
    """MMD^2 from each client to all clients together, float64 [R, K], for each of R assignments."""
    own, every = _kernel_sums(features, assignments, kernel or PolynomialKernel())
    return torch.stack([_unbiased(one, every, owners) for one, owners in zip(own, assignments)])


def vendi_of_clients(features: Tensor, owners: Tensor, kernel: Kernel | None = None) -> Tensor:
    """The Vendi score of each client, float64 [K]: smaller than at random where a client's images are similar."""
    clients = range(len(sizes_of(owners)))
    return torch.tensor([vendi_score(features[owners == client], kernel) for client in clients], dtype=torch.float64)


def label_distance(labels: Tensor, owners: Tensor) -> Tensor:
    """The total variation in [0, 1] of each client's labels from all clients' labels, float64 [K]."""
    counts = label_table(labels, owners).double()
    shares, pooled = counts / counts.sum(1, keepdim=True), counts.sum(0) / counts.sum()
    return (shares - pooled).abs().sum(1) / 2


def label_table(labels: Tensor, owners: Tensor, num_labels: int | None = None) -> Tensor:
    """The number of images of each client and label, int64 [K, L]."""
    clients, count = len(sizes_of(owners)), num_labels or int(labels.max()) + 1
    return (owners * count + labels).bincount(minlength=clients * count).view(clients, count)


def _kernel_sums(features: Tensor, assignments: Sequence[Tensor], kernel: Kernel) -> tuple[list[Tensor], Tensor]:
    """Each image's kernel sums over its owner's other images, for each assignment, and over all others: float64 [N]."""
    if kernel.monomials(features[:1]) is not None:  # linear time, so each assignment by itself
        orders = [owners.argsort(stable=True) for owners in assignments]
        ones = torch.ones(len(features), dtype=torch.float64)
        found = [
            within_sums(features[order], kernel, owners[order], ones) for owners, order in zip(assignments, orders)
        ]
        places = [order.argsort() for order in orders]
        return [own[place] for (own, _), place in zip(found, places)], found[0][1][places[0]]
    own = [torch.zeros(len(features), dtype=torch.float64) for _ in assignments]
    every = torch.zeros_like(own[0])
    for rows, columns in block_pairs(len(features), len(features), symmetric=True):
        block = kernel.block(features[rows].double(), features[columns].double())
        sides = [(rows, 1)] if rows == columns else [(rows, 1), (columns, 0)]
        if rows == columns:
            block.diagonal().zero_()
        for side, axis in sides:
            every[side] += block.sum(axis)
        for sums, owners in zip(own, assignments):
            shared = block * (owners[rows].unsqueeze(1) == owners[columns])
            for side, axis in sides:
                sums[side] += shared.sum(axis)
    return own, every


def _unbiased(own: Tensor, every: Tensor, owners: Tensor) -> Tensor:
    """(1 - n_i / n)^2 times the U-statistic of each client against the others, from sums over images."""
    sizes = sizes_of(owners).double()
    within, touched = (torch.zeros_like(sizes).index_add_(0, owners, part) for part in (own, every))
    rest = len(owners) - sizes
    client = within / (sizes * (sizes - 1))
    others = every.sum() - 2 * touched + within
    between = (touched - within) / (sizes * rest)
    value = (rest / len(owners)) ** 2 * (client + others / (rest * (rest - 1)) - 2 * between)
    return value.where((sizes > 1) & (rest > 1), torch.nan)


@dataclass(frozen=True)
class HeterogeneityMeasure:
    """One measure of the clients, and of random clients of the same images."""

    name: str
    per_client: list[float]
    counts: list[int]
    controls: dict[str, list[list[float]]] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def value(self) -> float:
        """The mean over clients with a finite number, weighted by their images."""
        return self._mean(self.per_client)

    def of_deals(self, control: str) -> list[float]:
        """`value` of each random assignment of a control; none without that control."""
        return [self._mean(values) for values in self.controls.get(control, [])]

    def to_json(self) -> dict[str, Any]:
        assignments = {control: [_plain(own) for own in values] for control, values in self.controls.items()}
        means = {control: _plain(self.of_deals(control)) for control in self.controls}
        own = _plain(self.per_client)
        found = {"value": _plain([self.value])[0], "controls": means, "per_client": own, "counts": self.counts}
        return {**found, "control_clients": assignments, **self.details}

    def _mean(self, values: Sequence[float]) -> float:
        known = [(value, count) for value, count in zip(values, self.counts) if math.isfinite(value)]
        return sum(value * count for value, count in known) / sum(count for _, count in known) if known else math.nan


@dataclass(frozen=True)
class Heterogeneity:
    """The measures of a federation.

    Attributes:
        embedding: its name.
        dim: the number of its features.
        clients: which were measured, by their places.
        counts: images measured of each.
        measures: by name, as TITLES has them.
    """

    embedding: str
    dim: int
    clients: list[int]
    counts: list[int]
    measures: dict[str, HeterogeneityMeasure]

    def to_json(self) -> dict[str, Any]:
        """Everything as plain types."""
        return {**vars(self), "measures": {name: measure.to_json() for name, measure in self.measures.items()}}


def measure_clients(
    clients: Sequence[Client],
    embedding: Embedding,
    num_images: int = 5000,
    max_clients: int = 200,
    controls: int = 3,
    seed: int = 0,
    cache: FeatureCache | None = None,
    device: torch.device | str | None = None,
) -> Heterogeneity:
    """Measure how different clients are, by their training and held-out images together.

    Args:
        clients: of one data set.
        embedding: gives the features to measure; not the one by which images were assigned to clients.
        num_images: measured in all; of each client in proportion, and two at least.
        max_clients: measured, drawn at random where there are more.
        controls: random assignments of each kind.
        seed: of the draws.
        cache: keeps the features on disk.
        device: where to embed.

    Raises:
        ValueError: for no clients, images that the embedding cannot take, features that hold NaN, naming the client, or
            a number out of range.
    """
    chosen, positions = choose_images(clients, num_images, max_clients, seed)
    data, rows = clients[0].data, torch.cat(positions)
    text = f"embedding {data.name} with {embedding.name}"
    order = rows.argsort()  # in the data's order, so that the cache knows them under another partition
    owners = torch.repeat_interleave(torch.arange(len(chosen)), torch.tensor([len(own) for own in positions]))
    try:
        embedded = embed(embedding, data.inputs_at(rows[order]), device=device, description=text, cache=cache)
    except NotFiniteError as error:
        client = clients[chosen[int(owners[order[error.place]])]].name
        raise ValueError(f"{data.name}, client {client!r}, of the images measured: {error}") from error
    features = embedded[order.argsort()]
    labels = data.labels[rows] if data.is_labelled else None
    measures = measure_features(features, owners, labels, controls, seed, vendi=data.is_images)
    return Heterogeneity(embedding.name, features.shape[1], chosen, sizes_of(owners).tolist(), measures)


def measure_features(
    features: Tensor, owners: Tensor, labels: Tensor | None = None, controls: int = 3, seed: int = 0, vendi: bool = True
) -> dict[str, HeterogeneityMeasure]:
    """Measure how different clients are by given features; the measures by name.

    Args:
        features: [N, D].
        owners: the client of each, int64 [N] in 0..K-1.
        labels: int64 [N], where there are some.
        controls: random assignments of each kind; 0 for none.
        seed: of the random assignments.
        vendi: True to measure Vendi scores, by cosines: not of points, whose directions depend on where 0 is.

    Raises:
        ValueError: for features or owners that do not fit, or a number of controls below 0.
    """
    check_features(features)
    if owners.shape != features.shape[:1]:
        raise ValueError(f"{len(features)} features and owners {tuple(owners.shape)}; give each image's client")
    assignments = random_owners(owners, labels, controls, seed)
    every = [owners, *(assigned for own in assignments.values() for assigned in own)]
    found = {
        "between": [variance_between(features, assigned) for assigned in every],
        "fid": list(fid_to_pool(features, every)),
        "kid": list(kid_to_pool(features, every)),
    }
    if vendi:
        found["vendi"] = [vendi_of_clients(features, assigned) for assigned in every]
    if labels is not None:
        found["labels"] = [label_distance(labels, assigned) for assigned in every]
    counts = sizes_of(owners).tolist()
    measures = {}
    for name, values in found.items():
        first, *rest = (one.tolist() for one in values)
        parts = {control: rest[place * controls : (place + 1) * controls] for place, control in enumerate(assignments)}
        measures[name] = HeterogeneityMeasure(name, first, counts, parts)
    return measures


def random_owners(owners: Tensor, labels: Tensor | None, controls: int, seed: int) -> dict[str, list[Tensor]]:
    """Owners int64 [N] of random assignments of the same images to clients of the same sizes, by control."""
    if controls < 0:
        raise ValueError(f"controls={controls}: the number of random assignments is at least 0")
    groups = (
        {"iid": torch.zeros_like(owners)} if labels is None else {"iid": torch.zeros_like(owners), "labels": labels}
    )
    return {
        control: [shuffle_within(group, owners, seed, control, repeat) for repeat in range(controls)]
        for control, group in groups.items()
    }


def shuffle_within(groups: Tensor, owners: Tensor, seed: int, *path: int | str) -> Tensor:
    """The owners int64 [N], shuffled within each group int64 [N]."""
    order = torch.randperm(len(owners), generator=generator(seed, "deal again", *path))
    order = order[groups[order].argsort(stable=True)]
    shuffled = torch.empty_like(owners)
    shuffled[order] = owners[groups.argsort(stable=True)]
    return shuffled


def choose_images(
    clients: Sequence[Client], num_images: int, max_clients: int, seed: int
) -> tuple[list[int], list[Tensor]]:
    """Choose the clients to measure, and their images as positions in the data set."""
    if not clients or num_images < 2 or max_clients < 1:
        raise ValueError(
            f"{len(clients)} clients, num_images={num_images}, max_clients={max_clients}: give at least one client, two"
            " images and one client to measure"
        )
    chosen = subset(len(clients), max_clients, seed, "measured clients").tolist()
    owned = [clients[place].everything for place in chosen]
    share = min(1.0, num_images / sum(map(len, owned)))
    counts = [max(2, round(share * len(own))) for own in owned]
    some = zip(owned, counts, chosen)
    return chosen, [own[subset(len(own), count, seed, "measured images", place)] for own, count, place in some]


def _plain(values: Sequence[float]) -> list[float | None]:
    return [value if math.isfinite(value) else None for value in values]
