"""Which clients take part in a round."""

import numpy as np

from fedgen.seeds import numpy_generator


def sample_cohort(num_clients: int, size: int | None, seed: int, round: int) -> list[int]:
    """The round's clients, sorted: all of them if size is None, else `size` drawn uniformly without replacement.

    A function of (seed, round) alone, so a resumed run draws the same cohorts.

    Raises:
        ValueError: if size is not in 1..num_clients.
    """
    if size is None:
        return list(range(num_clients))
    if not 1 <= size <= num_clients:
        raise ValueError(f"cohort_size={size}, but there are {num_clients} clients; choose 1 to {num_clients}, or null")
    draws = numpy_generator(seed, "cohort", round)
    return sorted(int(client) for client in draws.choice(np.arange(num_clients), size, replace=False))
