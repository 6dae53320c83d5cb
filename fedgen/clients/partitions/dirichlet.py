"""Clients of equal size with Dirichlet label shares: Yuan et al. 2022, section 4.1, after Hsu et al. 2019.

Differs from the code released with Yuan et al. in three ways: which images of a label a client gets is random (theirs
pops them in the data set's order), small alphas work (theirs divides 0 by 0 once a client's labels are used up), and
draws are made in blocks (equal in distribution to one by one).
"""

import numpy as np

from fedgen.clients.partitions.partition import (
    Partition,
    at_least_one,
    check_assignment,
    require_clients,
    require_labels,
)
from fedgen.data.examples import Examples
from fedgen.seeds import numpy_generator

BLOCK = 1024


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
        return check_assignment(deal_by_shares(compact, shares, self.rotate, random), len(labels))


def deal_by_shares(
    labels: np.ndarray, shares: np.ndarray, rotate: bool, random: np.random.Generator
) -> list[np.ndarray]:
    """The positions each client gets: floor(N / num_clients) each, of labels drawn from the client's shares."""
    turns = take_turns(len(shares), len(labels) // len(shares), rotate, random)
    drawn = draw_labels(shares, np.bincount(labels), turns, random)
    return take_examples(labels, turns, drawn, len(shares), random)


def take_turns(num_clients: int, draws_each: int, rotate: bool, random: np.random.Generator) -> np.ndarray:
    """Whose turn it is at each draw: int64 [draws_each * num_clients]."""
    if rotate:
        passes = np.tile(np.arange(num_clients), (draws_each, 1))
        return random.permuted(passes, axis=1).reshape(-1)
    return np.repeat(random.permutation(num_clients), draws_each)


def draw_labels(shares: np.ndarray, counts: np.ndarray, turns: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """The label each turn draws: int64 [T], never more of a label than there are.

    Turn t draws from its client's shares over the labels not used up yet; a client whose labels are all used up draws
    in proportion to the examples that remain of each label (counted at the start of the block).
    """
    remaining = counts.astype(np.int64)
    drawn = np.empty(len(turns), dtype=np.int64)
    start = 0
    while start < len(turns):
        weights = shares[turns[start : start + BLOCK]] * (remaining > 0)
        # A row of weights below the normal range cannot be scaled to probabilities any more.
        spent = weights.sum(axis=1) < np.finfo(np.float64).tiny
        weights[spent] = remaining
        picks = sample_rows(weights, random)
        accepted = picks[: until_exhausted(picks, remaining)]
        drawn[start : start + len(accepted)] = accepted
        remaining -= np.bincount(accepted, minlength=len(remaining))
        start += len(accepted)
    return drawn


def sample_rows(weights: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """A column for each row, with probability proportional to its weight: int64 [R] from weights [R, K]."""
    cumulative = weights.cumsum(axis=1)
    thresholds = random.random(len(weights)) * cumulative[:, -1]
    return (cumulative <= thresholds[:, None]).sum(axis=1)


def until_exhausted(picks: np.ndarray, remaining: np.ndarray) -> int:
    """Count the picks that can be taken until the first label runs out; the draws after it must not see that label."""
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
    """The value of a constructor's Dirichlet concentration; ValueError unless above 0 and finite."""
    if not 0 < value < float("inf"):
        raise ValueError(f"{name} must be above 0 and finite, got {value}; use IID for equal label shares")
    return float(value)
