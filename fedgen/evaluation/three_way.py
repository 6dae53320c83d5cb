"""The three splits that tell a federation's generalisation gaps, with as many clients and as many images in each.

"What Do We Mean by Generalization in Federated Learning?" (Yuan et al. 2022, arXiv 2110.14216), section 2: part_train,
images that participating clients train on; part_val, images that they hold out; unpart, held-out images of clients that
never train. The score to a pool of clients falls with their number, and a biased score with the number of images, for
every generator alike: unmatched splits show gaps that are none.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedgen.clients import Client, FederatedDataModule
from fedgen.data import Examples
from fedgen.evaluation.records import FLOOR, MEMORISER, PARTICIPANTS
from fedgen.evaluation.splits import LEAST, PART_TRAIN, PART_VAL, UNPART, Split, StandIn
from fedgen.seeds import generator

_Numbered = tuple[int, Client]


@dataclass(frozen=True)
class _Pair:
    """A participating client and one that is not, with the positions that are scored, of each part equally many."""

    seen: Client
    unseen: Client
    train: Tensor
    held_out: Tensor
    of_unseen: Tensor

    def rest(self) -> tuple[Tensor, Tensor]:
        """The positions that are not scored, of either client equally many."""
        seen = _without(torch.cat([self.seen.train, self.seen.held_out]), torch.cat([self.train, self.held_out]))
        unseen = _without(torch.cat([self.unseen.train, self.unseen.held_out]), self.of_unseen)
        least = min(len(seen), len(unseen))
        return seen[:least], unseen[:least]


def three_way_splits(data: FederatedDataModule) -> list[Split]:
    """part_train, part_val and unpart, client by client of the same number of images, with controls.

    As many clients of either kind are drawn at random, and paired by the number of images that they hold out; of each
    pair the three parts are cut, by a draw, to the least. part_train and part_val are of the same clients.

    Controls are real images in a generator's place: the floor, images of all clients, none of which is scored, and of
    both of a pair equally many; "participants", such images of clients that train; "memoriser", those of part_train
    themselves.

    Args:
        data: with a `split`.

    Raises:
        ValueError: if no client of a kind has enough images.
    """
    assert data.split is not None
    roles, wanted, seed = data.roles, data.split.eval_clients, data.seed
    seen = _able(data.clients, roles.participating, ("train", "held_out"), "participating")
    unseen = _able(data.unparticipating, roles.unparticipating, ("held_out",), "unparticipating")
    count = min(len(seen), len(unseen), wanted or len(seen))
    if wanted and count < wanted:
        say = f"eval_clients={wanted}, but {count} can be matched: {len(seen)} participating clients can be scored"
        warnings.warn(f"{say}, and {len(unseen)} others", stacklevel=2)
    pairs = [_cut(*pair, seed) for pair in zip(_drawn(seen, count, seed), _drawn(unseen, count, seed))]
    stand_ins = _controls(data, pairs)

    def split(name: str, clients: list[Client], parts: list[Tensor]) -> Split:
        own, names = [data.examples.subset(part) for part in parts], tuple(client.name for client in clients)
        source = f"{data.examples.name} {name}"
        return Split.of_clients(name, own, client_names=names, source=source, stand_ins=stand_ins, stream="three-way")

    return [
        split(PART_TRAIN, [pair.seen for pair in pairs], [pair.train for pair in pairs]),
        split(PART_VAL, [pair.seen for pair in pairs], [pair.held_out for pair in pairs]),
        split(UNPART, [pair.unseen for pair in pairs], [pair.of_unseen for pair in pairs]),
    ]


def _able(clients: Sequence[Client], numbers: Sequence[int], parts: Sequence[str], kind: str) -> list[_Numbered]:
    """The clients with enough images to be scored, with their numbers in the partition."""
    sizes = [min(len(getattr(client, part)) for part in parts) for client in clients]
    found = [one for one, size in zip(zip(numbers, clients), sizes) if size >= LEAST]
    if not found:
        raise ValueError(
            f"no {kind} client has {LEAST} images to be scored on (at most {max(sizes)}): let clients hold out more"
            " (held_out), or use fewer, larger clients"
        )
    if len(found) < len(clients):
        few = len(clients) - len(found)
        warnings.warn(
            f"{few} of {len(clients)} {kind} clients have fewer than {LEAST} images to be scored on and are"
            " left out of the scores",
            stacklevel=3,
        )
    return found


def _drawn(clients: Sequence[_Numbered], count: int, seed: int) -> list[_Numbered]:
    """So many of the clients, those who hold out most first."""
    chosen = torch.randperm(len(clients), generator=generator(seed, "scored clients"))[:count].sort().values.tolist()
    return sorted((clients[place] for place in chosen), key=lambda one: -len(one[1].held_out))


def _cut(seen: _Numbered, unseen: _Numbered, seed: int) -> _Pair:
    least = min(len(seen[1].train), len(seen[1].held_out), len(unseen[1].held_out))

    def some(one: _Numbered, part: str) -> Tensor:
        positions: Tensor = getattr(one[1], part)
        drawn = torch.randperm(len(positions), generator=generator(seed, f"scored {part}", one[0]))
        return positions[drawn[:least].sort().values]

    return _Pair(seen[1], unseen[1], some(seen, "train"), some(seen, "held_out"), some(unseen, "held_out"))


def _controls(data: FederatedDataModule, pairs: Sequence[_Pair]) -> dict[str, StandIn]:
    """The stand-ins by name; a control that no image is left for is not among them."""
    scored = {id(client) for pair in pairs for client in (pair.seen, pair.unseen)}

    def of_others(clients: Sequence[Client]) -> list[Tensor]:
        return [part for one in clients if id(one) not in scored for part in (one.train, one.held_out)]

    rests = [pair.rest() for pair in pairs]
    all_seen = [_without(torch.cat([p.seen.train, p.seen.held_out]), torch.cat([p.train, p.held_out])) for p in pairs]
    positions = {
        FLOOR: [part for rest in rests for part in rest] + of_others(data.everyone),
        PARTICIPANTS: all_seen + of_others(data.clients),
        MEMORISER: [pair.train for pair in pairs],
    }
    found = {name: torch.cat(parts) for name, parts in positions.items()}
    return {name: _stand_in(data.examples, chosen) for name, chosen in found.items() if len(chosen) >= LEAST}


def _without(positions: Tensor, some: Tensor) -> Tensor:
    return positions[~torch.isin(positions, some)]


def _stand_in(examples: Examples, positions: Tensor) -> StandIn:
    return StandIn(examples.inputs[positions], examples.labels[positions] if examples.is_labelled else None)
