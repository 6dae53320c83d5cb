"""Aggregators that a few clients with bad updates cannot lead astray.

All but `NormClipping` hold every client's tensors until the round's end, and count every client once: a number of
examples is a claim of the client's own. They lean towards what most clients send, so where honest clients differ (one
class each, say) they leave rare data out even without an attack, as Karimireddy et al. 2022 (arXiv 2006.09365) show.
"""

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch import Tensor

from fedgen.federated.aggregators.mean import Aggregator, Federation, Mean, wide
from fedgen.federated.server_optimizers import as_real, from_real
from fedgen.own_code import rank_zero_warn
from fedgen.ranks import Ranks

FAR = 3.0  # times the median client's distance to the combined tensors


class CollectingAggregator(Aggregator):
    """Keeps every client's tensors until the round's end, then combines them by a subclass's `combine`.

    Memory grows with the cohort. Every client counts once, whatever its weight. Tensors that do not train and change
    during a round, and several processes, are taken care of. A subclass that bounds what one client moves sets `robust
    = True`. Clients are remarked on by name whose tensors, as one vector, lie further from the combined ones than FAR
    times the median client's.

    Attributes:
        clients: those that sent an update since `start`, in the order of the tensors' first axis.

    Examples:
        >>> import torch
        >>> from fedgen.federated import CollectingAggregator
        >>> class MidRange(CollectingAggregator):
        ...     def combine(self, stacked):
        ...         return [(part.amin(0) + part.amax(0)) / 2 for part in stacked]
        >>> MidRange().combine([torch.tensor([[1.0], [2.0], [9.0]])])  # of three clients
        [tensor([5.])]
    """

    def __init__(self) -> None:
        self.clients: list[int] = []
        self._updates: list[list[Tensor]] = []
        self._server: list[Tensor] = []
        self._far: dict[int, str] = {}

    def start(self, server: Sequence[Tensor]) -> None:
        self.clients, self._updates, self._server, self._far = [], [], list(server), {}

    @torch.no_grad()
    def add(self, client: int, update: Sequence[Tensor], weight: float) -> None:
        self.clients.append(client)
        self._updates.append([as_real(wide(tensor)).clone() for tensor in update])

    @torch.no_grad()
    def grow(self, server: Sequence[Tensor], places: Sequence[int]) -> None:
        for place, tensor in zip(places, server):
            self._server.insert(place, tensor)
            for update in self._updates:
                update.insert(place, as_real(wide(tensor)).clone())

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
        self._updates, self._far = [], self._remarks_on_far(stacked, found)
        return [from_real(part, like) for part, like in zip(found, self._server, strict=True)]

    def _remarks_on_far(self, stacked: Sequence[Tensor], combined: Sequence[Tensor]) -> dict[int, str]:
        """Return remarks on clients that stand out in the tensors [clients, ...]; the furthest first."""
        if not stacked:
            return {}
        squares = torch.zeros(len(self.clients), dtype=torch.float64)
        for part, middle in zip(stacked, combined, strict=True):
            for place, row in enumerate(part):
                squares[place] += float((row.double() - middle.double()).square().sum())
        distances = squares.sqrt()
        typical = float(distances.median())
        rounding = 1e-6 * float(torch.stack([middle.double().norm() for middle in combined]).norm())
        return {
            self.clients[p]: f"is {distances[p]:.3g} away from the combined weights, the median client {typical:.3g}"
            for p in distances.argsort(descending=True, stable=True).tolist()
            if distances[p] > FAR * max(typical, rounding)
        }

    def remarks(self) -> dict[int, str]:
        return dict(self._far)

    @abstractmethod
    def combine(self, stacked: list[Tensor]) -> list[Tensor]:
        """Return one tensor [...] of each [clients, ...], in float32 at least and on its device.

        Complex tensors come, and go, as pairs of real numbers [..., 2].
        """


