"""Draws in proportion to size (Li et al. 2020, "On the Convergence of FedAvg on Non-IID Data", arXiv 1907.02189)."""

from collections.abc import Sequence

import numpy as np

from fedgen.clients.samplers.sampler import CohortSampler
from fedgen.seeds import numpy_generator


class SizeSampler(CohortSampler):
    """Draws `cohort_size` times, with replacement, client k with probability n_k / n (scheme I of the paper).

    Those that are drawn count equally, as often as they are drawn: with p_k = n_k / n and K draws the server's model is
    sum_k (times_k / K) w_k, whose expectation over the draws is sum_k p_k w_k, what FedAvg gives if all take part. A
    uniform draw weighted by n_k has another expectation: its weights are normalised within the cohort. A client that
    is drawn twice takes one turn, so that a round has `cohort_size` turns at most.

    It takes `client_weights="uniform"`. Without a `cohort_size` there are as many draws as clients.

    Examples:
        >>> from fedgen.clients.samplers import SizeSampler
        >>> drawn = [SizeSampler().draw([1, 1, 98], 2, seed=0, round=round) for round in range(100)]
        >>> sum(cohort == [2, 2] for cohort in drawn) > 90
        True
    """

    weighs = True

    def draw(self, sizes: Sequence[int], size: int | None, seed: int, round: int) -> list[int]:
        chances = np.asarray(sizes, dtype=np.float64)
        draws = numpy_generator(seed, "cohort by size", round)
        found = draws.choice(len(sizes), len(sizes) if size is None else size, p=chances / chances.sum())
        return sorted(int(client) for client in found)
