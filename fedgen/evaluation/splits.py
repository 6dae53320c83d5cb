"""The clients' real images that scores are measured against, by split."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import torch
from torch import Tensor

from fedgen.data import Examples
from fedgen.data.examples import kind_of
from fedgen.data.items import ITEM
from fedgen.data.lazy_examples import LazyInputs, join_inputs
from fedgen.foreign_text import listed
from fedgen.models.label_frequencies import LabelFrequencies

LEAST = 2  # images of a client: an unbiased covariance, and the U-statistic, need two


@dataclass(frozen=True, eq=False)
class StandIn:
    """Real images that are scored as if they were generated."""

    images: Tensor | LazyInputs
    labels: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Split:
    """One split of the clients' real images, client after client.

    Args:
        name: "train", "report", ...; part of the columns' names, so letters, digits, "-" and "_".
        images: uint8 [N, C, H, W], texts int64 [N, T], or other floats [N, ...]; in memory, or read when they are
            embedded. Items of any other structure have no images; of these only a model's own losses are scored.
        counts: images of each client, adding up to N.
        source: what the images are, e.g. "digits/train".
        client_names: one a client; numbered by default.
        stand_ins: real images in a generator's place; of them "floor", images of others, is what a perfect generator
            scores, and in `all` the best.
        classes: the names of the images' classes; none where they have no labels.
        labels: int64 [N], positions in `classes`.
        stream: splits of one stream are scored on the same generated images; its name by default.
        note: which clients are left out; records keep it.

    Raises:
        ValueError: for a client with fewer than two images, or parts that do not fit each other.
    """

    name: str
    images: Tensor | LazyInputs
    counts: tuple[int, ...]
    source: str
    client_names: tuple[str, ...] = ()
    stand_ins: Mapping[str, StandIn] = field(default_factory=dict)
    classes: tuple[str, ...] = ()
    labels: Tensor | None = None
    stream: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        names = self.client_names or tuple(f"client {k}" for k in range(len(self.counts)))
        object.__setattr__(self, "client_names", names)
        object.__setattr__(self, "stream", self.stream or self.name)
        if not self.counts:
            raise ValueError(f"split {self.name!r} has no client; a score needs at least one")
        if sum(self.counts) != len(self.images) or len(names) != len(self.counts):
            raise ValueError(
                f"split {self.name!r}: {len(self.images)} images, counts adding up to {sum(self.counts)}, {len(names)}"
                f" names for {len(self.counts)} clients do not fit each other"
            )
        for images, labels in ((self.images, self.labels), *((s.images, s.labels) for s in self.stand_ins.values())):
            if labels is not None and len(images) != len(labels):
                raise ValueError(f"split {self.name!r}: {len(labels)} labels fit none of its sets of images")
        for client, count in zip(names, self.counts):
            if count < LEAST:
                raise ValueError(
                    f"client {client!r} has {count} image{'s' * (count != 1)} in split {self.name!r} but a score needs"
                    f" {LEAST}: leave out small clients by Natural(min_examples={LEAST} or more), hold out less or"
                    " more (held_out), or take another partition"
                )

    def __repr__(self) -> str:
        return f"Split({self.name!r}, {self._clients}, {len(self.images)} {self.kind} of {self.source})"

    @classmethod
    def of_clients(cls, name: str, clients: Sequence[Examples], **options: Any) -> "Split":
        """The split of each client's examples; other arguments as above."""
        if not clients:
            raise ValueError(f"split {name!r} has no client; a score needs at least one")
        images = join_inputs([examples.inputs for examples in clients])
        classes = clients[0].classes
        if classes and all(examples.classes == classes for examples in clients):
            options = {"classes": classes, "labels": torch.cat([examples.labels for examples in clients]), **options}
        return cls(name, images, tuple(map(len, clients)), **{"source": clients[0].name, **options})

    def client_of(self, place: int) -> str:
        """The name of the client whose image stands at a place of `images`."""
        ends = torch.tensor(self.counts).cumsum(0)
        return self.client_names[int(torch.searchsorted(ends, place, right=True))]

    def of_one(self, place: int) -> "Split":
        """The split of one of its clients, without stand-ins."""
        start = sum(self.counts[:place])
        own = slice(start, start + self.counts[place])
        return replace(
            self,
            images=self.images.view(own) if isinstance(self.images, LazyInputs) else self.images[own],
            counts=(self.counts[place],),
            client_names=(self.client_names[place],),
            stand_ins={},
            labels=None if self.labels is None else self.labels[own],
        )

    @property
    def kind(self) -> str:
        """The kind of the clients' data: of those in `fedgen.data.examples.AXES`, or "items" of any other structure."""
        return kind_of(self.images)

    @property
    def label_frequencies(self) -> LabelFrequencies | None:
        """The frequencies of the classes among the images; None where they have no labels."""
        if self.labels is None:
            return None
        found = LabelFrequencies(len(self.classes))
        found.counts.copy_(torch.bincount(self.labels, minlength=len(self.classes)))
        return found

    def first(self, count: int) -> tuple[Tensor | LazyInputs, Tensor | None]:
        """The first images and their labels; items without images to be read later."""
        own, labels = slice(0, count), None if self.labels is None else self.labels[:count]
        if isinstance(self.images, LazyInputs) and not self.images.has_images:
            return self.images.view(own), labels
        return self.images[own], labels

    def in_turn(self, count: int) -> Tensor:
        """At most `count` images, of the clients in turn, in memory: [M, ...]; of more clients, of an even choice."""
        clients = len(self.counts)
        chosen = range(clients) if clients <= count else [place * clients // count for place in range(count)]
        starts = [sum(self.counts[:client]) for client in chosen]
        turns = product(range(-(-count // len(starts))), zip(starts, chosen))
        places = [start + number for number, (start, client) in turns if number < self.counts[client]]
        return self.images[torch.tensor(places[:count])]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one image, (C, H, W), text, (T,), or array of floats; ValueError for items without images."""
        return tuple(self.images.shape[1:])

    @property
    def reference(self) -> str:
        """The split in words: "digits/train, 10 clients, 1438 images"."""
        return f"{self.source}, {self._clients}, {len(self.images)} {self.kind}"

    @property
    def _clients(self) -> str:
        return "1 client" if len(self.counts) == 1 else f"{len(self.counts)} clients"


def large_enough(names: Sequence[str], counts: Sequence[int], images: str, kind: str = "") -> tuple[list[int], str]:
    """The places of the clients that have enough images to be scored, and a line that names the others, if any."""
    few = [name for name, count in zip(names, counts) if count < LEAST]
    found = [place for place, count in enumerate(counts) if count >= LEAST]
    if not few:
        return found, ""
    which = f"{len(few)} of {len(names)} {kind}clients have fewer than {LEAST} {images} images"
    return found, f"{which} and are left out of scores against these: {listed(few)}"


@contextmanager
def name_clients(images: Any, splits: Sequence[Split]) -> Iterator[None]:
    """An error in reading an item of these images gets a note with the client that has it."""
    try:
        yield
    except Exception as error:
        for split in (split for split in splits if isinstance(images, LazyInputs)):
            if isinstance(split.images, LazyInputs) and split.images.reader is images.reader:
                for place in (split.images.positions == vars(error).get(ITEM, -1)).nonzero()[:1]:
                    error.add_note(f"for client {split.client_of(int(place))!r} in split {split.name!r}")
        raise
