"""The clients' real images that scores are measured against, by split."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedgen.clients import FederatedDataModule
from fedgen.data import Examples

LEAST = 2  # images of a client: an unbiased covariance, and the U-statistic, need two
SELECT, REPORT = "train", "report"


@dataclass(frozen=True, eq=False)
class Split:
    """One split of the clients' real images, client after client.

    Args:
        name: "train", "report", ...; part of the columns' names, so letters, digits, "-" and "_".
        images: uint8 [N, C, H, W], or points float32 [N, D].
        counts: images of each client, adding up to N.
        source: what the images are, e.g. "digits/train".
        client_names: one a client; numbered by default.
        floor: real images of others, scored as if they were generated: the best that a generator can do.
        classes: the names of the images' classes; none where they have no labels.
        labels: int64 [N], positions in `classes`.
        floor_labels: of the floor's images.

    Raises:
        ValueError: for a client with fewer than two images, or parts that do not fit each other.
    """

    name: str
    images: Tensor
    counts: tuple[int, ...]
    source: str
    client_names: tuple[str, ...] = ()
    floor: Tensor | None = None
    classes: tuple[str, ...] = ()
    labels: Tensor | None = None
    floor_labels: Tensor | None = None

    def __post_init__(self) -> None:
        names = self.client_names or tuple(f"client {k}" for k in range(len(self.counts)))
        object.__setattr__(self, "client_names", names)
        if not self.counts:
            raise ValueError(f"split {self.name!r} has no client; a score needs at least one")
        if sum(self.counts) != len(self.images) or len(names) != len(self.counts):
            raise ValueError(
                f"split {self.name!r}: {len(self.images)} images, counts adding up to {sum(self.counts)}, {len(names)}"
                f" names for {len(self.counts)} clients do not fit each other"
            )
        for images, labels in ((self.images, self.labels), (self.floor, self.floor_labels)):
            if labels is not None and (images is None or len(images) != len(labels)):
                raise ValueError(f"split {self.name!r}: {len(labels)} labels fit none of its sets of images")
        for client, count in zip(names, self.counts):
            if count < LEAST:
                raise ValueError(
                    f"client {client!r} has {count} image(s) in split {self.name!r} and a score needs {LEAST}: give it"
                    " more (another partition, a smaller held_out) or leave it out of the evaluation"
                )

    @classmethod
    def of_clients(cls, name: str, clients: Sequence[Examples], **options: Any) -> "Split":
        """The split of each client's examples; other arguments as above."""
        if not clients:
            raise ValueError(f"split {name!r} has no client; a score needs at least one")
        images = torch.cat([examples.inputs for examples in clients])
        classes = clients[0].classes
        if classes and all(examples.classes == classes for examples in clients):
            options = {"classes": classes, "labels": torch.cat([examples.labels for examples in clients]), **options}
        return cls(name, images, tuple(map(len, clients)), **{"source": clients[0].name, **options})

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one image, (C, H, W), or point, (D,)."""
        return tuple(self.images.shape[1:])

    @property
    def reference(self) -> str:
        """The split in words: "digits/train, 10 clients, 1438 images"."""
        kind = "images" if self.images.ndim == 4 else "points"
        clients = "1 client" if len(self.counts) == 1 else f"{len(self.counts)} clients"
        return f"{self.source}, {clients}, {len(self.images)} {kind}"


def splits_of(data: FederatedDataModule) -> list[Split]:
    """A federation's splits: "train" for selecting and, from images that no training has seen, "report".

    "train" is what each client trains on (the field's convention) with the pooled held-out images as its floor;
    "report" the held-out images, with the pooled training images as its floor. "report" is left out if a client holds
    out fewer than two images.

    Raises:
        ValueError: for a client with fewer than two training images.
    """
    names, examples = tuple(client.name for client in data.clients), data.examples
    parts = [data.pooled(part) for part in ("train", "held_out")]
    trained, held = (examples.inputs[part] for part in parts)
    labels, held_labels = (examples.labels[part] if examples.is_labelled else None for part in parts)
    counts = tuple(len(client.train) for client in data.clients)
    held_counts = tuple(len(client.held_out) for client in data.clients)
    source, classes = examples.name, examples.classes
    floor, floor_labels = (held, held_labels) if len(held) >= LEAST else (None, None)
    splits = [Split(SELECT, trained, counts, source, names, floor, classes, labels, floor_labels)]
    if min(held_counts) >= LEAST:
        report = f"{source} held out"
        splits.append(Split(REPORT, held, held_counts, report, names, trained, classes, held_labels, labels))
    return splits


Clients = FederatedDataModule | Sequence[Split] | Mapping[str, Sequence[Examples]]


def as_splits(clients: Clients) -> list[Split]:
    """Splits from a data module, from splits, or from {split: [examples of each client]}."""
    if isinstance(clients, FederatedDataModule):
        return splits_of(clients)
    if isinstance(clients, Mapping):
        return [Split.of_clients(name, examples) for name, examples in clients.items()]
    return list(clients)