class NormClipping(Aggregator):
    """Shortens each client's update to a norm at most, then combines (Sun et al. 2019, arXiv 1911.07963).

    The update is what a client moved the shared tensors by, all as one vector; its direction stays. Remarks name the
    clients whose updates were shortened, `clipped` lists those of the last round.

    Args:
        max_norm: in the tensors' units; a few times what honest clients move by.
        then: combines the shortened updates; `Mean` by default.

    Raises:
        ValueError: for a norm that is not positive, or before a rule of differential privacy, which clips by itself.

    Examples:
        >>> import torch
        >>> from fedgen.federated import NormClipping
        >>> rule = NormClipping(max_norm=1.0)
        >>> rule.start([torch.zeros(1)])
        >>> for client, value in enumerate([1.0, 100.0]):
        ...     rule.add(client, [torch.tensor([value])], weight=1.0)
        >>> rule.result(), rule.clipped
        ([tensor([1.])], [1])
    """

    robust = True

    def __init__(self, max_norm: float, then: Aggregator | None = None) -> None:
        if not 0 < max_norm < float("inf"):
            raise ValueError(f"max_norm={max_norm}: the longest update allowed is a positive number")
        if then is not None and then.private:
            raise ValueError(f"{type(then).__name__} clips updates itself: pass it as the aggregator")
        self.max_norm, self.then = max_norm, then or Mean()
        self.needs_losses = self.then.needs_losses
        self._norms: dict[int, float] = {}  # of updates that were shortened
        self._server: list[Tensor] = []

    def begin_round(self, federation: Federation) -> None:
        super().begin_round(federation)
        self.then.begin_round(federation)

    def metrics(self, rounds: int) -> dict[str, float]:
        return self.then.metrics(rounds)

    def state_dict(self) -> Any:
        return self.then.state_dict()

    def load_state_dict(self, state: Any) -> None:
        self.then.load_state_dict(state)

    def on_client_loss(self, client: int, loss: float) -> None:
        self.then.on_client_loss(client, loss)

    def start(self, server: Sequence[Tensor]) -> None:
        self._server, self._norms = list(server), {}
        self.then.start(server)

    @torch.no_grad()
    def add(self, client: int, update: Sequence[Tensor], weight: float) -> None:
        moved = [as_real(wide(new) - wide(old)) for new, old in zip(update, self._server, strict=True)]
        norm = float(torch.stack([part.double().norm() for part in moved]).norm()) if moved else 0.0
        if norm > self.max_norm:
            self._norms[client] = norm
            scale = self.max_norm / norm
            update = [wide(old) + from_real(part * scale, old) for old, part in zip(self._server, moved)]
        self.then.add(client, update, weight)

    def grow(self, server: Sequence[Tensor], places: Sequence[int]) -> None:
        for place, tensor in zip(places, server):
            self._server.insert(place, tensor)
        self.then.grow(server, places)

    def check_ranks(self, ranks: Ranks) -> None:
        self.then.check_ranks(ranks)

    def check_cohort(self, cohort: int) -> None:
        self.then.check_cohort(cohort)

    def shortfall(self) -> str:
        return self.then.shortfall()

    def merge(self, ranks: Ranks, device: torch.device) -> None:
        self._norms = dict(sorted(item for norms in ranks.gather(self._norms) for item in norms.items()))
        self.then.merge(ranks, device)

    @property
    def clipped(self) -> list[int]:
        return list(self._norms)

    def remarks(self) -> dict[int, str]:
        found = self.then.remarks()
        for client, norm in self._norms.items():
            remark = f"moved by {norm:.3g}, shortened to {self.max_norm:g}"
            found[client] = f"{remark}; {found[client]}" if client in found else remark
        return found

    def result(self) -> list[Tensor]:
        return self.then.result()


