"""Cohorts: the clients that take part in a round."""

import numpy as np

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
