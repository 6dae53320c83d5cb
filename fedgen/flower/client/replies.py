"""Each client as one rank of a job: what it would tell the others is recorded, sent, and heard by the server.

So whatever merges over processes (`merge(ranks, device)` of optimizer states and client algorithms) merges over clients
elsewhere by the same code.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fedgen.ranks import Name, Ranks
from fedgen.statistics.statistic_messages import MessageError


class Recorder(Ranks):
    """A client's side: it hears itself alone.

    Attributes:
        told: what it was asked to tell, in order.
    """

    def __init__(self) -> None:
        self.size, self.rank = 2, 1
        self.told: list[Any] = []

    def gather(self, value: Any) -> list[Any]:
        self.told.append(value)
        return [value]

    def add(self, tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
        self.told.append([tensor.detach().cpu() for tensor in tensors])
        return list(tensors)

    def add_named(self, tensors: Mapping[Name, Tensor], device: torch.device) -> dict[Name, Tensor]:
        self.told.append({name: tensor.detach().cpu() for name, tensor in tensors.items()})
        return dict(tensors)


class Replies(Ranks):
    """The server's side: rank 0, without clients of its own, and one rank for each client that answered.

    Args:
        told: of the clients' recorders, in the clients' order.
    """

    def __init__(self, told: Sequence[Sequence[Any]]) -> None:
        self.size, self.rank = 1 + len(told), 0
        self._told, self._next = told, 0

    def gather(self, value: Any) -> list[Any]:
        return [value, *self._heard()]

    def add(self, tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
        named = self.add_named(dict(enumerate(tensors)), device, [dict(enumerate(told)) for told in self._heard()])
        return [named[place] for place in range(len(tensors))]

    def add_named(
        self, tensors: Mapping[Name, Tensor], device: torch.device, heard: Sequence[Mapping[Name, Tensor]] | None = None
    ) -> dict[Name, Tensor]:
        total = {name: tensor.to(device) for name, tensor in tensors.items()}
        for told in self._heard() if heard is None else heard:
            for name, tensor in told.items():
                if name in total and (total[name].shape, total[name].dtype) != (tensor.shape, tensor.dtype):
                    raise MessageError(
                        f"{name!r} is {tensor.dtype} {list(tensor.shape)} of one client and"
                        f" {total[name].dtype} {list(total[name].shape)} of others"
                    )
                total[name] = total[name] + tensor.to(device) if name in total else tensor.to(device)
        return total

    def _heard(self) -> list[Any]:
        place, self._next = self._next, self._next + 1
        if any(len(told) <= place for told in self._told):
            raise MessageError("a client tells less than its algorithm has to; it runs another recipe or release")
        return [told[place] for told in self._told]
