"""Clients that differ in size alone: random samples of the whole, of log-normal sizes."""

import numpy as np

from fedgen.clients.partitions.partition import Partition, at_least_one, check_assignment, require_clients
from fedgen.data.examples import Examples
from fedgen.seeds import numpy_generator


class BySize(Partition):
    """All examples in random order, cut into parts whose sizes are in proportion to exp(spread * z), z ~ N(0, 1).

    Labels are IID, so that what differs from `IID` is due to sizes. At spread 1 about one client in six has more than
    2.7 times the median client's examples, and of many clients the largest tenth holds 39 % of all examples.

    Args:
        num_clients: the number of clients.
        spread: standard deviation of the logarithm of a client's size, at least 0; 0 for equal sizes.
        min_examples: what every client gets beforehand; the rest is dealt by the rule above.
    """

    def __init__(self, num_clients: int, spread: float = 1.0, min_examples: int = 1) -> None:
        self.num_clients = at_least_one(num_clients, "num_clients")
        self.min_examples = at_least_one(min_examples, "min_examples")
        if not 0 <= spread < float("inf"):
            raise ValueError(f"spread must be at least 0 and finite, got {spread}")
        self.spread = float(spread)

    def assign(self, examples: Examples, seed: int) -> list[np.ndarray]:
        require_clients(self.num_clients, len(examples), "BySize")
        rest = len(examples) - self.num_clients * self.min_examples
        if rest < 0:
            raise ValueError(
                f"BySize cannot give {self.num_clients} clients min_examples={self.min_examples} of {len(examples)} "
                "examples; use fewer clients or smaller ones"
            )
        random = numpy_generator(seed, "partition")
        logarithms = self.spread * random.standard_normal(self.num_clients)
        weights = np.exp(logarithms - logarithms.max())  # the largest is 1, so that no spread overflows
        sizes = self.min_examples + apportion(rest, weights)
        order = random.permutation(len(examples))
        return check_assignment(np.split(order, np.cumsum(sizes)[:-1]), len(examples))


def apportion(total: int, weights: np.ndarray) -> np.ndarray:
    """Whole numbers that sum to `total`, within one of their exact shares by weight (largest remainders): int64 [C]."""
    exact = total * (weights / weights.sum())
    whole = np.floor(exact).astype(np.int64)
    served = np.argsort(whole - exact, kind="stable")[: total - whole.sum()]
    whole[served] += 1
    return whole
