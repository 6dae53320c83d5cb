"""The interface of an aggregator, which combines what clients send back, and two weighted means."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor

from fedgen.data.optional_attributes import optional
from fedgen.federated.server_optimizers import as_real, from_real
from fedgen.models.optional_hooks import FederatedData
from fedgen.own_code import warn
from fedgen.ranks import Ranks


class Federation(NamedTuple):
    """The facts of a round that an aggregator is given when it begins."""

    seed: int
    round: int
    clients: int
    cohort: int
    folder: Path = Path()


def wide(tensor: Tensor) -> Tensor:
    """Return a tensor in float32 at least, in which half-precision tensors are combined."""
    return tensor.detach().to(torch.promote_types(tensor.dtype, torch.float32))


class Aggregator(ABC):
    """Combines clients' tensors into one set, client by client.

    `start` opens a round, `add` takes one client's tensors after its turn (live model tensors: copy what must be kept),
    `result` closes the round.

    Attributes:
        private: True if the result is differentially private, so that nothing else of clients may leave a round.
        noise: the source of a private one's noise: "secret", or "seeded" by what every client knows.
        robust: True if it bounds what one client moves, so that nothing of a single client may go around it.
        needs_losses: True if `on_client_loss` needs each client's loss at the server's weights, before its tensors.
        federation: the facts of the round.

    Examples:
        >>> import torch
        >>> from fedgen.federated import Aggregator
        >>> class Largest(Aggregator):
        ...     def start(self, server):
        ...         self.kept = [tensor.clone() for tensor in server]
        ...     def add(self, client, update, weight):
        ...         self.kept = [torch.maximum(a, b) for a, b in zip(self.kept, update)]
        ...     def result(self):
        ...         return self.kept
        >>> rule = Largest()
        >>> rule.start([torch.zeros(1)])
        >>> for client, value in enumerate([1.0, 3.0]):
        ...     rule.add(client, [torch.tensor([value])], weight=1.0)
        >>> rule.result()
        [tensor([3.])]
    """

    private = False
    noise: str = "secret"
    robust = False
    needs_losses: bool = False
    federation = Federation(0, 0, 1, 1)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        own = vars(cls)
        if "announce" in own and "begin_round" not in own:
            warn(f"{cls.__name__}.announce is called begin_round since fedgen 0.3: rename it", DeprecationWarning)
            cls.begin_round = own["announce"]  # type: ignore[method-assign]
        if "begin_round" in own:
            cls.announce = own["begin_round"]  # what `super().announce` finds

    def begin_round(self, federation: Federation) -> None:
        """Receive the facts of the round that `start` opens."""
        self.federation = federation

    announce = begin_round

    def metrics(self, rounds: int) -> dict[str, float]:
        """Return what is logged at the end of a round, the `rounds`-th."""
        return {}

    def state_dict(self) -> Any:
        """Return what a checkpoint keeps of it, in plain types; nothing by default."""
        return {}

    def load_state_dict(self, state: Any) -> None:  # noqa: B027 - most rules take any past
        """Receive the state in the checkpoint of a resumed run, of any rule; None if the checkpoint is older."""

    @abstractmethod
    def start(self, server: Sequence[Tensor]) -> None:
        """Open a round from the server's tensors (not to be changed)."""

    @abstractmethod
    def add(self, client: int, update: Sequence[Tensor], weight: float) -> None:
        """Add one client's tensors with its weight (> 0, not normalised)."""

    def take_loss(self, client: int, loss: float | None) -> None:
        """Pass a client's loss to `on_client_loss` if `needs_losses`; raises ValueError for None."""
        if not self.needs_losses:
            return
        if loss is None:
            raise ValueError(
                f"{type(self).__name__} needs each client's loss at the server's weights, and the first"
                " training_step of its turn returned none: return the loss, or a dictionary with the key 'loss'"
            )
        self.on_client_loss(client, loss)

    def on_client_loss(self, client: int, loss: float) -> None:  # noqa: B027 - most rules need none
        """Receive the loss of a client's first `training_step`, before `add`; a ValueError leaves the client out."""

    def grow(self, server: Sequence[Tensor], places: Sequence[int]) -> None:
        """Add tensors that a turn is the first to change, such as a moving average; an error by default.

        `server` holds their values, which other clients left alone; `places` are their rising indices in the list that
        `add` receives from then on.
        """
        raise MisconfigurationException(
            f"{type(self).__name__} has no grow(server, places), and a client's turn has changed tensors that do not"
            " train; write one, or declare what becomes of them: FedAvgStrategy(rules={pattern: 'mean' or 'server'})"
        )

    def shortfall(self) -> str:
        """Return why the clients added since `start` cannot be combined, which drops the round; "" if they can."""
        return ""

    def check_cohort(self, cohort: int) -> None:  # noqa: B027 - most rules take any
        """Raise MisconfigurationException, before the first round, for a cohort size that can never be combined."""

    @abstractmethod
    def result(self) -> list[Tensor]:
        """Return the combined tensors of the clients added since `start`, in the server's order."""

    def remarks(self) -> dict[int, str]:
        """Return remarks on single clients of the round, by client; called after `result`. None by default."""
        return {}

    def merge(self, ranks: Ranks, device: torch.device) -> None:
        """Combine what the clients of all ranks sent, through a device, before `result`; several need an own method."""
        self.check_ranks(ranks)

    def check_ranks(self, ranks: Ranks) -> None:
        """Raise MisconfigurationException, before the first round, for several processes and a rule without `merge`."""
        if ranks.size > 1 and not is_overridden("merge", self, Aggregator):
            raise MisconfigurationException(
                f"{type(self).__name__} has no merge(ranks, device), which {ranks.size} processes need: write one, or"
                " pass Trainer(devices=1, num_nodes=1)"
            )


