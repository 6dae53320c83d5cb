"""q-FedAvg (Li et al. 2020, "Fair Resource Allocation in Federated Learning", arXiv 1905.10497)."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from fedgen.federated.aggregators.mean import Aggregator, wide
from fedgen.federated.server_optimizers import as_real
from fedgen.ranks import Ranks

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
        ...     rule.hear_loss(client, loss)
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

    def hear_loss(self, client: int, loss: float) -> None:
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
