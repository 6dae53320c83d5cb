"""Aggregators that a few clients with bad updates cannot lead astray.

All but `NormClipping` hold every client's tensors until the round's end, so memory grows with the cohort, and give
every client one voice: a number of examples is a claim of the client's own, which a bad client would overstate. They
lean towards what most clients send, so where honest clients differ (one class each, say) they leave rare data out, as
Karimireddy et al. 2022 (arXiv 2006.09365) show: a price that is paid without any attack as well.
"""

from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from fedgen.federated.aggregators import Aggregator, Mean, wide
from fedgen.ranks import Ranks


class NormClipping(Aggregator):
    """Shortens each client's update to a norm at most, then combines (Sun et al. 2019, arXiv 1911.07963).

    The update is what a client moved the shared tensors by, all of them as one vector; its direction stays. Clients
    whose updates were shortened are logged by name.

    Args:
        max_norm: in the tensors' own units; a few times what honest clients move by.
        then: combines the shortened updates; `Mean` by default.

    Raises:
        ValueError: for a norm that is not positive.
    """

    robust = True

    def __init__(self, max_norm: float, then: Aggregator | None = None) -> None:
        if not 0 < max_norm < float("inf"):
            raise ValueError(f"max_norm={max_norm}: the longest update allowed is a positive number")
        self.max_norm, self.then = max_norm, then or Mean()
        self._norms: dict[int, float] = {}  # of updates that were shortened
        self._server: list[Tensor] = []

    def start(self, server: Sequence[Tensor]) -> None:
        self._server, self._norms = list(server), {}
        self.then.start(server)

    @torch.no_grad()
    def add(self, client: int, update: Sequence[Tensor], weight: float) -> None:
        moved = [wide(new) - wide(old) for new, old in zip(update, self._server, strict=True)]
        norm = float(torch.stack([part.double().norm() for part in moved]).norm()) if moved else 0.0
        if norm > self.max_norm:
            self._norms[client] = norm
            update = [wide(old) + part * (self.max_norm / norm) for old, part in zip(self._server, moved)]
        self.then.add(client, update, weight)

    def check_ranks(self, ranks: Ranks) -> None:
        self.then.check_ranks(ranks)

    def merge(self, ranks: Ranks, device: torch.device) -> None:
        self._norms = dict(sorted(item for norms in ranks.gather(self._norms) for item in norms.items()))
        self.then.merge(ranks, device)

    @property
    def clipped(self) -> list[int]:
        """The clients of the last round whose updates were shortened."""
        return list(self._norms)

    def remarks(self) -> dict[int, str]:
        return {client: f"moved by {norm:.3g}, shortened to {self.max_norm:g}" for client, norm in self._norms.items()}

    def result(self) -> list[Tensor]:
        return self.then.result()


class _Collected(Aggregator):
    """Keeps the clients' tensors until all are there."""

    robust = True

    def __init__(self) -> None:
        self._clients: list[int] = []
        self._updates: list[list[Tensor]] = []

    def start(self, server: Sequence[Tensor]) -> None:
        self._clients, self._updates = [], []

    @torch.no_grad()
    def add(self, client: int, update: Sequence[Tensor], weight: float) -> None:
        self._clients.append(client)
        self._updates.append([wide(tensor).clone() for tensor in update])

    def merge(self, ranks: Ranks, device: torch.device) -> None:
        if ranks.size == 1:
            return
        own = {client: [t.cpu() for t in update] for client, update in zip(self._clients, self._updates)}
        of_all = {client: update for found in ranks.gather(own) for client, update in found.items()}
        self._clients = sorted(of_all)
        self._updates = [[t.to(device) for t in of_all[client]] for client in self._clients]

    @torch.no_grad()
    def result(self) -> list[Tensor]:
        found = self._combine([torch.stack(parts) for parts in zip(*self._updates, strict=True)])
        self._updates = []
        return found

    @abstractmethod
    def _combine(self, stacked: list[Tensor]) -> list[Tensor]:
        """One tensor of each [clients, ...]."""


class Median(_Collected):
    """The median of each coordinate (Yin et al. 2018, arXiv 1803.01498); of an even number the middle two's mean."""

    def _combine(self, stacked: list[Tensor]) -> list[Tensor]:
        return [_middle(part, (len(part) - 1) // 2) for part in stacked]


class TrimmedMean(_Collected):
    """The mean of each coordinate without its largest and smallest values (Yin et al. 2018, arXiv 1803.01498).

    Args:
        fraction: left out on either side, in [0, 0.5): floor(fraction m) of m clients, the most bad ones there may be.

    Raises:
        ValueError: for a fraction out of range.
    """

    def __init__(self, fraction: float = 0.1) -> None:
        super().__init__()
        if not 0 <= fraction < 0.5:
            raise ValueError(f"fraction={fraction}: what is left out on either side lies in [0, 0.5)")
        self.fraction = fraction

    def _combine(self, stacked: list[Tensor]) -> list[Tensor]:
        # rounded first: 0.29 * 100 is 28.999999999999996 in floating point
        return [_middle(part, int(round(self.fraction * len(part), 9))) for part in stacked]


class Krum(_Collected):
    """The clients whose updates lie closest to their neighbours' (Blanchard et al. 2017, arXiv 1703.02757).

    A client's score is the sum of squared distances to its m - bad - 2 nearest others, all tensors as one vector; the
    `keep` clients of least score are averaged, 1 in Krum and more in Multi-Krum.

    Args:
        bad: clients of a round that may send anything.
        keep: clients that are averaged.

    Attributes:
        chosen: the clients of the last round that were.

    Raises:
        ValueError: for numbers out of range; at a round's end, for fewer than 2 bad + 3 clients or than `keep`.
    """

    def __init__(self, bad: int = 1, keep: int = 1) -> None:
        super().__init__()
        if bad < 0 or keep < 1:
            raise ValueError(f"bad={bad}, keep={keep}: count bad clients from 0 and those that are kept from 1")
        self.bad, self.keep = bad, keep
        self.chosen: list[int] = []

    def _combine(self, stacked: list[Tensor]) -> list[Tensor]:
        count = len(self._clients)
        if count < max(2 * self.bad + 3, self.keep):
            raise ValueError(
                f"Krum(bad={self.bad}, keep={self.keep}) needs {max(2 * self.bad + 3, self.keep)} clients a round and"
                f" {count} sent an update: take a larger cohort_size, or fewer bad clients"
            )
        squares = torch.zeros(count, count, dtype=torch.float64)
        for part in stacked:
            rows = part.flatten(1).double()
            for client, row in enumerate(rows):  # differences first: products of large weights would cancel
                squares[client] += (rows - row).square().sum(1).cpu()
        nearest = squares.sort(1).values[:, 1 : count - self.bad - 1]  # without itself
        best = nearest.sum(1).argsort(stable=True)[: self.keep].sort().values
        self.chosen = [self._clients[place] for place in best.tolist()]
        return [part[best.to(part.device)].mean(0) for part in stacked]


def _middle(stacked: Tensor, left_out: int) -> Tensor:
    """The mean over clients [m, ...] of each coordinate without so many of its largest and smallest values."""
    return stacked.sort(0).values[left_out : len(stacked) - left_out].mean(0)