class Median(CollectingAggregator):
    """The median of each coordinate (Yin et al. 2018, arXiv 1803.01498); of an even number the middle two's mean.

    Examples:
        >>> import torch
        >>> from fedgen.federated import Median
        >>> Median().combine([torch.tensor([[1.0], [2.0], [100.0]])])  # of three clients
        [tensor([2.])]
    """

    robust = True

    def combine(self, stacked: list[Tensor]) -> list[Tensor]:
        return [_middle(part, (len(part) - 1) // 2) for part in stacked]


class TrimmedMean(CollectingAggregator):
    """The mean of each coordinate without its largest and smallest values (Yin et al. 2018, arXiv 1803.01498).

    Args:
        fraction: left out on either side, in [0, 0.5): floor(fraction m) of m clients, the most bad ones there may be.

    Raises:
        ValueError: for a fraction out of range.

    Examples:
        >>> import torch
        >>> from fedgen.federated import TrimmedMean
        >>> TrimmedMean(fraction=0.25).combine([torch.tensor([[-100.0], [1.0], [3.0], [100.0]])])  # of 1 and 3
        [tensor([2.])]
    """

    robust = True

    def __init__(self, fraction: float = 0.1) -> None:
        super().__init__()
        if not 0 <= fraction < 0.5:
            raise ValueError(f"fraction={fraction}: choose a value in [0, 0.5), left out on either side")
        self.fraction = fraction

    def check_cohort(self, cohort: int) -> None:
        if self.fraction and not self._trimmed(cohort):
            least = math.ceil(1000 / cohort) / 1000
            other = f", or a fraction of {least:g} and more" if least < 0.5 else ""
            rank_zero_warn(
                f"TrimmedMean(fraction={self.fraction:g}) leaves out none of {cohort} clients a round: take a"
                f" larger cohort_size{other}"
            )

    def _trimmed(self, clients: int) -> int:
        """Return the number of clients that are left out on either side."""
        # rounded first: 0.29 * 100 is 28.999999999999996 in floating point
        return int(round(self.fraction * clients, 9))

    def combine(self, stacked: list[Tensor]) -> list[Tensor]:
        return [_middle(part, self._trimmed(len(part))) for part in stacked]


class Krum(CollectingAggregator):
    """The clients whose updates lie closest to their neighbours' (Blanchard et al. 2017, arXiv 1703.02757).

    A client's score is the sum of squared distances to its m - bad - 2 nearest others, all tensors as one vector; the
    `keep` clients of least score are averaged, 1 in Krum and more in Multi-Krum. It takes 2 bad + 3 clients, and at
    least `keep`: a round in which fewer send an update is dropped, and a cohort of fewer is refused.

    Args:
        bad: clients of a round that may send anything.
        keep: clients that are averaged.

    Attributes:
        chosen: the clients of the last round that were.

    Raises:
        ValueError: for numbers out of range.

    Examples:
        >>> import torch
        >>> from fedgen.federated import Krum
        >>> rule = Krum(bad=1)
        >>> rule.start([torch.zeros(1)])
        >>> for client, value in enumerate([1.0, 1.1, 0.8, 1.2, 100.0]):
        ...     rule.add(client, [torch.tensor([value])], weight=1.0)
        >>> rule.result()
        [tensor([1.1000])]
    """

    robust = True

    def __init__(self, bad: int = 1, keep: int = 1) -> None:
        super().__init__()
        if bad < 0 or keep < 1:
            raise ValueError(f"bad={bad}, keep={keep}: count bad clients from 0 and those that are kept from 1")
        self.bad, self.keep = bad, keep
        self.chosen: list[int] = []

    def _missing(self, clients: int, found: str) -> str:
        needed = max(2 * self.bad + 3, self.keep)
        return "" if clients >= needed else f"Krum(bad={self.bad}, keep={self.keep}) needs {needed} clients{found}"

    def check_cohort(self, cohort: int) -> None:
        if why := self._missing(cohort, f" a round and a cohort has {cohort}"):
            raise MisconfigurationException(f"{why}: take a larger cohort_size, or fewer bad clients")

    def shortfall(self) -> str:
        return self._missing(len(self.clients), f" and {len(self.clients)} sent an update")

    def combine(self, stacked: list[Tensor]) -> list[Tensor]:
        if why := self.shortfall():
            raise ValueError(why)
        count = len(self.clients)
        squares = torch.zeros(count, count, dtype=torch.float64)
        for part in stacked:
            rows = part.flatten(1).double()
            for client, row in enumerate(rows):  # differences first: products of large weights would cancel
                squares[client] += (rows - row).square().sum(1).cpu()
        nearest = squares.sort(1).values[:, 1 : count - self.bad - 1]  # without itself
        best = nearest.sum(1).argsort(stable=True)[: self.keep].sort().values
        self.chosen = [self.clients[place] for place in best.tolist()]
        return [part[best.to(part.device)].mean(0) for part in stacked]

    def remarks(self) -> dict[int, str]:
        far = {client: f"was not chosen: it {said}" for client, said in super().remarks().items()}
        rest = [client for client in self.clients if client not in self.chosen and client not in far]
        return far | dict.fromkeys(rest, "was not chosen")


def _middle(stacked: Tensor, cut: int) -> Tensor:
    """Return each coordinate's mean over clients [m, ...] without its `cut` largest and smallest values."""
    return stacked.sort(0).values[cut : len(stacked) - cut].mean(0)
