"""Frequencies of classes in the data a model was trained on, for samples without given labels."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fedgen.data.optional_attributes import optional
from fedgen.models.optional_hooks import FederatedData
from fedgen.models.require import require


class LabelFrequencies(nn.Module):
    """The clients' training examples of each class, by which labels are drawn; the server's, uniform until `fit`."""

    exchanged = False
    counts: Tensor

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        require(num_classes >= 1, f"num_classes must be at least 1, got {num_classes}")
        # integers, which a change of the model's precision leaves exact
        self._known = False  # that the data's labels are of these classes
        self.register_buffer("counts", torch.ones(num_classes, dtype=torch.int64))

    @property
    def num_classes(self) -> int:
        return len(self.counts)

    def fit(self, data: Any) -> None:
        """Counts the labels of all clients' training examples; data without clients leave the counts as they are."""
        clients = optional(data, FederatedData, "clients")
        self._known = bool(clients)
        if not clients:
            return
        if told := optional(data, FederatedData, "label_counts"):
            name, counts = "the federation", told()
        else:
            name, counts = clients[0].data.name, _count(clients)
        if (classes := len(counts)) > self.num_classes:
            raise ValueError(
                f"{name} has {classes} classes and the model {self.num_classes}; set its num_classes to {classes}"
            )
        self.counts.zero_()
        self.counts[:classes] = counts.to(self.counts)

    def labels_of(self, batch: Sequence[Tensor], dropout: float = 0.0) -> Tensor:
        """The labels int64 [N] of a batch (images, labels); those of unknown data are checked in their first batch."""
        if not self._known:
            if len(batch) < 2:
                raise ValueError("a conditional model trains on (images, labels), and the batches have no labels")
            self.check(batch[1], len(batch[0]))
            self._known = True
        if not dropout:
            return batch[1]
        return batch[1].masked_fill(torch.rand(len(batch[1]), device=batch[1].device) < dropout, self.num_classes)

    def draw(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """Labels int64 [count], drawn independently by the frequencies, on the CPU from a CPU generator."""
        return torch.multinomial(self.counts.cpu().double(), count, replacement=True, generator=generator)

    def check(self, labels: Tensor, count: int) -> Tensor:
        """The labels, if they are int64 [count] of classes that exist."""
        if labels.dtype != torch.int64 or labels.shape != (count,):
            raise ValueError(f"labels must be int64 [{count}], got {labels.dtype} {list(labels.shape)}")
        if count and not 0 <= int(labels.min()) <= int(labels.max()) < self.num_classes:
            span = f"{int(labels.min())} to {int(labels.max())}"
            raise ValueError(f"labels must run from 0 to {self.num_classes - 1}, got {span}")
        return labels


def sampling_labels(
    frequencies: LabelFrequencies | None, labels: Tensor | None, count: int, draws: torch.Generator | None, owner: str
) -> Tensor | None:
    """The labels of `count` images, drawn where none are given; None for an unconditional owner, which takes none."""
    if frequencies is None:
        require(labels is None, f"{owner} is unconditional and takes no labels")
        return None
    return frequencies.draw(count, draws) if labels is None else frequencies.check(labels, count)


def _count(clients: Sequence[Any]) -> Tensor:
    """The training examples of each class int64 [classes], over clients of one data set."""
    examples = clients[0].data
    if not examples.is_labelled:
        raise ValueError(f"{examples.name} has no labels, which a conditional model needs; leave out num_classes")
    parts = [torch.bincount(one.data.labels[one.train], minlength=len(examples.classes)) for one in clients]
    return torch.stack(parts).sum(0)
