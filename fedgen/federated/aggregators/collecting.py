"""The base of aggregators that need the updates of all clients at once."""

from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from fedgen.federated.aggregators.mean import Aggregator, wide
from fedgen.ranks import Ranks

FAR = 3.0
_SAME = 1e-6  # of the combined tensors' norm: distances below it are rounding


class CollectingAggregator(Aggregator):
    """Keeps every client's tensors until the round's end, then combines them; a subclass says how.

    Memory grows with the cohort. Every client has one voice, whatever its weight. Tensors that do not train and change
    during a round, and clients on several processes, are taken care of. A subclass that bounds what one client moves
    sets `robust = True`.

    It remarks on clients by name whose tensors lie further from the combined ones than FAR times the cohort's median
    client's, all tensors as one vector.

    Attributes:
        clients: those that sent an update since `start`, in the order of the tensors' first axis.

    Examples:
        >>> import torch
        >>> from fedgen.federated import CollectingAggregator
        >>> class MidRange(CollectingAggregator):
        ...     def combine(self, stacked):
        ...         return [(part.amin(0) + part.amax(0)) / 2 for part in stacked]
        >>> rule = MidRange()
        >>> rule.start([torch.zeros(1)])
        >>> for client, value in enumerate([1.0, 2.0, 9.0]):
        ...     rule.add(client, [torch.tensor([value])], weight=1.0)
        >>> rule.result()
        [tensor([5.])]
    """

    def __init__(self) -> None:
        self.clients: list[int] = []
        self._updates: list[list[Tensor]] = []
        self._far: dict[int, str] = {}

    def start(self, server: Sequence[Tensor]) -> None:
        self.clients, self._updates, self._far = [], [], {}

    @torch.no_grad()
    def add(self, client: int, update: Sequence[Tensor], weight: float) -> None:
        self.clients.append(client)
        self._updates.append([wide(tensor).clone() for tensor in update])

    @torch.no_grad()
    def grow(self, server: Sequence[Tensor], places: Sequence[int]) -> None:
        for update in self._updates:
            for place, tensor in zip(places, server):
                update.insert(place, wide(tensor).clone())

    def merge(self, ranks: Ranks, device: torch.device) -> None:
        if ranks.size == 1:
            return
        own = {client: [t.cpu() for t in update] for client, update in zip(self.clients, self._updates)}
        of_all = {client: update for found in ranks.gather(own) for client, update in found.items()}
        self.clients = sorted(of_all)
        self._updates = [[t.to(device) for t in of_all[client]] for client in self.clients]

    @torch.no_grad()
    def result(self) -> list[Tensor]:
        stacked = [torch.stack(parts) for parts in zip(*self._updates, strict=True)]
        found = self.combine(stacked)
        self._updates = []
        self._far = {self.clients[place]: said for place, said in _far_ones(stacked, found).items()}
        return found

    def remarks(self) -> dict[int, str]:
        return dict(self._far)

    @abstractmethod
    def combine(self, stacked: list[Tensor]) -> list[Tensor]:
        """Return one tensor [...] of each [clients, ...], in float32 at least and on its device."""


def _far_ones(stacked: Sequence[Tensor], combined: Sequence[Tensor]) -> dict[int, str]:
    """Return remarks on clients that stand out, by their place in the tensors [m, ...]; the furthest first."""
    if not stacked:
        return {}
    squares = torch.zeros(len(stacked[0]), dtype=torch.float64)
    for part, middle in zip(stacked, combined, strict=True):
        for place, row in enumerate(part):
            squares[place] += float((row.double() - middle.double()).square().sum())
    distances = squares.sqrt()
    typical = float(distances.median())
    norm = float(torch.stack([middle.double().norm() for middle in combined]).norm())
    order = distances.argsort(descending=True, stable=True).tolist()
    return {
        place: f"is {distances[place]:.3g} away from the combined weights, the median client {typical:.3g}"
        for place in order
        if distances[place] > FAR * max(typical, _SAME * norm)
    }
