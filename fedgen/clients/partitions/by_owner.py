"""Clients that the data itself names: a writer's digits, a photographer's pictures (Yuan et al. 2022, section 4.1)."""

import importlib
import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedgen.clients.partitions.partition import Partition, at_least_one, check_assignment
from fedgen.data.examples import Examples
from fedgen.data.formats.arrow import import_datasets
from fedgen.data.formats.flwr_datasets import FlowerPartitioner, load_partitions, partition_names
from fedgen.extras import need
from fedgen.seeds import derive, numpy_generator


class Natural(Partition):
    """A client for each owner that the examples name, under the owner's name and in the order of `owner_names`.

    Args:
        min_examples: owners with fewer are no clients.
        max_examples: what a client keeps at most, drawn by the seed and the owner's name, so that a client of a smaller
            cap holds a part of that of a larger one; everything if None.
    """

    def __init__(self, min_examples: int = 1, max_examples: int | None = None) -> None:
        self.min_examples = at_least_one(min_examples, "min_examples")
        self.max_examples = None if max_examples is None else at_least_one(max_examples, "max_examples")

    def assign(self, examples: Examples, seed: int) -> list[np.ndarray]:
        """Assign every example, as every partition does.

        Raises:
            ValueError: if the examples name no owners, or every owner has too few.
        """
        owned, names = self._owned(examples), self.names(examples)
        if self.max_examples is not None:
            owned = [
                numpy_generator(seed, "partition", name).permutation(own)[: self.max_examples]
                for own, name in zip(owned, names)
            ]
        return check_assignment(owned, len(examples), names)

    def names(self, examples: Examples) -> list[str]:
        """The owners' names."""
        owners = require_owners(examples)
        return [examples.owner_names[owners[own[0]]] for own in self._owned(examples)]

    def _owned(self, examples: Examples) -> list[np.ndarray]:
        """The positions of each owner who has enough."""
        owners = require_owners(examples)
        counts = np.bincount(owners, minlength=1)
        parts = np.split(np.argsort(owners, kind="stable"), np.cumsum(counts)[:-1])
        owned = [part for part in parts if len(part) >= self.min_examples]
        if not owned:
            raise ValueError(
                f"none of the {np.count_nonzero(counts)} owners of {examples.name} has "
                f"min_examples={self.min_examples}; the largest has {counts.max()}"
            )
        return owned


def require_owners(examples: Examples) -> np.ndarray:
    """The owners as an int64 array; ValueError if the examples do not name any."""
    if examples.owners is None:
        raise ValueError(
            f"Natural needs to know who made each example, but {examples.name} does not say; use data with owners "
            "(FEMNIST, CelebA with identities, PhotoPatches, StyleShift, ImageManifest, ImageFolder with owner_folders,"
            " HuggingFace with owner_column, FlowerDataset), or another partition"
        )
    return examples.owners.numpy()


HOME = "flwr_datasets.partitioner"


class FlowerPartition(Partition):
    """The clients of a partitioner of flwr-datasets, which sees the columns "label" and "owner", where there are any.

    Its options are its own, for example `{"num_partitions": 10, "partition_by": "label", "alpha": 0.5}` of a
    `DirichletPartitioner`. A partitioner that takes a seed and is given none gets one of this partition's. Rows come in
    random order, by the seed, as a FederatedDataset shuffles them by default: some partitioners cut them up as they
    come. Needs the library: pip install fedgen[flwr-datasets].

    Args:
        partitioner: a class of flwr_datasets.partitioner by its name, or any class like them by its path.
        options: its arguments, plain types for partition files.
        min_examples: natural ids with fewer are no clients; other partitioners, whose clients are numbered, take 1.
    """

    def __init__(self, partitioner: str, options: Mapping[str, Any] | None = None, min_examples: int = 1) -> None:
        self.partitioner = partitioner
        self.options = dict(options or {})
        self.min_examples = at_least_one(min_examples, "min_examples")
        if min_examples > 1 and "num_partitions" in self.options:
            raise ValueError(f"min_examples={min_examples}: {partitioner} deals to a number of clients; leave it out")

    def assign(self, examples: Examples, seed: int) -> list[np.ndarray]:
        """Assign every example, as every partition does.

        Raises:
            ImportError: if the library is not installed.
            ValueError: if it has no such class, the class does not take the options, or it deals columns; whatever the
                partitioner finds wrong with its options or the data.
        """
        dealt = self._dealt(examples, seed)
        return check_assignment(list(dealt.values()), len(examples), list(dealt))

    def _dealt(self, examples: Examples, seed: int) -> dict[str, np.ndarray]:
        """The positions of every client that has enough, by its name."""
        made = self._made(examples, seed)
        parts = [np.array(part["position"][:]) for part in load_partitions(made, examples.name)]
        found = dict(zip(partition_names(made, "client"), parts))
        kept = {name: part for name, part in found.items() if len(part) >= self.min_examples}
        if found and not kept:
            most = max(map(len, parts))
            raise ValueError(
                f"no client of {examples.name} has min_examples={self.min_examples}; the largest has {most}"
            )
        return kept if self.min_examples > 1 else found

    def names(self, examples: Examples) -> list[str]:
        """Natural ids where the partitioner has them, else "client 0" and so on."""
        count = self.options.get("num_partitions")
        if count is not None:  # known without dealing, which may fail or not by the seed
            return [f"client {client}" for client in range(count)]
        if self.min_examples > 1:
            return list(self._dealt(examples, 0))
        return partition_names(self._made(examples, 0), "client")

    def _made(self, examples: Examples, seed: int) -> FlowerPartitioner:
        """The partitioner with the examples as its dataset."""
        kind = find_class(self.partitioner)
        options = dict(self.options)
        if "seed" in inspect.signature(kind).parameters:
            options.setdefault("seed", derive(seed, "partition") % 2**32)
        try:
            made = kind(**options)
        except TypeError as error:
            raise ValueError(f"{self.partitioner} does not take the options {options} ({error})") from error
        made.dataset = as_table(examples, numpy_generator(seed, "partition", "order").permutation(len(examples)))
        return made


def find_class(name: str) -> Any:
    """A class of flwr_datasets.partitioner by its name, or another by its path."""
    module, _, attribute = name.rpartition(".")
    home = importlib.import_module(module) if module else need(HOME, "flwr-datasets", f"FlowerPartition's {name}")
    if not hasattr(home, attribute):
        known = [known for known in dir(home) if known.endswith("Partitioner")]
        raise ValueError(f"{home.__name__} has no {attribute!r}; it has {', '.join(known)}")
    return getattr(home, attribute)


def as_table(examples: Examples, order: np.ndarray) -> Any:
    """A `datasets.Dataset` of the examples' positions in this order, with labels and owners' names where known."""
    columns: dict[str, Any] = {"position": order}
    if examples.is_labelled:
        columns["label"] = examples.labels.numpy()[order]
    if examples.owners is not None:
        columns["owner"] = [examples.owner_names[owner] for owner in examples.owners.numpy()[order]]
    return import_datasets().Dataset.from_dict(columns)
