"""Draws of each round's clients."""

from collections.abc import Sequence
from typing import Any

from lightning.pytorch.utilities.exceptions import MisconfigurationException

from fedgen.clients.cohort import sample_cohort
from fedgen.clients.samplers.sampler import CohortSampler


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

        Args:
            clients: of the data, as far as those name them.
            rounds: of the run; negative where nobody says.

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
        """Return the clients of a round, one that counts several times as often.

        Args:
            num_clients: of the federation.
            seed: base of all draws.
            round: from 0.
        """
        if self._sampler is None:
            return sample_cohort(num_clients, self._size, seed, round)
        return self._sampler.draw(self._examples, self._size, seed, round)

    def sizes(self, clients: Sequence[Any] | None) -> tuple[int, int]:
        """Return the number of clients, as far as the data name them, and of those that a round draws."""
        number = len(clients or ()) or self._size or 1
        return number, min(self._size or number, number)
