"""Partitions: which client owns which example."""

from typing import TYPE_CHECKING

from fedgen.lazy import load_on_use

if TYPE_CHECKING:
    from fedgen.clients.partitions.by_label import ByClass, CoarseDirichlet, Dirichlet, Shards
    from fedgen.clients.partitions.by_owner import FlowerPartition, Natural
    from fedgen.clients.partitions.clustered import Clustering, Semantic, VarianceLimited
    from fedgen.clients.partitions.partition import IID, BySize, Partition, check_assignment
    from fedgen.clients.partitions.saved import PartitionFile, SavedPartition, load_partition, save_partition

__all__ = [
    "IID",
    "ByClass",
    "BySize",
    "Clustering",
    "CoarseDirichlet",
    "Dirichlet",
    "FlowerPartition",
    "Natural",
    "Partition",
    "PartitionFile",
    "SavedPartition",
    "Semantic",
    "Shards",
    "VarianceLimited",
    "check_assignment",
    "load_partition",
    "save_partition",
]

load_on_use(__name__)
