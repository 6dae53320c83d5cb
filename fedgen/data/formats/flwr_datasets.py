"""Images that the library flwr-datasets has partitioned (its 0.6; nothing of it is imported here)."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Protocol

import torch

from fedgen.data.examples import Examples, Split
from fedgen.data.formats.huggingface import ImageTable
from fedgen.data.formats.tables import Table, dataset_table, import_datasets
from fedgen.data.optional_attributes import optional


class FlowerPartitioner(Protocol):
    @property
    def num_partitions(self) -> int: ...

    def load_partition(self, partition_id: int) -> Any: ...


class DescribedPartitioner:
    """A partitioner that says more of itself, as most of flwr-datasets' do.

    Attributes:
        is_dataset_assigned: gives whether it has its data set.
        partition_id_to_natural_id: names of the partitions by their numbers.
    """

    is_dataset_assigned: Callable[[], bool] | None = None
    partition_id_to_natural_id: Mapping[int, Any] = MappingProxyType({})


class FlowerDataset(ImageTable):
    """Images of partitioners of flwr-datasets, uint8 [N, C, H, W], partition by partition, each one an owner.

    For whoever has a partitioned data set there; `Natural` makes a client of each partition. Natural ids are the
    owners' names, else "partition 0" and so on. Rows of no partition are left out. For another rule over data of this
    kit there is the partition `FlowerPartition`.

        writers = NaturalIdPartitioner(partition_by="writer_id")
        federated = FederatedDataset(dataset="flwrlabs/femnist", partitioners={"train": writers})
        data = FlowerDataset(federated.partitioners, "femnist", channels=1)

    Args:
        partitioners: of the split "train", and of "test" if there is one, each with its `dataset` assigned: those of a
            FederatedDataset, or any after `partitioner.dataset = ...` with a `datasets.Dataset`.
        name: what stored scores call the data.
        image_column: as in `HuggingFace`; images must be stored in the table.
        label_column: as in `HuggingFace`.
        size: side to which images are resized, as in `HuggingFace`. Then the name ends in it.
        channels: 3 for RGB, 1 for grey; images are converted.
        in_memory: False reads each image when it is needed, with the `num_workers` of the data module. Then a damaged
            image, or one of another size, is found when it is read.

    Raises:
        ValueError: without a train partitioner, or for other splits.
    """

    def __init__(
        self,
        partitioners: Mapping[str, FlowerPartitioner],
        name: str,
        image_column: str | None = None,
        label_column: str | None = None,
        size: int | None = None,
        channels: int = 3,
        in_memory: bool = True,
    ) -> None:
        if "train" not in partitioners or not {"train", "test"} >= set(partitioners):
            raise ValueError(
                f"partitioners of the splits {list(partitioners)}: give one as 'train', and perhaps one as 'test'"
            )
        super().__init__(name, image_column, label_column, size, channels, in_memory)
        self.partitioners = dict(partitioners)
        self.splits = tuple(partitioners)

    def read(self, split: Split) -> Examples:
        """The images of a split's partitions.

        ValueError also if a partitioner has no dataset, its partitions have no rows or not the same columns, or as
        `HuggingFace` of columns and images.
        """
        table, counts = self._open(split)
        train = table if split == "train" else self._open("train")[0]
        names = tuple(partition_names(self.partitioners[split], "partition"))
        owners = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
        return self.load_table(table, train, split, (owners, names))

    def _open(self, split: str) -> tuple[Table, list[int]]:
        """All rows of a split's partitions, one after the other, and how many each has."""
        import_datasets()
        parts = load_partitions(self.partitioners[split], f"{self.name}/{split}")
        table = dataset_table(f"{self.name}, split {split}", parts)
        if not table.count:
            raise ValueError(f"{table.source}: none of the {len(parts)} partitions has a row")
        return table, [len(part) for part in parts]


def load_partitions(partitioner: FlowerPartitioner, name: str) -> list[Any]:
    """The partitions as `datasets.Dataset`s; ValueError without a dataset, or if their columns are not the same."""
    kind = type(partitioner).__name__
    is_assigned = optional(partitioner, DescribedPartitioner, "is_dataset_assigned")
    if is_assigned is not None and not is_assigned():
        raise ValueError(
            f"the {kind} of {name} has no dataset; give `partitioners` of its FederatedDataset, or assign its `dataset`"
        )
    parts = [partitioner.load_partition(number) for number in range(partitioner.num_partitions)]
    for number, part in enumerate(parts):
        if part.features != parts[0].features:
            raise ValueError(
                f"partition {number} of {name} has the columns {', '.join(part.features)}, but partition 0 has "
                f"{', '.join(parts[0].features)}: {kind} deals columns; use a partitioner that deals rows"
            )
    return parts


def partition_names(partitioner: FlowerPartitioner, kind: str) -> list[str]:
    """The partitions' natural ids where the partitioner has them, else their numbers after the kind: "client 0"."""
    count = partitioner.num_partitions
    natural = optional(partitioner, DescribedPartitioner, "partition_id_to_natural_id")
    return [str(natural.get(number, f"{kind} {number}")) for number in range(count)]
