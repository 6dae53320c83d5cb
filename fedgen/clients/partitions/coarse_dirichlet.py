"""Clients that differ in groups of labels: the two-level Dirichlet of the code released with Yuan et al. 2022.

Section 4.1 there, for CIFAR-100's 20 groups of 5 classes. Once a label is used up, a client's shares are renormalised
over all labels, as in the released code; the Pachinko allocation of Reddi et al. 2020 does so within the label's group.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedgen.clients.partitions.dirichlet import concentration, deal_by_shares
from fedgen.clients.partitions.partition import (
    Partition,
    at_least_one,
    check_assignment,
    require_clients,
    require_labels,
)
from fedgen.data.examples import Examples
from fedgen.data.sets.cifar100 import GROUPS
from fedgen.seeds import numpy_generator

NAMED_GROUPS: Mapping[str, Mapping[str, Sequence[str]]] = {"cifar100": GROUPS}


class CoarseDirichlet(Partition):
    """floor(N / num_clients) examples for each client: shares of groups first, then of the labels within each group.

    A client draws q ~ Dirichlet(alpha_coarse * p) over the groups and, within each group g, r_g ~ Dirichlet(alpha_fine
    * p_g) over its labels, where p and p_g are the frequencies in the data; a label's share is q_g * r_g. Both alphas
    are totals, as `Dirichlet` has them: on CIFAR-100 the released defaults 10 and 10 are 0.5 a group and 2 a label,
    and the released grid's 10 and 1000 make clients that differ in groups and are even within them. The N mod
    num_clients examples left over belong to no client.

    Args:
        num_clients: the number of clients.
        alpha_coarse: total concentration over groups, above 0: small for few groups a client.
        alpha_fine: total concentration over the labels of a group, above 0: small for few labels of each group.
        groups: "cifar100" for its 20 superclasses, or class names by group; every class that occurs in one group.
        rotate: as in `Dirichlet`.
    """

    def __init__(
        self,
        num_clients: int,
        alpha_coarse: float = 10.0,
        alpha_fine: float = 10.0,
        groups: str | Mapping[str, Sequence[str]] = "cifar100",
        rotate: bool = True,
    ) -> None:
        self.num_clients = at_least_one(num_clients, "num_clients")
        self.alpha_coarse = concentration(alpha_coarse, "alpha_coarse")
        self.alpha_fine = concentration(alpha_fine, "alpha_fine")
        if isinstance(groups, str) and groups not in NAMED_GROUPS:
            raise ValueError(f"groups {groups!r} are not known; use {', '.join(NAMED_GROUPS)}, or class names by group")
        self.groups = groups
        self.rotate = rotate

    def assign(self, examples: Examples, seed: int) -> list[np.ndarray]:
        """Assign every example, as every partition does.

        Raises:
            ValueError: if a class that occurs is in no group or in several, or there are fewer examples than clients.
        """
        labels = require_labels(examples, "CoarseDirichlet")
        require_clients(self.num_clients, len(labels), "CoarseDirichlet")
        random = numpy_generator(seed, "partition")
        present, compact, counts = np.unique(labels, return_inverse=True, return_counts=True)
        named = NAMED_GROUPS[self.groups] if isinstance(self.groups, str) else self.groups
        group_of = group_of_class(examples, named, present)
        shares = draw_shares(counts, group_of, self.alpha_coarse, self.alpha_fine, self.num_clients, random)
        return check_assignment(deal_by_shares(compact, shares, self.rotate, random), len(labels))

    def settings(self) -> dict[str, Any]:
        """Class name and arguments for JSON."""
        given: Any = self.groups
        if isinstance(given, Mapping):
            given = {name: list(classes) for name, classes in given.items()}
        return {**super().settings(), "groups": given}


def group_of_class(examples: Examples, groups: Mapping[str, Sequence[str]], labels: np.ndarray) -> np.ndarray:
    """The group of each of these labels' classes, counted in the order of `groups`: int64 [number of labels]."""
    found = []
    for name in (examples.classes[label] for label in labels):
        homes = [group for group, classes in enumerate(groups.values()) if name in classes]
        if len(homes) != 1:
            raise ValueError(
                f"class {name!r} of {examples.name} is in {len(homes)} of the {len(groups)} groups; name every class "
                "in one of them"
            )
        found.append(homes[0])
    return np.array(found, dtype=np.int64)


def draw_shares(
    counts: np.ndarray,
    group_of: np.ndarray,
    alpha_coarse: float,
    alpha_fine: float,
    num_clients: int,
    random: np.random.Generator,
) -> np.ndarray:
    """Each client's label probabilities: float64 [num_clients, K]."""
    present, compact = np.unique(group_of, return_inverse=True)
    sizes = np.bincount(compact, weights=counts)
    coarse = random.dirichlet(alpha_coarse * sizes / sizes.sum(), size=num_clients)
    shares = np.empty((num_clients, len(counts)))
    for group in range(len(present)):
        members = np.flatnonzero(compact == group)
        fine = random.dirichlet(alpha_fine * counts[members] / sizes[group], size=num_clients)
        shares[:, members] = coarse[:, [group]] * fine
    return shares
