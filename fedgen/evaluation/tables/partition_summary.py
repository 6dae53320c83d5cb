"""Summaries of partitions: the clients' sizes and labels."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedgen.clients import Client, FederatedDataModule
from fedgen.clients.heterogeneity.heterogeneity import label_table
from fedgen.clients.partitions import Partition, SavedPartition, load_partition


@dataclass(frozen=True, eq=False)
class PartitionSummary:
    """Sizes and labels of all clients.

    Attributes:
        source: what was dealt, e.g. "digits/train".
        kind: "images" or "points".
        partition: its settings; of a saved one those that it was saved with, and where ("saved").
        seed: of the dealing.
        undealt: examples that no client has.
        capped: examples of clients that are in none of their parts.
        names: of the clients.
        roles: what becomes of each client: "trains", "kept" (scored alone) or "left out".
        train: how many examples each trains on.
        held_out: how many each holds out.
        classes: names of the labels that occur; none for data without labels.
        labels: each client's examples of each label, int64 [K, L], training and held-out ones together.
    """

    source: str
    kind: str
    partition: dict[str, Any]
    seed: int
    undealt: int
    capped: int
    names: list[str]
    roles: list[str]
    train: list[int]
    held_out: list[int]
    classes: tuple[str, ...]
    labels: Tensor

    @classmethod
    def of(cls, data: FederatedDataModule) -> "PartitionSummary":
        """The summary of all clients of a data module, those too that never train; deals them.

        Raises:
            ValueError: if the data cannot be dealt.
        """
        clients, examples, dealt = data.everyone, data.examples, sum(map(len, data.dealt))
        present = examples.labels.unique()
        train, held_out = ([len(getattr(client, part)) for client in clients] for part in ("train", "held_out"))
        return cls(
            examples.name,
            "images" if examples.is_images else "points",
            _rule(data.partition),
            data.seed,
            len(examples) - dealt,
            dealt - sum(train) - sum(held_out),
            [client.name for client in clients],
            _roles(data),
            train,
            held_out,
            tuple(examples.classes[label] for label in present) if examples.classes else (),
            count_labels(clients)[:, present],
        )

    @property
    def sizes(self) -> list[int]:
        """Examples of each client, training and held-out ones together."""
        return [train + held_out for train, held_out in zip(self.train, self.held_out)]

    @property
    def labels_held(self) -> list[int]:
        """The number of labels that each client has examples of; nothing for data without labels."""
        return (self.labels > 0).sum(1).tolist() if self.classes else []

    @property
    def spans(self) -> dict[str, tuple[float, float, float]]:
        """Least, median and most over clients, by what is counted."""
        counted = {f"training {self.kind}": self.train, f"held-out {self.kind}": self.held_out}
        counted |= {"labels held": self.labels_held} if self.classes else {}
        return {name: (min(values), statistics.median(values), max(values)) for name, values in counted.items()}

    def to_json(self) -> dict[str, Any]:
        """Everything as plain types."""
        clients = [
            {
                "name": name,
                "role": role,
                "train": train,
                "held_out": held_out,
                **({"labels": own} if self.classes else {}),
            }
            for name, role, train, held_out, own in zip(
                self.names, self.roles, self.train, self.held_out, self.labels.tolist()
            )
        ]
        return {
            "source": self.source,
            "partition": self.partition,
            "seed": self.seed,
            "undealt": self.undealt,
            "capped": self.capped,
            "classes": list(self.classes),
            "summary": {name: dict(zip(("min", "median", "max"), span)) for name, span in self.spans.items()},
            "clients": clients,
        }


def count_labels(clients: Sequence[Client]) -> Tensor:
    """Each client's examples of each label, int64 [K, L]; one column for data without labels."""
    parts = [client.everything for client in clients]
    owners = torch.repeat_interleave(torch.arange(len(parts)), torch.tensor([len(part) for part in parts]))
    data = clients[0].data
    return label_table(data.labels[torch.cat(parts)], owners, max(1, len(data.classes)))


def _rule(partition: Partition) -> dict[str, Any]:
    if isinstance(partition, SavedPartition):
        return {**load_partition(partition.path).partition, "saved": partition.path}
    return partition.settings()


def _roles(data: FederatedDataModule) -> list[str]:
    found = ["left out"] * len(data.everyone)
    for role, places in (("trains", data.roles.participating), ("kept", data.roles.unparticipating)):
        for place in places:
            found[place] = role
    return found