class Mean(Aggregator):
    """The weighted mean of the clients' tensors (McMahan et al. 2017, arXiv 1602.05629, Algorithm 1).

    Kept as a running mean, m += (w_k / sum of weights so far) (x_k - m), in place on the device: memory does not grow
    with the cohort, and clients that agree leave the value exact to the bit. Half-precision tensors are accumulated in
    float32.

    Examples:
        >>> import torch
        >>> from fedgen.federated import Mean
        >>> rule = Mean()
        >>> rule.start([torch.zeros(1)])
        >>> rule.add(0, [torch.tensor([1.0])], weight=30)
        >>> rule.add(1, [torch.tensor([5.0])], weight=10)
        >>> rule.result()  # (30 * 1 + 10 * 5) / 40
        [tensor([2.])]
    """

    def __init__(self) -> None:
        self._mean: list[Tensor] = []
        self._count, self._weight = 0, 0.0

    def start(self, server: Sequence[Tensor]) -> None:
        self._count, self._weight = 0, 0.0
        wanted = [(t.shape, t.device, torch.promote_types(t.dtype, torch.float32)) for t in server]
        if [(t.shape, t.device, t.dtype) for t in self._mean] != wanted:
            self._mean = [torch.empty_like(t, dtype=kind[2], requires_grad=False) for t, kind in zip(server, wanted)]

    @torch.no_grad()
    def add(self, client: int, update: Sequence[Tensor], weight: float) -> None:
        self._count += 1
        self._weight += weight
        if not self._mean:
            return
        if self._count == 1:
            torch._foreach_copy_(self._mean, list(update))
            return
        values = [x.to(m.dtype) for x, m in zip(update, self._mean)]
        torch._foreach_lerp_(self._mean, values, weight / self._weight)

    @torch.no_grad()
    def grow(self, server: Sequence[Tensor], places: Sequence[int]) -> None:
        for place, tensor in zip(places, server):
            self._mean.insert(place, wide(tensor).clone())  # the mean of clients that did not change it

    @torch.no_grad()
    def merge(self, ranks: Ranks, device: torch.device) -> None:
        if ranks.size == 1:
            return
        # of the tensors' type, so that it travels with them: one exchange
        weight = torch.tensor([self._weight if self._count else 0.0], dtype=(self._mean or [torch.empty(0)])[0].dtype)
        for mean in self._mean:  # in place, as the sums are: there may be gigabytes of them
            if self._count:
                mean.mul_(self._weight)
            else:
                mean.zero_()
        *self._mean, total = ranks.add([*self._mean, weight], device)
        self._weight = float(total)
        for sum in self._mean:
            sum.div_(self._weight)

    def result(self) -> list[Tensor]:
        return self._mean


ClientWeights = Literal["examples", "uniform"]


def weight_of(num_examples: int, kind: ClientWeights) -> float:
    """Return a client's weight, not normalised: its number of training examples, or 1."""
    return float(num_examples) if kind == "examples" else 1.0


def shares_of(data: Any, kind: ClientWeights) -> list[float] | None:
    """Return the weights of all clients that train, adding up to 1; None for data that does not list clients."""
    clients = optional(data, FederatedData, "clients")
    if clients is None:
        return None
    weights = [weight_of(len(client.train), kind) for client in clients]
    return [weight / sum(weights) for weight in weights]


class SumOfUpdates(Aggregator):
    """Adds up clients' updates in `_sums`, complex numbers as pairs of real ones."""

    def start(self, server: Sequence[Tensor]) -> None:
        self._server, self._sums = list(server), [torch.zeros_like(as_real(wide(tensor))) for tensor in server]

    @torch.no_grad()
    def grow(self, server: Sequence[Tensor], places: Sequence[int]) -> None:
        for place, tensor in zip(places, server):
            self._server.insert(place, tensor)
            self._sums.insert(place, torch.zeros_like(as_real(wide(tensor))))

    def _moved(self, update: Sequence[Tensor]) -> list[Tensor]:
        return [as_real(wide(new) - wide(old)) for old, new in zip(self._server, update, strict=True)]

    def _plus_sums(self, divisor: float) -> list[Tensor]:
        """Return the server's tensors plus the sums over a divisor."""
        return [wide(old) + from_real(total, like=old) / divisor for old, total in zip(self._server, self._sums)]


