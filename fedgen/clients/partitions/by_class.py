"""Clients that own whole classes, as in the papers' ten-client CIFAR-10."""

import numpy as np

from fedgen.clients.partitions.partition import Partition, at_least_one, check_assignment, require_labels
from fedgen.data.examples import Examples


class ByClass(Partition):
    """Client k holds all images of the k-th class that occurs, or of a group of consecutive ones; nothing is random.

    Args:
        classes_per_client: classes a client holds: client 0 has the first so many, and so on.

    Examples:
        >>> from fedgen import ByClass, Digits
        >>> [len(part) for part in ByClass(classes_per_client=5).assign(Digits().read("train"), seed=0)]
        [901, 896]
    """

    def __init__(self, classes_per_client: int = 1) -> None:
        self.classes_per_client = at_least_one(classes_per_client, "classes_per_client")

    def assign(self, examples: Examples, seed: int) -> list[np.ndarray]:
        """Assign every example, as every partition does.

        Raises:
            ValueError: if the classes do not divide into groups, or there are none.
        """
        names = self.names(examples)
        _, ranks = np.unique(require_labels(examples, "ByClass"), return_inverse=True)
        group = ranks // self.classes_per_client
        return check_assignment([np.flatnonzero(group == client) for client in range(len(names))], len(examples), names)

    def names(self, examples: Examples) -> list[str]:
        """The classes' names ("class 3" for a class named "3"), joined by " + " where a client holds several.

        Raises:
            ValueError: if the classes do not divide into groups, or there are none.
        """
        found = [examples.classes[label] for label in np.unique(require_labels(examples, "ByClass"))]
        width, total = self.classes_per_client, len(found)
        if total % width:
            raise ValueError(f"classes_per_client={width} does not divide the {total} classes of {examples.name}")
        named = [f"class {name}" if name.isdigit() else name for name in found]
        return [" + ".join(named[start : start + width]) for start in range(0, total, width)]
