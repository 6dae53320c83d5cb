"""A client: an owner of data."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from fnmatch import fnmatchcase
from pathlib import Path

import torch
from torch import Tensor

from fedgen.data import Examples
from fedgen.io.files import read_json, write_json
from fedgen.seeds import generator, subset


@dataclass(frozen=True, eq=False)
class Client:
    """One client's share of a data set, as positions; the data set itself is held once for all clients.

    Attributes:
        name: the client's name.
        data: the whole data set.
        train: positions int64 [n] of the images that the client trains on.
        held_out: positions int64 [h] of the images that it keeps for measuring.

    Examples:
        >>> from fedgen import ByClass, Digits, FederatedDataModule
        >>> client = FederatedDataModule(Digits(), ByClass(), held_out=0.2).clients[0]
        >>> len(client.train), len(client.held_out)
        (143, 35)
    """

    name: str
    data: Examples
    train: Tensor
    held_out: Tensor

    def __repr__(self) -> str:
        return f"Client({self.name!r}, {len(self.train)} training and {len(self.held_out)} held-out examples)"

    @property
    def everything(self) -> Tensor:
        """Positions of all of the client's images, rising."""
        return torch.cat([self.train, self.held_out]).sort().values

    @property
    def train_examples(self) -> Examples:
        """The client's training examples (a copy)."""
        return self.data.subset(self.train)

    @property
    def held_out_examples(self) -> Examples:
        """The client's held-out examples (a copy)."""
        return self.data.subset(self.held_out)


def num_held_out(count: int, fraction: float) -> int:
    """The number of held-out examples of `count`: one is left for training."""
    # rounded first: 0.29 * 100 is 28.999999999999996 in floating point
    return min(math.floor(round(fraction * count, 9)), count - 1)


def hold_out(indices: Tensor, fraction: float, seed: int, client: int) -> tuple[Tensor, Tensor]:
    """A client's positions as (train, held out): floor(fraction n) of them, drawn at (seed, client), are held out."""
    count = num_held_out(len(indices), fraction)
    chosen = torch.randperm(len(indices), generator=generator(seed, "held_out", client))[:count]
    kept = torch.ones(len(indices), dtype=torch.bool)
    kept[chosen] = False
    return indices[kept], indices[~kept]


VERSION = 1  # of the file of roles


@dataclass(frozen=True)
class Roles:
    """The role of each client, by its number in the partition; all three are sorted."""

    participating: tuple[int, ...]
    unparticipating: tuple[int, ...]
    left_out: tuple[int, ...] = ()

    @property
    def count(self) -> int:
        return len(self.participating) + len(self.unparticipating) + len(self.left_out)


@dataclass(frozen=True)
class ThreeWaySplit:
    """Holds out clients from training.

    Within each client, of either kind, `FederatedDataModule(held_out=...)` holds out images.

    Args:
        unparticipating: the fraction of clients that never train, rounded (the paper's: 0.2), or a pattern of names.
        participating: the fraction of the others that train, for studies of the number of clients.
        max_examples: of each part of a client, at most; drawn from all that it has.
        eval_clients: number of clients of each kind that are scored; by default as many as the smaller kind has.

    Raises:
        ValueError: for a number out of range.

    Examples:
        >>> from fedgen.clients import ThreeWaySplit
        >>> ThreeWaySplit(unparticipating=0.2, participating=0.5)
        ThreeWaySplit(unparticipating=0.2, participating=0.5, max_examples=None, eval_clients=None)
    """

    unparticipating: float | str = 0.2
    participating: float = 1.0
    max_examples: int | None = None
    eval_clients: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.unparticipating, str) and not 0 < self.unparticipating < 1:
            raise ValueError(f"unparticipating={self.unparticipating}: the fraction of clients kept lies in (0, 1)")
        if not 0 < self.participating <= 1:
            raise ValueError(f"participating={self.participating}: the fraction of the others lies in (0, 1]")
        for name in ("max_examples", "eval_clients"):
            if (value := getattr(self, name)) is not None and value < 2:
                raise ValueError(f"{name}={value}: a score needs at least 2, or null for all")

    def assign(self, clients: int | Sequence[str], seed: int) -> Roles:
        """The roles of clients, a function of (their names or number, seed) alone.

        Raises:
            ValueError: if there is not one client for each role.
        """
        names = [""] * clients if isinstance(clients, int) else list(clients)
        pattern = self.unparticipating
        is_kept = [isinstance(pattern, str) and fnmatchcase(name, pattern) for name in names]
        kept = sum(is_kept) if isinstance(pattern, str) else round(pattern * len(names))
        order = torch.randperm(len(names), generator=generator(seed, "unparticipating")).tolist()
        order.sort(key=lambda number: not is_kept[number])  # of a fraction it stays
        training = round(self.participating * (len(names) - kept))
        if kept < 1 or training < 1:
            raise ValueError(
                f"of {len(names)} client(s), unparticipating={self.unparticipating!r} keeps {kept} from training and"
                f" participating={self.participating} trains {training}, and each needs one: use more clients, or other"
                f" fractions; the first are named {names[:3]}"
            )
        others = sorted(order[kept:])  # so that the training clients do not depend on the order of the kept ones
        drawn = torch.randperm(len(others), generator=generator(seed, "participating")).tolist()
        chosen = [others[place] for place in drawn]
        return Roles(tuple(sorted(chosen[:training])), tuple(sorted(order[:kept])), tuple(sorted(chosen[training:])))

    def cap(self, positions: Tensor, seed: int, client: int, part: str) -> Tensor:
        """A part of a client's positions [n], at most `max_examples` of them, drawn at (seed, part, client)."""
        if self.max_examples is None or len(positions) <= self.max_examples:
            return positions
        return positions[subset(len(positions), self.max_examples, seed, f"cap of {part}", client)]


def save_roles(path: str | Path, roles: Roles, names: Sequence[str]) -> Path:
    """Writes the clients of each role as JSON, with their names for readers; returns the path."""
    found = {
        role: [{"client": number, "name": names[number]} for number in part] for role, part in asdict(roles).items()
    }
    write_json(path, {"version": VERSION, **found})
    return Path(path)


def load_roles(path: str | Path) -> Roles:
    content = read_json(path)
    try:
        version = content["version"]
        parts = [tuple(one["client"] for one in content[field.name]) for field in fields(Roles)]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} does not hold the roles of clients, or is damaged ({error!r})") from error
    if type(version) is not int or version != VERSION:
        raise ValueError(f"{path} has format {version}, but this fedgen reads {VERSION}; upgrade fedgen")
    numbers = [number for part in parts for number in part]
    if not all(type(number) is int for number in numbers) or any(list(part) != sorted(part) for part in parts):
        raise ValueError(f"{path} is damaged: clients are whole numbers in their order; copy it again from its run")
    if sorted(numbers) != [*range(len(numbers))]:
        raise ValueError(f"{path} gives a client two roles, or none; copy it again from its run")
    return Roles(*parts)
