"""A score of generated images against what clients sent once: no further question, and how far that is from asking."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn

from fedgen.losses.distributed import (
    Clients,
    DistributedLoss,
    SimulatedClients,
    Traffic,
    check_precision,
    message_weights,
    term,
)
from fedgen.losses.embedded import EmbeddedLoss
from fedgen.losses.feature_loss import FeatureLoss
from fedgen.losses.mmd2 import MMD2Loss, features_of
from fedgen.losses.summaries import SummarisingClient, Summary, default_summary, without_aggregate
from fedgen.scores.aggregate import Weights, resolve_weights
from fedgen.scores.kernel.mmd import check_means
from fedgen.statistics import Gaussian
from fedgen.statistics.gaussian import check_clients, check_features


class OneMessageLoss(FeatureLoss):
    """A score against summable references that clients send once; the server then goes on without them.

    MMD^2 has its within-batch term exactly and that with the clients approximately (see `summaries`): the value is
    about the mean of the clients' scores, the gradient about that to their pool. FID to the pool is exact. In a
    simulation `set_references` makes the clients of their features; others are given by `connect`.

    Args:
        loss: `MMD2Loss` or `FastFIDLoss`, which may remember past batches; MMD2Loss() if None. Its aggregate for MMD^2
            does not matter.
        summary: what clients send. For FID `PooledMoments()`; for MMD^2 `Sketches()`, or `Nystrom()`, which needs
            `set_public` first and is the default for other kernels than KID's.
        precision: of the numbers that are sent, torch.float64 or torch.float32.

    Raises:
        ValueError: for another precision.

    Examples:
        >>> import torch
        >>> from fedgen.losses import FastFIDLoss, OneMessageLoss
        >>> loss = OneMessageLoss(FastFIDLoss())
        >>> _ = loss.set_references([torch.tensor([[-1.0]]), torch.tensor([[1.0]])])  # the pool: mean 0, variance 2
        >>> round(float(loss(torch.tensor([[2.0], [4.0]]))), 6)  # mean 3, variance 2
        9.0
        >>> loss.traffic.questions
        1
    """

    def __init__(
        self,
        loss: FeatureLoss | None = None,
        summary: Summary | None = None,
        precision: torch.dtype = torch.float64,
    ) -> None:
        check_precision(precision)
        made = without_aggregate(loss or MMD2Loss())
        super().__init__("all", made.dtype)
        self.loss, self.precision, self.score = made, precision, made.score
        self.summary = summary or default_summary(made)
        self.public: Tensor | None = None
        self.traffic = Traffic()

    @property
    def dim(self) -> int | None:
        """D of the clients' features; None before they are known."""
        return self.loss.dim

    @property
    def wants_public(self) -> bool:
        """Whether there are no public features yet, and a use for some."""
        return self.summary.wants_public and self.public is None

    def set_public(self, features: Tensor) -> None:
        """Takes features [n, D] of images that clients may see; some of them are sent to every client."""
        check_features(features, "public features")
        self.public = features.detach()

    def connect(self, clients: Clients) -> Self:
        """The loss itself, against what these clients answer now; they are not asked again.

        Args:
            clients: answer as `SummarisingClient` does.

        Raises:
            ValueError: for a summary that does not do for the loss, or without the public features that it needs.
        """
        self.summary.check(self.loss, self.public)
        self.loss = self.summary.fit(self.loss, clients, self.public, self.precision).to(self._device)
        self.traffic = clients.traffic
        return self

    def set_references(self, clients: Sequence[Tensor] | Sequence[Gaussian], weights: Weights = "examples") -> Self:
        """The loss itself, against what simulated clients of these features [n_i, D] answer.

        Raises:
            ValueError: for summaries, unusable features or weights, a client with fewer images than its score needs, or
                as `connect`.
        """
        parts = features_of(clients)
        check_clients(parts)
        if self.public is not None and self.public.shape[1] != parts[0].shape[1]:
            raise ValueError(f"public features have {self.public.shape[1]} numbers, the clients' {parts[0].shape[1]}")
        if isinstance(self.loss, MMD2Loss):
            check_means(parts, self.loss.estimator if self.loss.constant else "v")
        each = zip(parts, message_weights(weights, [len(part) for part in parts]))
        return self.connect(SimulatedClients([self.client_of(*one) for one in each], self.precision))

    def client_of(self, features: Tensor, weight: float) -> SummarisingClient:
        """The client of these features [n, D] and weight, who answers what this loss asks.

        Raises:
            ValueError: for unusable features, or fewer than the score needs.
        """
        if not isinstance(self.loss, MMD2Loss):
            return SummarisingClient(features, weight)
        estimator = self.loss.estimator if self.loss.constant else None
        check_means([features], estimator or "v")
        return SummarisingClient(features, weight, self.loss.kernel, estimator)

    def evaluate(self, features: Tensor) -> Tensor:
        """The scalar of `forward`, with its gradient beside it where the features ask for one."""
        return self.loss.evaluate(features)


@dataclass(frozen=True)
class ApproximationError:
    """The distance between the loss of one message and that of asking at every step."""

    summary: str
    up: int
    down: int
    value: float
    gradient: float
    cosine: float


def approximation_errors(
    summaries: Sequence[Summary],
    clients: Sequence[Tensor],
    batch: Tensor,
    public: Tensor | None = None,
    loss: MMD2Loss | None = None,
    weights: Weights = "examples",
    precision: torch.dtype = torch.float64,
) -> list[ApproximationError]:
    """A row for each kind and size of summary, of MMD^2 of one batch to the clients against `DistributedLoss`."""
    exact, slope = term(DistributedLoss(loss).set_references(clients, weights), batch)
    rows = []
    for summary in summaries:
        found = OneMessageLoss(loss, summary, precision)
        if public is not None:
            found.set_public(public)
        value, gradient = term(found.set_references(clients, weights), batch)
        rows.append(
            ApproximationError(
                str(summary),
                found.traffic.up,
                found.traffic.down,
                float((value - exact).abs() / exact.abs()),
                float((gradient - slope).norm() / slope.norm()),
                float((gradient * slope).sum() / (gradient.norm() * slope.norm())),
            )
        )
    return rows


def local_drift(
    generator: nn.Module, objective: EmbeddedLoss, weights: Sequence[float], latents: Tensor, lr: float
) -> list[float]:
    """After 1, 2, ... steps of SGD."""
    shares = resolve_weights(list(weights), [1.0] * len(weights)).tolist()
    exact, locals_ = copy.deepcopy(generator), [copy.deepcopy(generator) for _ in shares]
    first, found = _flat(generator), []
    for batch in latents:
        for client, network in [(None, exact), *enumerate(locals_)]:
            _step(network, objective, client, batch, lr)
        objective.start_turn(None)
        mean = sum(share * _flat(network) for share, network in zip(shares, locals_))
        moved = _flat(exact)
        found.append(float((mean - moved).norm() / (moved - first).norm()))
    return found


def _step(network: nn.Module, objective: EmbeddedLoss, client: int | None, latents: Tensor, lr: float) -> None:
    """One step of SGD on a client's own score, or on the mean of all clients'."""
    objective.start_turn(client)
    parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]
    network.zero_grad()
    for part in objective.backward_parts(network, latents, None):
        part.backward(inputs=parameters)
    with torch.no_grad():
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.sub_(parameter.grad, alpha=lr)


def _flat(network: nn.Module) -> Tensor:
    """All weights that train, float64 [n]."""
    return torch.cat([p.detach().double().flatten() for p in network.parameters() if p.requires_grad])
