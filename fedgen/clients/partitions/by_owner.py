"""Clients that the data name: a writer's digits, a photographer's pictures (Yuan et al. 2022, section 4.1)."""

import importlib
import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedgen.clients.partitions.partition import Partition, at_least_one, check_assignment
from fedgen.data.examples import Examples
from fedgen.data.formats.huggingface import FlowerPartitioner, load_partitions, partition_names
from fedgen.data.formats.tables import import_datasets
from fedgen.extras import need
from fedgen.seeds import derive, numpy_generator


class Natural(Partition):
    """A client for each owner that the examples name, under the owner's name and in the order of `owner_names`.

    Args:
        min_examples: owners with fewer are left out.
        max_examples: what a client keeps at most, drawn by the seed and the owner's name, so that a client of a smaller
            cap holds a part of that of a larger one; everything if None.

    Raises:
        ValueError: for a number below 1; in `assign` and `names` if the examples name no owners, or every owner has too
            few.
    """

    def __init__(self, min_examples: int = 1, max_examples: int | None = None) -> None:
        self.min_examples = at_least_one(min_examples, "min_examples")
        self.max_examples = None if max_examples is None else at_least_one(max_examples, "max_examples")

    def assign(self, examples: Examples, seed: int) -> list[np.ndarray]:
        owned = self._owned(examples)
        if self.max_examples is not None:
            for name, own in owned.items():
                owned[name] = numpy_generator(seed, "partition", name).permutation(own)[: self.max_examples]
        return check_assignment(list(owned.values()), len(examples), list(owned))

    def names(self, examples: Examples) -> list[str]:
        return list(self._owned(examples))

    def _owned(self, examples: Examples) -> dict[str, np.ndarray]:
        if examples.owners is None:
            raise ValueError(
                f"Natural needs each example's owner, but data {examples.name} has none; name them (ImageFolder:"
                " owner_folders=true for a folder per owner; HuggingFace: owner_column; in Python: a"
                " dictionary of clients, or owners=), take data with owners (FEMNIST, CelebA with identities,"
                " PhotoPatches, StyleShift, FlowerDataset), or another partition"
            )
        owners = examples.owners.numpy()
        parts = np.split(np.argsort(owners, kind="stable"), np.cumsum(np.bincount(owners))[:-1])
        owned = {name: part for name, part in zip(examples.owner_names, parts) if len(part)}
        return large_enough(owned, self.min_examples, examples.name)


def large_enough(clients: Mapping[str, np.ndarray], least: int, data: str) -> dict[str, np.ndarray]:
    kept = {name: own for name, own in clients.items() if len(own) >= least}
    if not kept:
        largest = max(map(len, clients.values()), default=0)
        raise ValueError(
            f"none of the {len(clients)} owners of {data} has min_examples={least}; the largest has {largest}"
        )
    return kept


class FlowerPartition(Partition):
    """The clients of a partitioner of flwr-datasets, which sees the columns "label" and "owner", where there are any.

    Its options are for example `{"num_partitions": 10, "partition_by": "label", "alpha": 0.5}` of a
    `DirichletPartitioner`. A partitioner that takes a seed and is given none gets one of this partition's. Rows come in
    random order, by the seed, as a FederatedDataset shuffles them by default: some partitioners cut them up as they
    come. Needs the library: pip install fedgen[flwr-datasets].

    Args:
        partitioner: a class of flwr_datasets.partitioner by its name, or any class like them by its path.
        options: its arguments, plain types for partition files.
        min_examples: natural ids with fewer are left out; other partitioners, whose clients are numbered, take 1.

    Raises:
        ImportError: in `assign` and `names`, if the library is not installed.
        ValueError: likewise, if it has no such class, the class does not take the options, or it assigns columns; and
            what the partitioner itself raises for its options or the data.
    """

    def __init__(self, partitioner: str, options: Mapping[str, Any] | None = None, min_examples: int = 1) -> None:
        self.partitioner = partitioner
        self.options = dict(options or {})
        self.min_examples = at_least_one(min_examples, "min_examples")
        if min_examples > 1 and "num_partitions" in self.options:
            raise ValueError(
                f"min_examples={min_examples}: {partitioner} has a fixed number of clients; omit min_examples"
            )

    def assign(self, examples: Examples, seed: int) -> list[np.ndarray]:
        assigned = self._assigned(examples, seed)
        return check_assignment(list(assigned.values()), len(examples), list(assigned))

    def _assigned(self, examples: Examples, seed: int) -> dict[str, np.ndarray]:
        made = self._made(examples, seed)
        parts = [np.array(part["position"][:]) for part in load_partitions(made, examples.name)]
        found = dict(zip(partition_names(made, "client"), parts))
        return large_enough(found, self.min_examples, examples.name) if self.min_examples > 1 else found

    def names(self, examples: Examples) -> list[str]:
        """Natural ids where the partitioner has them, else "client 0" and so on."""
        count = self.options.get("num_partitions")
        if count is not None:  # known without assigning, which may fail or not by the seed
            return [f"client {client}" for client in range(count)]
        if self.min_examples > 1:
            return list(self._assigned(examples, 0))
        return partition_names(self._made(examples, 0), "client")

    def _made(self, examples: Examples, seed: int) -> FlowerPartitioner:
        """The partitioner with the examples' positions as its dataset, with labels and owners' names where known."""
        kind = find_class(self.partitioner)
        options = dict(self.options)
        if "seed" in inspect.signature(kind).parameters:
            options.setdefault("seed", derive(seed, "partition") % 2**32)
        try:
            made = kind(**options)
        except TypeError as error:
            raise ValueError(f"{self.partitioner} does not take the options {options} ({error})") from error
        order = numpy_generator(seed, "partition", "order").permutation(len(examples))
        columns: dict[str, Any] = {"position": order}
        if examples.is_labelled:
            columns["label"] = examples.labels.numpy()[order]
        if examples.owners is not None:
            columns["owner"] = [examples.owner_names[owner] for owner in examples.owners.numpy()[order]]
        made.dataset = import_datasets().Dataset.from_dict(columns)
        return made


def find_class(name: str) -> Any:
    """A class of flwr_datasets.partitioner by its name, or another by its path."""
    module, _, attribute = name.rpartition(".")
    home = (
        importlib.import_module(module)
        if module
        else need("flwr_datasets.partitioner", "flwr-datasets", f"FlowerPartition's {name}")
    )
    if not hasattr(home, attribute):
        known = [known for known in dir(home) if known.endswith("Partitioner")]
        raise ValueError(f"{home.__name__} has no {attribute!r}; it has {', '.join(known)}")
    return getattr(home, attribute)
