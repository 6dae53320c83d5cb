"""Aggregators: combinations of what the clients send back (the seam that robust aggregation plugs into)."""

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
from fedgen.federated.server_optimizers import as_real
from fedgen.models.optional_hooks import FederatedData
from fedgen.own_code import warn
from fedgen.ranks import Ranks


class Federation(NamedTuple):
    """The facts of a round that an aggregator may know when it begins."""

    seed: int
    round: int
    clients: int
    cohort: int
    folder: Path = Path()


def wide(tensor: Tensor) -> Tensor:
    """In float32 at least, in which half-precision tensors are combined."""
    return tensor.detach().to(torch.promote_types(tensor.dtype, torch.float32))


class Aggregator(ABC):
    """Combines clients' tensors into one set, client by client.

    `start` opens a round, `add` takes one client's tensors after its turn (live model tensors: copy what must be
    kept), `result` closes the round.

    Attributes:
        private: whether what it gives is differentially private, so that nothing else of clients may leave a round.
        noise: where a private one has its noise from: "secret", or "seeded" by what every client knows.
        robust: whether it bounds what one client moves, so that nothing of a single client may go around it.
        needs_losses: whether each client's loss at the server's weights is told by `on_client_loss` before its tensors.
        federation: what it was told of the round.

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
        """Receives what is known of the round that `start` opens."""
        self.federation = federation

    announce = begin_round

    def metrics(self, rounds: int) -> dict[str, float]:
        """Return what is logged at the end of a round, after which there have been so many."""
        return {}

    def state_dict(self) -> Any:
        """Return what a checkpoint keeps of it (plain types); nothing by default."""
        return {}

    def load_state_dict(self, state: Any) -> None:  # noqa: B027 - most rules take any past
        """Hears what the checkpoint says from which a run goes on, of whatever rule it is; None of an older one."""

    @abstractmethod
    def start(self, server: Sequence[Tensor]) -> None:
        """Opens a round from the server's tensors (not to be changed)."""

    @abstractmethod
    def add(self, client: int, update: Sequence[Tensor], weight: float) -> None:
        """Takes one client's tensors with its weight (> 0, not normalised)."""

    def take_loss(self, client: int, loss: float | None) -> None:
        """Hears a client's loss at the server's weights, if `needs_losses`; None of a module that gives none.

        Raises:
            ValueError: if there is none, or one that the rule cannot take.
        """
        if not self.needs_losses:
            return
        if loss is None:
            raise ValueError(
                f"{type(self).__name__} needs each client's loss at the server's weights, and the first"
                " training_step of its turn returned none: return the loss, or a dictionary with the key 'loss'"
            )
        self.on_client_loss(client, loss)

    def on_client_loss(self, client: int, loss: float) -> None:  # noqa: B027 - most rules need none
        """Takes a client's loss at the server's weights, before `add`, where `needs_losses`.

        Args:
            client: that trained.
            loss: what the first `training_step` of its turn returned.

        Raises:
            ValueError: for a loss that the rule cannot take; the client is left out of the round.
        """

    def grow(self, server: Sequence[Tensor], places: Sequence[int]) -> None:
        """Takes more tensors into the round, which the clients so far have left as the server has them.

        Called when a turn is the first to change tensors that do not train, such as a moving average.

        Args:
            server: the server's values of the new tensors.
            places: of each in the longer list that `add` is given from now on, rising.

        Raises:
            MisconfigurationException: by default.
        """
        raise MisconfigurationException(
            f"{type(self).__name__} has no grow(server, places), and a client's turn has changed tensors that do not"
            " train; write one, or declare what becomes of them: FedAvgStrategy(rules={pattern: 'mean' or 'server'})"
        )

    def shortfall(self) -> str:
        """Return why the clients added since `start` cannot be combined; "" if they can. Asked after `merge`.

        The round is then dropped, and the run goes on.
        """
        return ""

    def check_cohort(self, cohort: int) -> None:  # noqa: B027 - most rules take any
        """Refuses cohorts of so many clients, if they could never be combined; before the first round.

        Raises:
            MisconfigurationException: naming how many it takes.
        """

    @abstractmethod
    def result(self) -> list[Tensor]:
        """The combined tensors of the clients added since `start`, in the server's order."""

    def remarks(self) -> dict[int, str]:
        """Return what is to be said of single clients of the round, by client; after `result`. Nothing by default."""
        return {}

    def merge(self, ranks: Ranks, device: torch.device) -> None:
        """Brings together what the ranks' clients sent, before `result`; every rank then has the same.

        Args:
            ranks: the processes.
            device: through which tensors are exchanged.

        Raises:
            MisconfigurationException: as `check_ranks`.
        """
        self.check_ranks(ranks)

    def check_ranks(self, ranks: Ranks) -> None:
        """Refuses processes that the rule cannot bring together; before the first round.

        Args:
            ranks: the processes.

        Raises:
            MisconfigurationException: where there are several and the rule has no `merge` of its own.
        """
        if ranks.size > 1 and not is_overridden("merge", self, Aggregator):
            raise MisconfigurationException(
                f"{type(self).__name__} has no merge(ranks, device), which {ranks.size} processes need: write one, or"
                " pass Trainer(devices=1, num_nodes=1)"
            )


