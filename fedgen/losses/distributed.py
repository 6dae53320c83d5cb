"""A score of generated images against clients who keep their images: the server asks all and sums their answers.

A server sends every client the features x of a batch. Client i answers with w_i D_i(x) and w_i dD_i / dx of its own
score D_i, and the server sees the sum of the answers alone, from which it goes backwards through its embedding and its
generator. For MMD^2 the gradient of sum_i lambda_i D_i is that of the score to the clients' mixture sum_i lambda_i P_i:
the two differ by a constant of the real images (`scores.kernel.mmd`), so "avg" and "all" are the same loss.

A server of real clients puts its own `Clients` in place of the simulated ones, as `fedgen.flower` does. Sums can be
masked by secure aggregation; here nothing is masked. This is not differential privacy: nothing bounds what sums over
few clients reveal of their images over many batches.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

import torch
from torch import Tensor, nn

from fedgen.losses.fastfid import FastFIDLoss
from fedgen.losses.feature_loss import ClosedForm, FeatureLoss, KeepsPrecision, check_precision
from fedgen.losses.mmd2 import MMD2Loss, features_of
from fedgen.scores.aggregate import Weights, resolve_weights
from fedgen.statistics import Gaussian
from fedgen.statistics.gaussian import check_clients, check_features
from fedgen.statistics.statistic_messages import Message, add


@dataclass
class Traffic:
    """The bytes between a server and all its clients: whole messages, headers included."""

    down: int = 0
    up: int = 0
    questions: int = 0


class Clients(Protocol):
    """The clients as their server sees them: all of them are asked at once, and the sum of their answers is seen."""

    traffic: Traffic

    def ask(self, question: Message) -> Message:
        """The sum of the clients' answers, entry by entry."""


class SimulatedClients(nn.Module):
    """Clients in this process, which receive and send bytes as they would over a network."""

    def __init__(self, clients: Sequence[nn.Module], precision: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.clients, self.precision, self.traffic = nn.ModuleList(clients), precision, Traffic()

    def ask(self, question: Message) -> Message:
        sent = question.to_bytes(self.precision)
        received = Message.from_bytes(sent)
        total: Message | None = None
        for client in self.clients:
            data = client(received).to_bytes(self.precision)
            self.traffic.down += len(sent)
            self.traffic.up += len(data)
            answer = Message.from_bytes(data)
            total = answer if total is None else add(total, answer)
        assert total is not None
        self.traffic.questions += 1
        return total


class ScoringClient(KeepsPrecision):
    """A client that answers a batch's "features" with its own score of them and the gradient, both times its weight."""

    def __init__(self, loss: FeatureLoss, weight: float) -> None:
        super().__init__()
        self.loss, self.weight = loss, weight

    def forward(self, question: Message) -> Message:
        features = question.tensors["features"].to(self._device)
        value, gradient = term(self.loss, features, question.meta.get("gradient") == "yes")
        weight = torch.tensor(self.weight, dtype=torch.float64)
        tensors = {"weight": weight, "value": value.cpu() * weight, "gradient": gradient.cpu() * weight}
        return Message("terms", tensors)


def term(loss: Callable[[Tensor], Tensor], features: Tensor, needed: bool = True) -> tuple[Tensor, Tensor]:
    """A client's score of features [m, D], scalar, and its gradient in them [m, D]; [0, D] if it is not needed."""
    points = features.detach().requires_grad_(needed)
    with torch.set_grad_enabled(needed):
        value = loss(points)
    return value.detach(), torch.autograd.grad(value, points)[0] if needed else features[:0]


class DistributedLoss(FeatureLoss):
    """A score against clients who keep their images, exact at every step: clients answer for every batch.

    Value and gradient are those of the mean of the clients' scores with their weights. For MMD^2 the gradient is that
    of the score to their pool as well; for FID it is not, so only `FastFIDLoss(aggregate="avg")` is taken. In a
    simulation `set_references` makes the clients from their features; real clients are given by `connect`.

    Args:
        loss: the score, without memory of past batches; MMD2Loss() if None.
        precision: of the numbers sent, torch.float64 or torch.float32.

    Examples:
        >>> import torch
        >>> from fedgen.losses import DistributedLoss, MMD2Loss
        >>> from fedgen.scores import PolynomialKernel
        >>> loss = DistributedLoss(MMD2Loss(PolynomialKernel(1, 1.0, 0.0), estimator="v"))
        >>> _ = loss.set_references([torch.tensor([[-1.0]]), torch.tensor([[1.0]])])
        >>> float(loss(torch.tensor([[0.0]])))  # the mean of the clients' squared distances
        1.0
    """

    def __init__(self, loss: FeatureLoss | None = None, precision: torch.dtype = torch.float64) -> None:
        loss = loss or MMD2Loss()
        check_precision("precision", precision)
        check_mean_of_clients(loss)
        if isinstance(loss, FastFIDLoss) and loss.moments.remembers:
            raise ValueError("clients asked about every batch remember none: use BatchMoments() or OneMessageLoss")
        super().__init__("avg", loss.dtype)
        self.loss, self.precision, self.score = loss, precision, loss.score
        self.clients: Clients | None = None
        self.traffic = Traffic()

    def connect(self, clients: Clients, dim: int) -> Self:
        """The loss itself, which asks these clients of features of D = `dim`; they answer as `ScoringClient` does."""
        self._modules.pop("clients", None)
        self.clients, self.traffic, self.dim = clients, clients.traffic, dim
        return self

    def set_references(self, clients: Sequence[Tensor] | Sequence[Gaussian], weights: Weights = "examples") -> Self:
        """The loss itself, which from now on asks simulated clients of these features [n_i, D], and not summaries."""
        parts = features_of(clients)
        check_clients(parts)
        scoring = []
        for number, weight in enumerate(message_weights(weights, [len(part) for part in parts])):
            try:
                scoring.append(self.client_of(parts[number], weight))
            except ValueError as error:  # alone, each client is client 0
                raise ValueError(str(error).replace("client 0", f"client {number}")) from error
        return self.connect(SimulatedClients(scoring, self.precision), parts[0].shape[1])

    def client_of(self, features: Tensor, weight: float) -> ScoringClient:
        """The client of these features [n, D] and weight, which answers what this loss asks."""
        return ScoringClient(copy.deepcopy(self.loss).set_references([features]), weight)

    def evaluate(self, features: Tensor) -> Tensor:
        check_features(features, "generated features")
        assert self.clients is not None
        needed = features.requires_grad and torch.is_grad_enabled()
        question = Message("features", {"features": features.detach()}, {"gradient": "yes" if needed else "no"})
        sums = self.clients.ask(question).tensors
        value = (sums["value"] / sums["weight"]).to(features.device, self.dtype)
        if not needed:
            return value
        return ClosedForm.apply(features, value, (sums["gradient"] / sums["weight"]).to(features.device, self.dtype))


def message_weights(weights: Weights, counts: Sequence[int]) -> list[float]:
    """Return the factor of each client's answer: n_i by "examples", else what adds up to the pool's effective count."""
    if isinstance(weights, str) and weights == "examples":
        return [float(count) for count in counts]
    shares = resolve_weights(weights, counts)
    return (shares / (shares.square() / torch.tensor(counts)).sum()).tolist()


def check_mean_of_clients(loss: FeatureLoss) -> None:
    """Raises ValueError unless a loss is a mean of the clients' scores, up to a number of the real images."""
    if isinstance(loss, FastFIDLoss) and loss.aggregate == "all":
        raise ValueError("FID-all is no mean of the clients' FIDs: use FastFIDLoss(aggregate='avg') or OneMessageLoss")
