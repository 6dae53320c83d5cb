"""Clients that the data itself names: a writer's digits, a photographer's pictures (Yuan et al. 2022, section 4.1)."""

import numpy as np

from fedgen.clients.partitions.partition import Partition, at_least_one, check_assignment
from fedgen.data.examples import Examples
from fedgen.seeds import numpy_generator


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
