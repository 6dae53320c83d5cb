"""Clients that hold a few runs of label-sorted data: McMahan et al. 2017 (arXiv 1602.05629), section 3."""

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


class Shards(Partition):
    """Examples sorted by label (random order within a label), cut into shards, and dealt to clients at random.

    Shard sizes differ by at most one, and a shard mostly holds one class, so that a client sees few classes.

    Args:
        num_clients: the number of clients.
        shards_per_client: shards a client gets (the paper deals 2 of 200 shards to each of 100 clients).
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
        deal = random.permutation(num_shards).reshape(self.num_clients, self.shards_per_client)
        return check_assignment([np.concatenate([shards[shard] for shard in hand]) for hand in deal], len(labels))
