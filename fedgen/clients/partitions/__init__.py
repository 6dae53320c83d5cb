"""Partitions: which client owns which example."""

from fedgen.clients.partitions.by_class import ByClass
from fedgen.clients.partitions.partition import Partition, check_assignment

__all__ = ["ByClass", "Partition", "check_assignment"]
