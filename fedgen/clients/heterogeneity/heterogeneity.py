"""Heterogeneity of a federation's clients, before anything is trained, beside clients dealt at random.

Every measure depends on the clients' sizes and on how few images there are. So the same images are dealt again: to
clients of the same sizes ("iid"), and, where there are labels, to clients of the same sizes and labels ("labels"). What
the clients have beyond the first is heterogeneity; what they have beyond the second is not about labels.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from fedgen.clients import Client
from fedgen.clients.heterogeneity.between_clients import (
    fid_to_pool,
    kid_to_pool,
    label_distance,
    sizes_of,
    variance_between,
    vendi_of_clients,
)
from fedgen.embeddings import Embedding, FeatureCache, NotFiniteError, embed
from fedgen.seeds import generator, subset

TITLES = {
    "between": "variance between clients",
    "fid": "FID to the pool",
    "kid": "KID to the pool",
    "vendi": "Vendi score",
    "labels": "labels, total variation",
    "entropy": "entropy above grey, nats",
}
CONTROLS = {"iid": "IID, same sizes", "labels": "same sizes and labels"}


@dataclass(frozen=True)
class HeterogeneityMeasure:
    """One measure of the clients, and of clients dealt at random from the same images.

    Attributes:
        name: one of TITLES.
        per_client: of each measured client; NaN where it has none.
        counts: images of each of them, their weights in a mean.
        controls: by the rule of dealing (CONTROLS), `per_client` of each deal.
        details: what else there is to know, ready for JSON.
    """

    name: str
    per_client: list[float]
    counts: list[int]
    controls: dict[str, list[list[float]]] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def value(self) -> float:
        """The mean over clients that have a number, weighed by their images."""
        return self._mean(self.per_client)

    def of_deals(self, control: str) -> list[float]:
        """`value` of each deal of a control; none where there is no such control."""
        return [self._mean(values) for values in self.controls.get(control, [])]

    def to_json(self) -> dict[str, Any]:
        """Everything as plain types, NaN as None."""
        deals = {control: [_plain(own) for own in values] for control, values in self.controls.items()}
        means = {control: _plain(self.of_deals(control)) for control in self.controls}
        own = _plain(self.per_client)
        found = {"value": _plain([self.value])[0], "controls": means, "per_client": own, "counts": self.counts}
        return {**found, "control_clients": deals, **self.details}

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
        own = {key: value for key, value in asdict(self).items() if key != "measures"}
        return {**own, "measures": {name: measure.to_json() for name, measure in self.measures.items()}}


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
    """Measure how unlike clients are: everything that a client has, its training and held-out images together.

    Args:
        clients: of one data set.
        embedding: in whose features to measure; not the one by which images were dealt to clients.
        num_images: measured in all; of each client in proportion, and two at least.
        max_clients: measured, drawn at random where there are more.
        controls: random deals of each kind.
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
    features: Tensor,
    owners: Tensor,
    labels: Tensor | None = None,
    controls: int = 3,
    seed: int = 0,
    vendi: bool = True,
) -> dict[str, HeterogeneityMeasure]:
    """The measures of features that are at hand, by name.

    Args:
        features: [N, D].
        owners: the client of each, int64 [N] in 0..K-1.
        labels: int64 [N], where there are some.
        controls: random deals of each kind; 0 for none.
        seed: of the deals.
        vendi: whether to measure Vendi scores, by cosines: not of points, whose directions depend on where 0 is.

    Raises:
        ValueError: for features or owners that do not fit, or a number of controls below 0.
    """
    deals = deal_again(owners, labels, controls, seed)
    every = [owners, *(deal for own in deals.values() for deal in own)]
    found = {
        "between": [variance_between(features, deal) for deal in every],
        "fid": list(fid_to_pool(features, every)),
        "kid": list(kid_to_pool(features, every)),
    }
    if vendi:
        found["vendi"] = [vendi_of_clients(features, deal) for deal in every]
    if labels is not None:
        found["labels"] = [label_distance(labels, deal) for deal in every]
    counts = sizes_of(owners).tolist()
    return {name: as_measure(name, values, counts, deals) for name, values in found.items()}


def as_measure(
    name: str, values: Sequence[Tensor], counts: list[int], deals: dict[str, list[Tensor]]
) -> HeterogeneityMeasure:
    """A measure of values [K] of the clients, then of every deal in the order of `deals`."""
    rest = [one.tolist() for one in values[1:]]
    controls: dict[str, list[list[float]]] = {}
    for control, own in deals.items():
        controls[control], rest = rest[: len(own)], rest[len(own) :]
    return HeterogeneityMeasure(name, values[0].tolist(), counts, controls)


def deal_again(owners: Tensor, labels: Tensor | None, controls: int, seed: int) -> dict[str, list[Tensor]]:
    """Owners int64 [N] of random deals of the same images to clients of the same sizes, by the rule of dealing.

    Args:
        owners: the clients', int64 [N].
        labels: int64 [N]; with them also deals in which each client keeps its number of images of each label.
        controls: deals of each kind.
        seed: of the deals.

    Raises:
        ValueError: for a number below 0.
    """
    if controls < 0:
        raise ValueError(f"controls={controls}: the number of random deals is at least 0")
    everything = torch.zeros_like(owners)
    deals: dict[str, list[Tensor]] = {
        "iid": [shuffle_within(everything, owners, seed, "iid", repeat) for repeat in range(controls)]
    }
    if labels is not None:
        deals["labels"] = [shuffle_within(labels, owners, seed, "labels", repeat) for repeat in range(controls)]
    return deals


def shuffle_within(groups: Tensor, owners: Tensor, seed: int, *path: int | str) -> Tensor:
    """The owners int64 [N] of images in random order within each group int64 [N]."""
    order = torch.randperm(len(owners), generator=generator(seed, "deal again", *path))
    order = order[groups[order].argsort(stable=True)]
    dealt = torch.empty_like(owners)
    dealt[order] = owners[groups.argsort(stable=True)]
    return dealt


def choose_images(
    clients: Sequence[Client], num_images: int, max_clients: int, seed: int
) -> tuple[list[int], list[Tensor]]:
    """Choose the clients to measure, and their images as positions in the data set.

    Raises:
        ValueError: for no clients, or a number out of range.
    """
    if not clients or num_images < 2 or max_clients < 1:
        raise ValueError(
            f"{len(clients)} clients, num_images={num_images}, max_clients={max_clients}: give at least one client, two"
            " images and one client to measure"
        )
    chosen = subset(len(clients), max_clients, seed, "measured clients").tolist()
    owned = [clients[place].everything for place in chosen]
    share = min(1.0, num_images / sum(map(len, owned)))
    return chosen, [_some(own, share, seed, place) for own, place in zip(owned, chosen)]


def _some(positions: Tensor, share: float, seed: int, client: int) -> Tensor:
    count = min(len(positions), max(2, round(share * len(positions))))
    return positions[subset(len(positions), count, seed, "measured images", client)]


def _plain(values: Sequence[float]) -> list[float | None]:
    return [value if math.isfinite(value) else None for value in values]
