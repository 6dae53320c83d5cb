"""Partitions: which client owns which example."""

from typing import TYPE_CHECKING

from fedgen.lazy import load_on_use

if TYPE_CHECKING:
    from fedgen.clients.partitions.by_class import ByClass
    from fedgen.clients.partitions.by_size import BySize
    from fedgen.clients.partitions.clusters.label_clusters import Clustering
    from fedgen.clients.partitions.clusters.semantic import Semantic
    from fedgen.clients.partitions.clusters.variance_limited import VarianceLimited
    from fedgen.clients.partitions.coarse_dirichlet import CoarseDirichlet
    from fedgen.clients.partitions.dirichlet import Dirichlet
    from fedgen.clients.partitions.flower_partition import FlowerPartition
    from fedgen.clients.partitions.natural import Natural
    from fedgen.clients.partitions.partition import IID, Partition, check_assignment
    from fedgen.clients.partitions.saved import PartitionFile, SavedPartition, load_partition, save_partition
    from fedgen.clients.partitions.shards import Shards

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
