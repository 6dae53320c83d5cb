"""The clients' real images that scores are measured against, by split."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from fedgen.clients import Client, FederatedDataModule
from fedgen.data import Examples
from fedgen.data.examples import kind_of
from fedgen.data.items import ITEM
from fedgen.data.lazy_examples import LazyInputs, join_inputs
from fedgen.evaluation.names import PART_TRAIN, PART_VAL, REPORT, SELECT, UNPART
from fedgen.evaluation.records import FLOOR, MEMORISER, PARTICIPANTS
from fedgen.foreign_text import listed
from fedgen.own_code import warn
from fedgen.seeds import subset

LEAST = 2  # images of a client: an unbiased covariance, and the U-statistic, need two
CONTROLS = (FLOOR, PARTICIPANTS, MEMORISER)


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
        images: uint8 [N, C, H, W], points float32 [N, D], or texts int64 [N, T]; in memory, or read when they are
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
                    f"client {client!r} has {count} image(s) in split {self.name!r} and a score needs {LEAST}: give"
                    f" a partition by owner min_examples={LEAST} or more, the data module a smaller held_out, or take"
                    " another partition"
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
            images=self.images.part(own) if isinstance(self.images, LazyInputs) else self.images[own],
            counts=(self.counts[place],),
            client_names=(self.client_names[place],),
            stand_ins={},
            labels=None if self.labels is None else self.labels[own],
        )

    @property
    def kind(self) -> str:
        """The kind of the clients' data: "images", "points", "texts", or "items" of any other structure."""
        return kind_of(self.images)

    def first(self, count: int) -> tuple[Tensor | LazyInputs, Tensor | None]:
        """The first images and their labels; items without images to be read later."""
        own, labels = slice(0, count), None if self.labels is None else self.labels[:count]
        if isinstance(self.images, LazyInputs) and not self.images.has_images:
            return self.images.part(own), labels
        return self.images[own], labels

    def in_turn(self, count: int) -> Tensor:
        """At most `count` images, of the clients in turn, in memory: [M, ...]; of more clients, of an even choice."""
        clients = len(self.counts)
        chosen = range(clients) if clients <= count else [place * clients // count for place in range(count)]
        starts = [sum(self.counts[:client]) for client in chosen]
        places = [
            start + number
            for number in range(-(-count // len(starts)))
            for start, client in zip(starts, chosen)
            if number < self.counts[client]
        ]
        return self.images[torch.tensor(places[:count])]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one image, (C, H, W), point, (D,), or text, (T,); ValueError for items without images."""
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


_Numbered = tuple[int, Client]


@dataclass(frozen=True)
class _Pair:
    """A participating client and one that is not, with the positions that are scored, of each part equally many."""

    seen: Client
    unseen: Client
    train: Tensor
    held_out: Tensor
    of_unseen: Tensor

    @property
    def rest_of_seen(self) -> Tensor:
        """The participating client's positions that are not scored, rising."""
        positions = self.seen.everything
        return positions[~torch.isin(positions, torch.cat([self.train, self.held_out]))]

    def rests(self, seed: int, place: int) -> list[Tensor]:
        """Draw either client's positions that are not scored, equally many, at (seed, place of the pair)."""
        everything = self.unseen.everything
        parts = {"seen": self.rest_of_seen, "unseen": everything[~torch.isin(everything, self.of_unseen)]}
        least = min(map(len, parts.values()))
        return [part[subset(len(part), least, seed, f"rest of {name}", place)] for name, part in parts.items()]


def three_way_splits(data: FederatedDataModule) -> list[Split]:
    """part_train, part_val and unpart, client by client of the same number of images, with controls.

    "What Do We Mean by Generalization in Federated Learning?" (Yuan et al. 2022, arXiv 2110.14216), section 2:
    part_train, images that participating clients train on; part_val, images that they hold out; unpart, held-out images
    of clients that never train. The score to a pool of clients falls with their number, and a biased score with the
    number of images, for every generator alike: splits that are not matched show gaps where there are none.
    """
    assert data.split is not None
    roles, wanted, seed = data.roles, data.split.eval_clients, data.seed
    seen, notes = _able(data.clients, roles.participating, ("train", "held_out"), "participating")
    unseen, of_unseen = _able(data.unparticipating, roles.unparticipating, ("held_out",), "unparticipating")
    count = min(len(seen), len(unseen), wanted or len(seen))
    if wanted and count < wanted:
        say = f"eval_clients={wanted}, but {count} can be matched: {len(seen)} participating clients can be scored"
        warn(f"{say}, and {len(unseen)} others")
    pairs = [_cut(*pair, seed) for pair in zip(_drawn(seen, count, seed), _drawn(unseen, count, seed))]
    stand_ins = _controls(data, pairs)

    def split(name: str, clients: list[Client], parts: list[Tensor], note: str = notes) -> Split:
        own, names = [data.examples.subset(part) for part in parts], tuple(client.name for client in clients)
        source = f"{data.examples.name} {name}"
        options = {"stand_ins": stand_ins, "stream": "three-way", "note": note}
        return Split.of_clients(name, own, client_names=names, source=source, **options)

    return [
        split(PART_TRAIN, [pair.seen for pair in pairs], [pair.train for pair in pairs]),
        split(PART_VAL, [pair.seen for pair in pairs], [pair.held_out for pair in pairs]),
        split(UNPART, [pair.unseen for pair in pairs], [pair.of_unseen for pair in pairs], of_unseen),
    ]


def _able(
    clients: Sequence[Client], numbers: Sequence[int], parts: Sequence[str], kind: str
) -> tuple[list[_Numbered], str]:
    """The clients with enough images to be scored, with their numbers in the partition, and a line of the others."""
    sizes = [min(len(getattr(client, part)) for part in parts) for client in clients]
    images = " or ".join(parts).replace("_", "-")
    found, note = large_enough([client.name for client in clients], sizes, images, f"{kind} ")
    if not found:
        raise ValueError(
            f"no {kind} client has {LEAST} images to be scored on (at most {max(sizes)}): let clients hold out more"
            " (held_out), or use fewer, larger clients"
        )
    if note:
        warn(note)
    return [(numbers[place], clients[place]) for place in found], note


def _drawn(clients: Sequence[_Numbered], count: int, seed: int) -> list[_Numbered]:
    """Some of the clients, those that hold out most first."""
    chosen = subset(len(clients), count, seed, "scored clients").tolist()
    return sorted((clients[place] for place in chosen), key=lambda one: -len(one[1].held_out))


def _cut(seen: _Numbered, unseen: _Numbered, seed: int) -> _Pair:
    least = min(len(seen[1].train), len(seen[1].held_out), len(unseen[1].held_out))

    def some(one: _Numbered, part: str) -> Tensor:
        positions: Tensor = getattr(one[1], part)
        return positions[subset(len(positions), least, seed, f"scored {part}", one[0])]

    return _Pair(seen[1], unseen[1], some(seen, "train"), some(seen, "held_out"), some(unseen, "held_out"))


def _controls(data: FederatedDataModule, pairs: Sequence[_Pair]) -> dict[str, StandIn]:
    """The stand-ins by name; a control that no image is left for is not among them."""
    scored = {id(client) for pair in pairs for client in (pair.seen, pair.unseen)}

    def of_others(clients: Sequence[Client]) -> list[Tensor]:
        return [one.everything for one in clients if id(one) not in scored]

    rests = [part for place, pair in enumerate(pairs) for part in pair.rests(data.seed, place)]
    positions = {
        FLOOR: rests + of_others(data.everyone),
        PARTICIPANTS: [pair.rest_of_seen for pair in pairs] + of_others(data.clients),
        MEMORISER: [pair.train for pair in pairs],
    }
    found = {name: torch.cat(parts) for name, parts in positions.items()}
    return {name: _stand_in(data.examples, chosen) for name, chosen in found.items() if len(chosen) >= LEAST}


def _stand_in(examples: Examples, positions: Tensor) -> StandIn:
    return StandIn(examples.inputs_at(positions), examples.labels[positions] if examples.is_labelled else None)


Clients = (
    FederatedDataModule | Sequence[Split] | Sequence[Client] | Sequence[Examples] | Mapping[str, Sequence[Examples]]
)


def as_splits(clients: Clients) -> list[Split]:
    """The splits of clients, however they are given."""
    if isinstance(clients, FederatedDataModule):
        return splits_of(clients)
    if isinstance(clients, Mapping):
        for name, part in clients.items():
            wrong = next((one for one in part if not isinstance(one, Examples)), None)
            if wrong is not None:
                got = type(wrong).__name__
                raise TypeError(f"split {name!r} is a list of Examples, one a client; got a {got} in it")
        return [Split.of_clients(name, part) for name, part in clients.items()]
    is_list = isinstance(clients, Sequence) and not isinstance(clients, (str, bytes))
    given = list(clients) if is_list else []
    if given and all(isinstance(one, Split) for one in given):
        return given
    if given and all(isinstance(one, Client) for one in given):
        return [_of_clients(given)]
    if given and all(isinstance(one, Examples) for one in given):
        return [Split.of_clients(SELECT, given)]
    kinds = ", ".join(dict.fromkeys(type(one).__name__ for one in given)) or "nothing"
    got = f"a list of {kinds}" if is_list else f"a {type(clients).__name__}"
    raise TypeError(
        "clients are a FederatedDataModule, its clients, a list of Examples (one a client), a list of splits, or"
        f" {{split: [Examples of each client]}}; got {got}"
    )


def _of_clients(clients: Sequence[Client]) -> Split:
    """The images that clients train on, with the held-out images of all in a generator's place."""
    held = [client.held_out_examples for client in clients if len(client.held_out)]
    floor = {}
    if sum(map(len, held)) >= LEAST:
        labels = torch.cat([part.labels for part in held]) if held[0].is_labelled else None
        floor = {FLOOR: StandIn(join_inputs([part.inputs for part in held]), labels)}
    names = tuple(client.name for client in clients)
    return Split.of_clients(SELECT, [client.train_examples for client in clients], client_names=names, stand_ins=floor)


def splits_of(data: FederatedDataModule) -> list[Split]:
    """A federation's splits, the one to select by first: "part_train", "part_val" and "unpart" where clients are kept
    from training, else "train" and "report".

    Raises:
        ValueError: for a client with fewer than two training images.
    """
    if data.split is not None:
        return three_way_splits(data)
    names, examples = tuple(client.name for client in data.clients), data.examples
    trained, held = (_stand_in(examples, data.pooled(part)) for part in ("train", "held_out"))
    counts = tuple(len(client.train) for client in data.clients)
    source, classes = examples.name, examples.classes
    floor = {FLOOR: held} if len(held.images) >= LEAST else {}
    splits = [Split(SELECT, trained.images, counts, source, names, floor, classes, trained.labels)]
    found, note = large_enough(names, [len(client.held_out) for client in data.clients], "held-out")
    if note and data.held_out:
        warn(note)
    own = [data.clients[place].held_out for place in found]
    if own and note:  # all clients' are the floor above, and are embedded once
        held = _stand_in(examples, torch.cat(own))
    if own:
        names, report = tuple(names[place] for place in found), f"{source} held out"
        counts = tuple(map(len, own))
        floor = {FLOOR: trained}
        splits.append(Split(REPORT, held.images, counts, report, names, floor, classes, held.labels, note=note))
    return splits
