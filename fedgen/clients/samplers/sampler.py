"""The base of samplers, and uniform draws."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from fedgen.clients.cohort import sample_cohort


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
