"""Clients that are random samples of the whole: the control without heterogeneity."""

import numpy as np

from fedgen.clients.partitions.partition import Partition, at_least_one, check_assignment, require_clients
from fedgen.data.examples import Examples
from fedgen.seeds import numpy_generator


class IID(Partition):
    """All examples in random order, cut into `num_clients` parts whose sizes differ by at most one."""

    def __init__(self, num_clients: int) -> None:
        self.num_clients = at_least_one(num_clients, "num_clients")

    def assign(self, examples: Examples, seed: int) -> list[np.ndarray]:
        require_clients(self.num_clients, len(examples), "IID")
        order = numpy_generator(seed, "partition").permutation(len(examples))
        return check_assignment(np.array_split(order, self.num_clients), len(examples))
