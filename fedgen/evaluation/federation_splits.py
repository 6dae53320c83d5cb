"""Splits of a federation: its clients' training and held-out images, and the three parts of those with a `split`."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedgen.clients import Client, FederatedDataModule
from fedgen.data import Examples
from fedgen.data.lazy_examples import join_inputs
from fedgen.evaluation.names import PART_TRAIN, PART_VAL, REPORT, SELECT, UNPART
from fedgen.evaluation.records import FLOOR, MEMORISER, PARTICIPANTS
from fedgen.evaluation.splits import LEAST, Split, StandIn, large_enough
from fedgen.own_code import warn
from fedgen.seeds import subset

_Numbered = tuple[int, Client]


class _Pair:
    """A participating client and one that is not, with the positions that are scored, of each part equally many."""

    def __init__(self, seen: _Numbered, unseen: _Numbered, seed: int) -> None:
        self.seen, self.unseen = seen[1], unseen[1]
        least = min(len(self.seen.train), len(self.seen.held_out), len(self.unseen.held_out))

        def some(one: _Numbered, part: str) -> Tensor:
            positions: Tensor = getattr(one[1], part)
            return positions[subset(len(positions), least, seed, f"scored {part}", one[0])]

        self.train, self.held_out = some(seen, "train"), some(seen, "held_out")
        self.of_unseen = some(unseen, "held_out")

    @property
    def rest_of_seen(self) -> Tensor:
        """The participating client's positions that are not scored, rising."""
        positions = self.seen.everything
        return positions[~torch.isin(positions, torch.cat([self.train, self.held_out]))]


def three_way_splits(data: FederatedDataModule) -> list[Split]:
    """part_train, part_val and unpart, client by client of the same number of images, with controls."""
    # Section 2 of Yuan et al. 2022 (arXiv 2110.14216). The score to a pool of clients falls with their number, and a
    # biased one with the number of images, whatever the generator: unmatched splits show gaps where there are none.
    assert data.split is not None
    roles, wanted, seed = data.roles, data.split.eval_clients, data.seed
    seen, notes = _able(data.clients, roles.participating, ("train", "held_out"), "participating")
    unseen, of_unseen = _able(data.unparticipating, roles.unparticipating, ("held_out",), "unparticipating")
    count = min(len(seen), len(unseen), wanted or len(seen))
    if wanted and count < wanted:
        say = f"eval_clients={wanted}, but {count} can be matched: {len(seen)} participating clients can be scored"
        warn(f"{say}, and {len(unseen)} others")
    pairs = [_Pair(*pair, seed) for pair in zip(_drawn(seen, count, seed), _drawn(unseen, count, seed))]
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


def _controls(data: FederatedDataModule, pairs: Sequence[_Pair]) -> dict[str, StandIn]:
    """The stand-ins by name; a control that no image is left for is not among them."""
    scored = {id(client) for pair in pairs for client in (pair.seen, pair.unseen)}

    def of_others(clients: Sequence[Client]) -> list[Tensor]:
        return [one.everything for one in clients if id(one) not in scored]

    rests: list[Tensor] = []  # what is not scored of a pair's clients, equally many of both
    for place, pair in enumerate(pairs):
        everything = pair.unseen.everything
        parts = {"seen": pair.rest_of_seen, "unseen": everything[~torch.isin(everything, pair.of_unseen)]}
        least = min(map(len, parts.values()))
        rests += [part[subset(len(part), least, data.seed, f"rest of {name}", place)] for name, part in parts.items()]
    positions = {
        FLOOR: rests + of_others(data.everyone),
        PARTICIPANTS: [pair.rest_of_seen for pair in pairs] + of_others(data.clients),
        MEMORISER: [pair.train for pair in pairs],
    }
    found = {name: torch.cat(own) for name, own in positions.items()}
    return {name: _stand_in(data.examples, chosen) for name, chosen in found.items() if len(chosen) >= LEAST}


def _stand_in(examples: Examples, positions: Tensor) -> StandIn:
    return StandIn(examples.inputs_at(positions), examples.labels[positions] if examples.is_labelled else None)


Clients = FederatedDataModule | Sequence[Split | Client | Examples] | Mapping[str, Sequence[Examples]]


def as_splits(clients: Clients) -> list[Split]:
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
    if own := [data.clients[place].held_out for place in found]:
        # all clients' are the floor above, and are embedded once
        held = _stand_in(examples, torch.cat(own)) if note else held
        names, counts, floor = tuple(names[place] for place in found), tuple(map(len, own)), {FLOOR: trained}
        about = f"{source} held out", names, floor, classes, held.labels
        splits.append(Split(REPORT, held.images, counts, *about, note=note))
    return splits