class QFedAvg(SumOfUpdates):
    """A server step that counts clients of a large loss for more.

    Algorithm 2 of Li et al. 2020, "Fair Resource Allocation in Federated Learning" (arXiv 1905.10497). FedAvg minimises
    the mean of the clients' losses F_k; this rule sum_k p_k F_k^(q + 1) / (q + 1), so that losses are more alike. With
    the server's tensors w of before the round, the client's w_k after its turn, L = 1 / lr and D_k = L (w - w_k):

        Delta_k = F_k^q D_k,    h_k = q F_k^(q - 1) |D_k|^2 + L F_k^q,    w <- w - sum_k p_k Delta_k / sum_k p_k h_k

    p_k is the client's weight: equal ones (`client_weights="uniform"`) are the paper's algorithm, which draws clients
    by their size instead. With q = 0 the step ends at the mean of the w_k: FedAvg's. F_k is the loss at w that the
    `training_step` of the turn's first iteration returns: an estimate on the client's first batch, dropout included,
    exact for a batch of all its examples. L-BFGS, which evaluates its closure several times a step, gives the last
    value. A client without a loss, or with a negative or infinite one, as critics of GANs have, is left out of the
    round. Losses below 1e-10 count as that. |D_k| is over all tensors that travel as one vector, moving averages of
    BatchNorm too. A client that overstates its loss pulls the model its way; `NormClipping(c, then=QFedAvg(...))`
    bounds how far.

    Args:
        q: 0 (FedAvg) or above, the paper tries 0.001 to 15; the larger, the more the worst losses count.
        lr: the clients' learning rate, whose inverse is L.

    Attributes:
        losses: F_k of the round's clients.

    Raises:
        ValueError: for values out of range, or a loss that the rule cannot take.

    Examples:
        >>> import torch
        >>> from fedgen.federated import QFedAvg
        >>> rule = QFedAvg(q=1.0, lr=0.5)
        >>> rule.start([torch.tensor([1.0])])
        >>> for client, (value, loss) in enumerate([(0.0, 1.0), (2.0, 3.0)]):
        ...     rule.on_client_loss(client, loss)
        ...     rule.add(client, [torch.tensor([value])], weight=1.0)
        >>> rule.result()  # L = 2; Delta = 2 and -6, h = 4 + 2 and 4 + 6: 1 + 4 / 16
        [tensor([1.2500])]
    """

    needs_losses = True

    def __init__(self, q: float, lr: float) -> None:
        if not 0 <= q < math.inf:
            raise ValueError(f"q={q}: the weight of large losses is finite and not negative; 0 is FedAvg")
        if not 0 < lr < math.inf:
            raise ValueError(f"lr={lr}: give the clients' learning rate, a positive number; L is its inverse")
        self.q, self.lr = q, lr
        self.losses: dict[int, float] = {}
        self._scale = 0.0  # sum of p_k h_k / L

    def start(self, server: Sequence[Tensor]) -> None:
        super().start(server)
        self.losses, self._scale = {}, 0.0

    def on_client_loss(self, client: int, loss: float) -> None:
        if not 0 <= loss < math.inf:
            raise ValueError(f"QFedAvg needs clients' losses, finite and not negative; it is {loss}")
        loss = max(loss, 1e-10)  # q F^(q - 1) has no value at 0 for q < 1
        self._power(loss)
        self.losses[client] = loss

    def _power(self, loss: float) -> float:
        try:
            found = loss**self.q
        except OverflowError:
            found = math.inf
        if not 0 < found < math.inf:
            raise ValueError(f"a loss of {loss:g} to the power of {self.q:g} is out of range; choose a smaller q")
        return found

    @torch.no_grad()
    def add(self, client: int, update: Sequence[Tensor], weight: float) -> None:
        loss = self.losses[client]
        share, moved = weight * self._power(loss), self._moved(update)
        square = sum(float(part.double().square().sum()) for part in moved)
        # all over L: Delta_k = F^q (w - w_k) and h_k = F^q (q L |w - w_k|^2 / F + 1)
        self._scale += share * (self.q * square / (self.lr * loss) + 1)
        if moved:
            torch._foreach_add_(self._sums, moved, alpha=share)

    @torch.no_grad()
    def merge(self, ranks: Ranks, device: torch.device) -> None:
        if ranks.size == 1:
            return
        scale = torch.tensor([self._scale], dtype=torch.float64)
        *self._sums, total = ranks.add([*self._sums, scale], device)
        self._scale = float(total)
        self.losses = dict(sorted(item for losses in ranks.gather(self.losses) for item in losses.items()))

    @torch.no_grad()
    def result(self) -> list[Tensor]:
        return self._plus_sums(self._scale)
