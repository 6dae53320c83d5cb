"""Losses on features: references are set once, and every batch has a differentiable value."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Literal, Self, get_args

import torch
from torch import Tensor, nn
from torch.autograd import Function

from fedgen.scores.aggregate import Weights
from fedgen.statistics import Gaussian

Aggregate = Literal["all", "avg", "own"]
PRECISIONS = (torch.float64, torch.float32)


def check_precision(name: str, dtype: torch.dtype) -> None:
    if dtype not in PRECISIONS:
        raise ValueError(f"{name} must be torch.float64 or torch.float32, got {dtype}")


class KeepsPrecision(nn.Module):
    """A module that follows a parent to another device but keeps its precision: half of it would be another score."""

    def __init__(self) -> None:
        super().__init__()
        self._device = torch.device("cpu")

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        self._device = fn(torch.empty(0, device=self._device)).device
        return super()._apply(lambda tensor: tensor.to(self._device), recurse)


class ClosedForm(Function):
    """`ClosedForm.apply(features, value, gradient)`: the value, with this gradient [m, D] in the features."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, value: Tensor, gradient: Tensor) -> Tensor:
        ctx.save_for_backward(gradient)
        ctx.dtype = features.dtype
        return value.clone()  # an input returned as it is could not be changed in place, as by loss *= 5

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None]:
        if torch.is_grad_enabled():
            raise RuntimeError("a score's gradient in closed form cannot be differentiated again: no create_graph=True")
        (gradient,) = ctx.saved_tensors
        return (upstream * gradient).to(ctx.dtype), None, None


class FeatureLoss(KeepsPrecision, ABC):
    """A score of generated features [m, D] against clients' cached references, to be minimised.

    The value is the score's; the gradient is in closed form. References are cached and never saved; what the loss
    remembers of past batches is saved, and under `FedAvgStrategy` belongs to the client (it is neither sent nor
    averaged). Autocast is switched off inside.

    Args:
        aggregate: what is minimised. "all": the score to the clients' pool; "avg": the mean of the clients' scores;
            "own": within a client's turn the score to that client, and "avg" outside turns.
        dtype: of the arithmetic, torch.float64 or torch.float32; the features may be of any floating dtype.

    Examples:
        >>> import torch
        >>> from fedgen.losses import FastFIDLoss, FeatureLoss
        >>> loss: FeatureLoss = FastFIDLoss(aggregate="avg")
        >>> _ = loss.set_references([torch.tensor([[-2.0], [0.0]]), torch.tensor([[0.0], [2.0]])])
        >>> float(loss(torch.tensor([[-1.0], [1.0]])))  # 1 to each client
        1.0
    """

    exchanged = "personal"
    """Under FedAvg, what lies below stays with its client."""

    score: str
    """Name of the score, "fid" or "kid"."""

    dim: int | None = None
    """D of the references; None before they are set."""

    def __init__(self, aggregate: Aggregate = "all", dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        if aggregate not in get_args(Aggregate):
            raise ValueError(f"aggregate must be one of {', '.join(get_args(Aggregate))}, got {aggregate!r}")
        check_precision("dtype", dtype)
        self.aggregate: Aggregate = aggregate
        self.dtype = dtype
        self.client: int | None = None

    @abstractmethod
    def set_references(self, clients: Sequence[Tensor] | Sequence[Gaussian], weights: Weights = "examples") -> Self:
        """The loss itself, against these clients' features [n_i, D] or summaries from now on; weights as of scores."""

    @abstractmethod
    def evaluate(self, features: Tensor) -> Tensor:
        """The scalar of `forward`, of checked features, outside autocast."""

    def forward(self, features: Tensor) -> Tensor:
        """The score of features [m, D], a differentiable scalar of the loss's dtype."""
        if self.dim is None:
            raise ValueError(f"{type(self).__name__} has no references yet; call set_references([features, ...])")
        if features.ndim != 2 or not features.is_floating_point() or features.shape[1] != self.dim or not len(features):
            found = f"{features.dtype} {list(features.shape)}"
            raise ValueError(f"{type(self).__name__} takes floating features [m, {self.dim}], got {found}")
        with torch.autocast(features.device.type, enabled=False):
            return self.evaluate(features)

    def set_public(self, features: Tensor) -> None:
        """Passes features [n, D] of public images, before `set_references`, to losses that have a use for them."""

    def start_turn(self, client: int | None) -> None:
        """Begins a client's turn, for "own"; None: the score is again that to all clients."""
        self.client = client

    def client_in_turn(self, clients: int) -> int | None:
        """The client, of this many, whose turn it is under "own"; None for all of them."""
        if self.aggregate != "own" or self.client is None:
            return None
        if not 0 <= self.client < clients:
            raise ValueError(f"client {self.client} has no references; set_references was given {clients} clients")
        return self.client
