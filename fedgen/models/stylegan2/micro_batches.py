"""Batches cut into parts that are computed at once, and clients whose batches cannot be cut so."""

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from fedgen.data.optional_attributes import optional
from fedgen.models.optional_hooks import FederatedData
from fedgen.models.require import require


def micro_sizes(count: int, size: int | None) -> list[int]:
    """Return the sizes of the parts of so many images.

    Args:
        count: images of a batch.
        size: at most so many at once; None: all.
    """
    size = min(size or count, count)
    return [min(size, count - start) for start in range(0, count, size)]


def micro_batches(real: Tensor, labels: Tensor | None, size: int | None) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Return images [N, C, H, W] and labels int64 [N] in parts; see `micro_sizes`."""
    sizes = micro_sizes(len(real), size)
    given = [None] * len(sizes) if labels is None else labels.split(sizes)
    return zip(real.split(sizes), given)


def check_batches(data: Any, group: int | None, size: int | None) -> None:
    """Refuse clients whose batches do not divide into the critic's groups, before any of them trains.

    Args:
        data: the data module; one that does not say its clients and batch size is not checked.
        group: the critic's `group_size`; None takes a batch as one group.
        size: images that are computed at once; None: the batch.

    Raises:
        ValueError: naming the client, and what to choose.
    """
    clients, batch = optional(data, FederatedData, "clients"), optional(data, FederatedData, "batch_size")
    if not clients or batch is None or group is None:
        return
    for client in clients:
        count = len(client.train)
        require(count > 0, f"client {client.name} has no training image; leave it out of the partition")
        for part in micro_sizes(min(batch, count), size):
            require(
                part % min(group, part) == 0,
                f"client {client.name} trains on batches of {min(batch, count)} images, of which {part} at once do"
                f" not divide into the critic's minibatch-std groups of {group}; choose batch_size, micro_batch and"
                " group_size that do, or leave that client out",
            )