class Mean(Aggregator):
    """The weighted mean of the clients' tensors (McMahan et al. 2017, Algorithm 1).

    Kept as a running mean, m += (w_k / sum of weights so far) (x_k - m), in place on the device: memory does not grow
    with the cohort, a client that is left out needs no renormalisation, and clients that agree leave the value exact
    to the bit. Half-precision tensors are accumulated in float32.

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
            self._mean.insert(place, wide(tensor).clone())  # the mean of clients that all left it alone

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
    """A client's weight, not normalised: its number of training examples, or 1."""
    return float(num_examples) if kind == "examples" else 1.0


def shares_of(data: Any, kind: ClientWeights) -> list[float] | None:
    """The weights of all clients that train, adding up to 1; None for data that names no clients."""
    clients = optional(data, FederatedData, "clients")
    if clients is None:
        return None
    weights = [weight_of(len(client.train), kind) for client in clients]
    return [weight / sum(weights) for weight in weights]


LEAST = 1e-10  # a smaller loss is taken for this one: q F^(q - 1) has no value at 0 for q < 1


class QFedAvg(Aggregator):
    """A server step that counts clients of a large loss for more (Algorithm 2 of the paper).

    FedAvg minimises the mean of the clients' losses F_k; this rule sum_k p_k F_k^(q + 1) / (q + 1), whose clients end
    with losses that are more alike. With w the server's tensors of before the round, w_k the client's after its turn,
    L = 1 / lr and D_k = L (w - w_k):

        Delta_k = F_k^q D_k,    h_k = q F_k^(q - 1) |D_k|^2 + L F_k^q,    w <- w - sum_k p_k Delta_k / sum_k p_k h_k

    p_k is the client's weight: equal ones (`client_weights="uniform"`) are the paper's algorithm, which draws clients
    by their size instead. With q = 0 the step ends at the mean of the w_k: FedAvg's.

    F_k is the loss at w: what the `training_step` of the turn's first iteration returns, on the client's first batch,
    before anything has been trained. So it is a mini-batch's estimate, dropout included; a batch of all the client's
    examples makes it exact. An optimizer that evaluates its closure several times a step (L-BFGS) gives the last value.
    A client whose step returns no loss, or one that is negative or not finite, is left out of the round: critics of
    GANs have such losses, classifiers, diffusion and flow models have not. Losses below 1e-10 count as that.

    |D_k| is over all tensors that travel as one vector, moving averages of BatchNorm too. A client's loss is a claim of
    its own: one that overstates it pulls the model its way. `NormClipping(c, then=QFedAvg(...))` bounds how far.

    Args:
        q: 0 (FedAvg) or above; the paper tries 0.001 to 15. The larger, the more the worst losses count, and the
            shorter the steps.
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
        self._server: list[Tensor] = []
        self._sums: list[Tensor] = []  # of p_k F_k^q (w - w_k)
        self._scale = 0.0  # sum of p_k h_k / L

    def start(self, server: Sequence[Tensor]) -> None:
        self.losses, self._scale = {}, 0.0
        self._server = list(server)
        self._sums = [torch.zeros_like(wide(tensor)) for tensor in server]

    def on_client_loss(self, client: int, loss: float) -> None:
        if not 0 <= loss < math.inf:
            raise ValueError(
                f"QFedAvg takes powers of clients' losses, which are finite and not negative; it is {loss}"
            )
        self._power(max(loss, LEAST), self.q)
        self.losses[client] = max(loss, LEAST)

    def _power(self, loss: float, exponent: float) -> float:
        try:
            found = loss**exponent
        except OverflowError:
            found = math.inf
        if not 0 < found < math.inf:
            raise ValueError(f"a loss of {loss:g} to the power of {exponent:g} is out of range; choose a smaller q")
        return found

    @torch.no_grad()
    def add(self, client: int, update: Sequence[Tensor], weight: float) -> None:
        loss = self.losses[client]
        share = weight * self._power(loss, self.q)
        back = [wide(old) - wide(new) for old, new in zip(self._server, update, strict=True)]
        square = sum(float(as_real(part).double().square().sum()) for part in back)
        # all over L: Delta_k = F^q (w - w_k) and h_k = F^q (q L |w - w_k|^2 / F + 1)
        self._scale += share * (self.q * square / (self.lr * loss) + 1)
        if self._sums:
            torch._foreach_add_(self._sums, back, alpha=share)

    @torch.no_grad()
    def grow(self, server: Sequence[Tensor], places: Sequence[int]) -> None:
        for place, tensor in zip(places, server):
            self._server.insert(place, tensor)
            self._sums.insert(place, torch.zeros_like(wide(tensor)))  # of clients that all left it alone

    @torch.no_grad()
    def merge(self, ranks: Ranks, device: torch.device) -> None:
        if ranks.size == 1:
            return
        scale = torch.tensor([self._scale], dtype=torch.float64)
        *self._sums, total = ranks.add([*self._sums, scale], device)
        self._scale = float(total)
        self.losses = dict(sorted(item for told in ranks.gather(self.losses) for item in told.items()))

    @torch.no_grad()
    def result(self) -> list[Tensor]:
        return [wide(old) - total / self._scale for old, total in zip(self._server, self._sums)]
