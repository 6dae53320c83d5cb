"""Partitioners that look like those of flwr-datasets 0.6, for tests without it."""

import numpy as np


class Deal:
    """Deals rows in turn."""

    def __init__(self, num_partitions: int) -> None:
        self.num_partitions = num_partitions
        self.dataset = None

    def is_dataset_assigned(self) -> bool:
        return self.dataset is not None

    def load_partition(self, partition_id: int):
        return self.dataset.select(range(partition_id, len(self.dataset), self.num_partitions))


class ByColumn(Deal):
    """A partition for each value of a column, as NaturalIdPartitioner makes them."""

    def __init__(self, partition_by: str) -> None:
        self.partition_by = partition_by
        self.dataset = None

    @property
    def partition_id_to_natural_id(self) -> dict:
        return dict(enumerate(sorted(self.dataset.unique(self.partition_by))))

    @property
    def num_partitions(self) -> int:
        return len(self.partition_id_to_natural_id)

    def load_partition(self, partition_id: int):
        wanted = self.partition_id_to_natural_id[partition_id]
        return self.dataset.select(np.flatnonzero(np.array(self.dataset[self.partition_by][:]) == wanted))


class Columns(Deal):
    """Deals columns, as VerticalEvenPartitioner does."""

    def load_partition(self, partition_id: int):
        return self.dataset.select_columns(self.dataset.column_names[partition_id :: self.num_partitions])


class Seeded(Deal):
    """Deals rows in turn after a shuffle of its own."""

    def __init__(self, num_partitions: int, seed: int | None = 42) -> None:
        super().__init__(num_partitions)
        self.seed = seed
