"""The base of samplers, and uniform draws."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from fedgen.seeds import numpy_generator


def sample_cohort(num_clients: int, size: int | None, seed: int, round: int) -> list[int]:
    """The round's clients, sorted: all of them if size is None, else `size` drawn uniformly without replacement.

    A function of (seed, round) alone, so a resumed run draws the same cohorts.

    Raises:
        ValueError: if size is not in 1..num_clients.

    Examples:
        >>> from fedgen.clients import sample_cohort
        >>> len(sample_cohort(num_clients=10, size=3, seed=0, round=7))
        3
        >>> sample_cohort(num_clients=3, size=None, seed=0, round=0)
        [0, 1, 2]
    """
    if size is None:
        return list(range(num_clients))
    if not 1 <= size <= num_clients:
        raise ValueError(f"cohort_size={size}, but there are {num_clients} clients; choose 1 to {num_clients}, or null")
    draws = numpy_generator(seed, "cohort", round)
    return sorted(int(client) for client in draws.choice(np.arange(num_clients), size, replace=False))


class CohortSampler(ABC):
    """Draws the clients of each round.

    What `draw` gives depends on its arguments and on what `start` was told alone, so that a resumed run, and each of
    several processes, draws the same cohorts.

    Attributes:
        weighs: whether drawing itself gives clients their weights, so that those that are drawn count equally.
        draws_uniformly: whether all clients that are `available` are drawn alike, without replacement.

    Examples:
        >>> from fedgen.clients.samplers import CohortSampler
        >>> class Alternating(CohortSampler):
        ...     def draw(self, sizes, size, seed, round):
        ...         return list(range(round % 2, len(sizes), 2))
        >>> Alternating().draw([10, 10, 10, 10], None, seed=0, round=1)
        [1, 3]
    """

    weighs = False
    draws_uniformly = False

    def start(self, names: Sequence[str], sizes: Sequence[int], rounds: int) -> None:  # noqa: B027 - most need nothing
        """Learns who the clients are; before the first round.

        Args:
            names: of all clients that train.
            sizes: their numbers of training examples.
            rounds: that are planned; -1 without end.

        Raises:
            ValueError: for clients among whom it cannot draw.
        """

    def available(self, clients: Sequence[int], round: int) -> list[int]:
        """Return those of some clients that may be drawn for a round; all of them by default.

        Args:
            clients: by number.
            round: from 0.
        """
        return list(clients)

    @abstractmethod
    def draw(self, sizes: Sequence[int], size: int | None, seed: int, round: int) -> list[int]:
        """Return the round's clients by number, rising; one that counts several times as often.

        Nobody, where nobody can be drawn: the round then passes without training.

        Args:
            sizes: training examples of every client.
            size: `cohort_size`; None for all.
            seed: base of all draws.
            round: from 0.
        """


class UniformSampler(CohortSampler):
    """Draws uniformly without replacement: what a strategy does without a sampler.

    Examples:
        >>> from fedgen.clients.samplers import UniformSampler
        >>> UniformSampler().draw([5, 5, 90], None, seed=0, round=0)
        [0, 1, 2]
    """

    draws_uniformly = True

    def draw(self, sizes: Sequence[int], size: int | None, seed: int, round: int) -> list[int]:
        return sample_cohort(len(sizes), size, seed, round)


class CohortDraws:
    """The clients of each round, drawn uniformly or by a sampler.

    Args:
        size: clients a round; None takes all.
        sampler: draws in place of the uniform draw.
    """

    def __init__(self, size: int | None, sampler: CohortSampler | None) -> None:
        self._size, self._sampler = size, sampler
        self._examples: list[int] = []  # of the clients among whom the sampler draws

    def start(self, clients: Sequence[Any] | None, rounds: int) -> None:
        """Tell the sampler among whom it draws, before the first round.

        Raises:
            MisconfigurationException: for a sampler where the data name no clients.
        """
        if self._sampler is None:
            return
        if not clients:
            raise MisconfigurationException(
                f"{type(self._sampler).__name__} draws among clients, and the trainer's data module names none; pass a"
                " FederatedDataModule to fit"
            )
        self._examples = [len(client.train) for client in clients]
        self._sampler.start([str(client.name) for client in clients], self._examples, rounds)

    def draw(self, num_clients: int, seed: int, round: int) -> list[int]:
        """Return the clients of a round, one that counts several times as often."""
        if self._sampler is None:
            return sample_cohort(num_clients, self._size, seed, round)
        return self._sampler.draw(self._examples, self._size, seed, round)

    def sizes(self, clients: Sequence[Any] | None) -> tuple[int, int]:
        """Return the number of clients, as far as the data name them, and of those that a round draws."""
        number = len(clients or ()) or self._size or 1
        return number, min(self._size or number, number)
