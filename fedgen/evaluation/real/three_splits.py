"""The three splits that tell a federation's generalisation gaps, with as many clients and as many images in each.

"What Do We Mean by Generalization in Federated Learning?" (Yuan et al. 2022, arXiv 2110.14216), section 2: part_train,
images that participating clients train on; part_val, images that they hold out; unpart, held-out images of clients that
never train. The score to a pool of clients falls with their number, and a biased score with the number of images, for
every generator alike: unmatched splits show gaps that are none.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedgen.clients import Client, FederatedDataModule
from fedgen.data import Examples
from fedgen.evaluation.real.splits import LEAST, Split, StandIn, large_enough
from fedgen.evaluation.record_names import PART_TRAIN, PART_VAL, UNPART
from fedgen.evaluation.records import FLOOR, MEMORISER, PARTICIPANTS
from fedgen.own_code import warn
from fedgen.seeds import subset

CONTROLS = (FLOOR, PARTICIPANTS, MEMORISER)

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
        return _without(self.seen.everything, torch.cat([self.train, self.held_out]))

    @property
    def rest_of_unseen(self) -> Tensor:
        """The other client's positions that are not scored, rising."""
        return _without(self.unseen.everything, self.of_unseen)

    def rests(self, seed: int, place: int) -> list[Tensor]:
        """Draw either client's positions that are not scored equally many, at (seed, place of the pair)."""
        parts = {"seen": self.rest_of_seen, "unseen": self.rest_of_unseen}
        least = min(map(len, parts.values()))
        return [part[subset(len(part), least, seed, f"rest of {name}", place)] for name, part in parts.items()]


def three_way_splits(data: FederatedDataModule) -> list[Split]:
    """part_train, part_val and unpart, client by client of the same number of images, with controls.

    As many clients of either kind are drawn at random, and paired by the number of images that they hold out; of each
    pair the three parts are cut, by a draw, to the least. part_train and part_val are of the same clients.

    Controls are real images in a generator's place: the floor, images of all clients, none of which is scored, and of
    both of a pair equally many: none of a pair one of whom has none left, so that where scored clients have no image
    left the floor is of the other clients alone; "participants", images of clients that train, none of which is scored;
    "memoriser", those of part_train themselves. A control that no two images are left for is not there.

    Args:
        data: with a `split`.

    Raises:
        ValueError: if no client of a kind has enough images.
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
    """So many of the clients, those who hold out most first."""
    chosen = subset(len(clients), count, seed, "scored clients")
    return sorted((clients[place] for place in chosen.tolist()), key=lambda one: -len(one[1].held_out))


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

    positions = {
        FLOOR: [part for place, pair in enumerate(pairs) for part in pair.rests(data.seed, place)]
        + of_others(data.everyone),
        PARTICIPANTS: [pair.rest_of_seen for pair in pairs] + of_others(data.clients),
        MEMORISER: [pair.train for pair in pairs],
    }
    found = {name: torch.cat(parts) for name, parts in positions.items()}
    return {name: _stand_in(data.examples, chosen) for name, chosen in found.items() if len(chosen) >= LEAST}


def _without(positions: Tensor, some: Tensor) -> Tensor:
    return positions[~torch.isin(positions, some)]


def _stand_in(examples: Examples, positions: Tensor) -> StandIn:
    return StandIn(examples.inputs_at(positions), examples.labels[positions] if examples.is_labelled else None)
