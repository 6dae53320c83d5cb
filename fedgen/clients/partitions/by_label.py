"""Clients that differ in labels: whole classes, shards, and shares drawn from Dirichlet distributions.

`Dirichlet` is that of Yuan et al. 2022, section 4.1, after Hsu et al. 2019. It differs from the code released with Yuan
et al. in three ways: which images of a label a client gets is random (theirs pops them in the data set's order), small
alphas work (theirs divides 0 by 0 once a client's labels are used up), and draws are made in blocks (equal in
distribution to one by one).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedgen.clients.partitions.partition import (
    Partition,
    at_least_one,
    check_assignment,
    require_clients,
    require_labels,
)
from fedgen.data.examples import Examples
from fedgen.data.sets.pickled_images import GROUPS
from fedgen.seeds import numpy_generator

BLOCK = 1024  # labels drawn at once
NAMED_GROUPS: Mapping[str, Mapping[str, Sequence[str]]] = {"cifar100": GROUPS}


class Dirichlet(Partition):
    """floor(N / num_clients) examples for each client, their labels drawn from q_c ~ Dirichlet(alpha * p).

    p are the label frequencies of the data, so a class's concentration is alpha * p_k: it is not a symmetric Dirichlet,
    and alpha here is num_classes times the alpha of papers that write Dirichlet(alpha, ..., alpha). On balanced classes
    alpha = 1 gives clients a few classes each, 10 a clear skew, 100 and above nearly IID ones. The N mod num_clients
    examples left over belong to no client.

    Args:
        num_clients: the number of clients.
        alpha: total concentration, above 0: small for few classes a client.
        rotate: True lets the clients draw one example each, in a fresh random order, again and again, so that all
            meet exhausted labels alike; False fills one client after the other.

    Examples:
        >>> from fedgen import Digits, Dirichlet
        >>> parts = Dirichlet(num_clients=3, alpha=0.5).assign(Digits().read("train"), seed=0)
        >>> len(parts), sum(len(part) for part in parts)
        (3, 1797)
    """

    def __init__(self, num_clients: int, alpha: float, rotate: bool = True) -> None:
        self.num_clients = at_least_one(num_clients, "num_clients")
        self.alpha = concentration(alpha, "alpha")
        self.rotate = rotate

    def assign(self, examples: Examples, seed: int) -> list[np.ndarray]:
        labels = require_labels(examples, "Dirichlet")
        require_clients(self.num_clients, len(labels), "Dirichlet")
        random = numpy_generator(seed, "partition")
        _, compact, counts = np.unique(labels, return_inverse=True, return_counts=True)
        shares = random.dirichlet(self.alpha * counts / counts.sum(), size=self.num_clients)
        return assign_by_shares(compact, shares, self.rotate, random)


def assign_by_shares(
    labels: np.ndarray, shares: np.ndarray, rotate: bool, random: np.random.Generator
) -> list[np.ndarray]:
    """floor(N / C) positions for each client, of labels drawn from the clients' shares [C, K]."""
    turns = take_turns(len(shares), len(labels) // len(shares), rotate, random)
    drawn = draw_labels(shares, np.bincount(labels), turns, random)
    return check_assignment(take_examples(labels, turns, drawn, len(shares), random), len(labels))


def take_turns(num_clients: int, draws_each: int, rotate: bool, random: np.random.Generator) -> np.ndarray:
    """The client of each draw: int64 [draws_each * num_clients]."""
    if rotate:
        passes = np.tile(np.arange(num_clients), (draws_each, 1))
        return random.permuted(passes, axis=1).reshape(-1)
    return np.repeat(random.permutation(num_clients), draws_each)


def draw_labels(shares: np.ndarray, counts: np.ndarray, turns: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """The label of each draw: int64 [T], none more often than it occurs."""
    remaining = counts.astype(np.int64)
    drawn = np.empty(len(turns), dtype=np.int64)
    start = 0
    while start < len(turns):
        weights = shares[turns[start : start + BLOCK]] * (remaining > 0)
        # weights below the range of normal numbers cannot be scaled to probabilities
        spent = weights.sum(axis=1) < np.finfo(np.float64).tiny
        weights[spent] = remaining
        cumulative = weights.cumsum(axis=1)
        thresholds = random.random(len(weights)) * cumulative[:, -1]
        picks = (cumulative <= thresholds[:, None]).sum(axis=1)
        accepted = picks[: until_exhausted(picks, remaining)]
        drawn[start : start + len(accepted)] = accepted
        remaining -= np.bincount(accepted, minlength=len(remaining))
        start += len(accepted)
    return drawn


def until_exhausted(picks: np.ndarray, remaining: np.ndarray) -> int:
    """The number of picks until the first label runs out, after which draws must not see that label."""
    first = len(picks)
    for label in np.flatnonzero(np.bincount(picks, minlength=len(remaining)) >= np.maximum(remaining, 1)):
        first = min(first, int(np.flatnonzero(picks == label)[remaining[label] - 1]) + 1)
    return first


def take_examples(
    labels: np.ndarray, turns: np.ndarray, drawn: np.ndarray, num_clients: int, random: np.random.Generator
) -> list[np.ndarray]:
    """The positions each client gets: the i-th draw of a label takes the i-th of its examples in random order."""
    order = random.permutation(len(labels))
    pools = order[np.argsort(labels[order], kind="stable")]  # label by label
    counts, taken = np.bincount(labels), np.bincount(drawn)
    first = np.cumsum(counts) - counts  # where each label's pool starts
    picks = [start + np.arange(number) for start, number in zip(first, taken)]
    positions = np.empty(len(turns), dtype=np.int64)
    positions[np.argsort(drawn, kind="stable")] = pools[np.concatenate(picks)]
    by_client = positions[np.argsort(turns, kind="stable")]
    return np.split(by_client, np.cumsum(np.bincount(turns, minlength=num_clients))[:-1])


def concentration(value: float, name: str) -> float:
    if not 0 < value < float("inf"):
        raise ValueError(f"{name} must be above 0 and finite, got {value}; use IID for equal label shares")
    return float(value)


class ByClass(Partition):
    """Client k holds all images of the k-th class that occurs, or of a group of consecutive ones; nothing is random.

    Args:
        classes_per_client: classes that a client holds: client 0 has the first ones, and so on.

    Raises:
        ValueError: for a number below 1; in `assign` and `names` if the classes do not divide into groups, or there are
            none.

    Examples:
        >>> from fedgen import ByClass, Digits
        >>> [len(part) for part in ByClass(classes_per_client=5).assign(Digits().read("train"), seed=0)]
        [901, 896]
    """

    def __init__(self, classes_per_client: int = 1) -> None:
        self.classes_per_client = at_least_one(classes_per_client, "classes_per_client")

    def assign(self, examples: Examples, seed: int) -> list[np.ndarray]:
        names = self.names(examples)
        group = np.unique(examples.labels.numpy(), return_inverse=True)[1] // self.classes_per_client
        return check_assignment([np.flatnonzero(group == client) for client in range(len(names))], len(examples), names)

    def names(self, examples: Examples) -> list[str]:
        """The classes' names ("class 3" for a class named "3"), joined by " + " where a client holds several."""
        found = [examples.classes[label] for label in np.unique(require_labels(examples, "ByClass"))]
        width, total = self.classes_per_client, len(found)
        if total % width:
            raise ValueError(f"classes_per_client={width} does not divide the {total} classes of {examples.name}")
        named = [f"class {name}" if name.isdigit() else name for name in found]
        return [" + ".join(named[start : start + width]) for start in range(0, total, width)]


class Shards(Partition):
    """Examples sorted by label (random order within a label), cut into shards that clients get at random.

    Shard sizes differ by at most one, and a shard mostly holds one class, so that a client sees few classes.

    Args:
        num_clients: the number of clients.
        shards_per_client: shards of each client (in McMahan et al. 2017, 2 of 200 for each of 100 clients).
    """

    def __init__(self, num_clients: int, shards_per_client: int = 2) -> None:
        self.num_clients = at_least_one(num_clients, "num_clients")
        self.shards_per_client = at_least_one(shards_per_client, "shards_per_client")

    def assign(self, examples: Examples, seed: int) -> list[np.ndarray]:
        labels = require_labels(examples, "Shards")
        num_shards = self.num_clients * self.shards_per_client
        require_clients(self.num_clients, len(examples), "Shards")
        if num_shards > len(examples):
            raise ValueError(
                f"Shards cannot cut {len(examples)} examples into {self.num_clients} x {self.shards_per_client} "
                f"= {num_shards} shards; use fewer clients or fewer shards_per_client"
            )
        random = numpy_generator(seed, "partition")
        order = random.permutation(len(labels))
        shards = np.array_split(order[np.argsort(labels[order], kind="stable")], num_shards)
        chosen = random.permutation(num_shards).reshape(self.num_clients, self.shards_per_client)
        return check_assignment([np.concatenate([shards[shard] for shard in own]) for own in chosen], len(labels))


class CoarseDirichlet(Partition):
    """floor(N / num_clients) examples for each client: shares of groups first, then of the labels within each group.

    A client draws q ~ Dirichlet(alpha_coarse * p) over the groups and, within each group g, r_g ~ Dirichlet(alpha_fine
    * p_g) over its labels, where p and p_g are the frequencies in the data; a label's share is q_g * r_g. Both alphas
    are totals, as `Dirichlet` has them: on CIFAR-100 the released defaults 10 and 10 are 0.5 a group and 2 a label,
    and the released grid's 10 and 1000 make clients that differ in groups and are even within them. The N mod
    num_clients examples left over belong to no client.

    This is section 4.1 of Yuan et al. 2022, for CIFAR-100's 20 groups of 5 classes. Once a label is used up, a client's
    shares are renormalised over all labels, as in the released code; the Pachinko allocation of Reddi et al. 2020 does
    so within the label's group.

    Args:
        num_clients: the number of clients.
        alpha_coarse: total concentration over groups, above 0: small for few groups a client.
        alpha_fine: total concentration over the labels of a group, above 0: small for few labels of each group.
        groups: "cifar100" for its 20 superclasses, or class names by group; every class that occurs in one group.
        rotate: as in `Dirichlet`.

    Raises:
        ValueError: for a value out of range; in `assign` if a class that occurs is in no group or in several, or there
            are fewer examples than clients.
    """

    def __init__(
        self,
        num_clients: int,
        alpha_coarse: float = 10.0,
        alpha_fine: float = 10.0,
        groups: str | Mapping[str, Sequence[str]] = "cifar100",
        rotate: bool = True,
    ) -> None:
        self.num_clients = at_least_one(num_clients, "num_clients")
        self.alpha_coarse = concentration(alpha_coarse, "alpha_coarse")
        self.alpha_fine = concentration(alpha_fine, "alpha_fine")
        if isinstance(groups, str) and groups not in NAMED_GROUPS:
            raise ValueError(f"groups {groups!r} are not known; use {', '.join(NAMED_GROUPS)}, or class names by group")
        self.groups = groups
        self.rotate = rotate

    def assign(self, examples: Examples, seed: int) -> list[np.ndarray]:
        labels = require_labels(examples, "CoarseDirichlet")
        require_clients(self.num_clients, len(labels), "CoarseDirichlet")
        random = numpy_generator(seed, "partition")
        present, compact, counts = np.unique(labels, return_inverse=True, return_counts=True)
        named = NAMED_GROUPS[self.groups] if isinstance(self.groups, str) else self.groups
        group_of = group_of_class(examples, named, present)
        shares = draw_shares(counts, group_of, self.alpha_coarse, self.alpha_fine, self.num_clients, random)
        return assign_by_shares(compact, shares, self.rotate, random)

    def settings(self) -> dict[str, Any]:
        given: Any = self.groups
        if isinstance(given, Mapping):
            given = {name: list(classes) for name, classes in given.items()}
        return {**super().settings(), "groups": given}


def group_of_class(examples: Examples, groups: Mapping[str, Sequence[str]], labels: np.ndarray) -> np.ndarray:
    """The group of each of these labels' classes, counted in the order of `groups`: int64 [number of labels]."""
    found = []
    for name in (examples.classes[label] for label in labels):
        homes = [group for group, classes in enumerate(groups.values()) if name in classes]
        if len(homes) != 1:
            raise ValueError(
                f"class {name!r} of {examples.name} is in {len(homes)} of the {len(groups)} groups; name every class "
                "in one of them"
            )
        found.append(homes[0])
    return np.array(found, dtype=np.int64)


def draw_shares(
    counts: np.ndarray,
    group_of: np.ndarray,
    alpha_coarse: float,
    alpha_fine: float,
    num_clients: int,
    random: np.random.Generator,
) -> np.ndarray:
    """Each client's label probabilities: float64 [num_clients, K]."""
    present, compact = np.unique(group_of, return_inverse=True)
    sizes = np.bincount(compact, weights=counts)
    coarse = random.dirichlet(alpha_coarse * sizes / sizes.sum(), size=num_clients)
    shares = np.empty((num_clients, len(counts)))
    for group in range(len(present)):
        members = np.flatnonzero(compact == group)
        fine = random.dirichlet(alpha_fine * counts[members] / sizes[group], size=num_clients)
        shares[:, members] = coarse[:, [group]] * fine
    return shares
