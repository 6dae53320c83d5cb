"""Several processes train one federation: which rank trains whom, and what ranks tell each other at a round's end."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


class Ranks:
    """The processes of a job; one alone where torch.distributed is not in use.

    Every method but the attributes is a collective: all ranks call it, in the same order.

    Attributes:
        size: how many there are.
        rank: which of them this is, from 0.
    """

    def __init__(self) -> None:
        started = dist.is_available() and dist.is_initialized()
        self.size: int = dist.get_world_size() if started else 1
        self.rank: int = dist.get_rank() if started else 0

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value, in order of ranks; plain types and tensors on the CPU."""
        if self.size == 1:
            return [value]
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value)
        return found

    def add(self, tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
        """The sums over ranks of tensors that have the same shapes on each; one exchange a type, through the device."""
        found = list(tensors)
        if self.size == 1:
            return found
        for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
            places = [place for place, tensor in enumerate(tensors) if tensor.dtype == dtype]
            flat = torch.cat([tensors[place].detach().reshape(-1).to(device) for place in places])
            dist.all_reduce(flat)
            parts = flat.split([tensors[place].numel() for place in places])
            for place, part in zip(places, parts):
                found[place] = part.view(tensors[place].shape).to(tensors[place].device)
        return found

    @torch.no_grad()
    def copy_first(self, tensors: Iterable[Tensor]) -> None:
        """Overwrites tensors by rank 0's."""
        if self.size > 1:
            for tensor in tensors:
                dense = tensor.detach().contiguous()
                dist.broadcast(dense, 0)
                tensor.copy_(dense)


def share_out(sizes: Sequence[int], ranks: int) -> list[list[int]]:
    """Places of clients dealt to ranks: largest first to the rank that has least, as many to each but for one.

    Equal numbers keep Lightning's loops in step, which exchange a word after every batch.

    Args:
        sizes: examples of each client.
        ranks: how many.

    Returns:
        For each rank the places it has, rising.
    """
    room = -(-len(sizes) // ranks)
    found: list[list[int]] = [[] for _ in range(ranks)]
    loads = [0] * ranks
    for place in sorted(range(len(sizes)), key=lambda place: -sizes[place]):
        rank = min((rank for rank in range(ranks) if len(found[rank]) < room), key=lambda rank: loads[rank])
        found[rank].append(place)
        loads[rank] += sizes[place]
    return [sorted(places) for places in found]
