"""A score of generated images against what clients sent once: no further question, and how far that is from asking."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from fedgen.losses.distributed import Clients, DistributedLoss, SimulatedClients, Traffic, message_weights, term
from fedgen.losses.embedded import EmbeddedLoss
from fedgen.losses.fastfid import FastFIDLoss
from fedgen.losses.feature_loss import FeatureLoss, check_precision
from fedgen.losses.mmd2 import MMD2Loss, features_of
from fedgen.losses.summaries import Nystrom, PooledMoments, Sketches, SummarisingClient, Summary
from fedgen.scores.aggregate import Weights, resolve_weights
from fedgen.scores.kernel.kernels import PolynomialKernel
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
        check_precision("precision", precision)
        made = copy.deepcopy(loss or MMD2Loss())
        default: Summary = Nystrom()
        if isinstance(made, MMD2Loss):
            # a pool in place of clients, in float64: numbers of an expansion cancel
            made.aggregate, made.dtype = "all", torch.float64
            default = Sketches() if made.kernel == PolynomialKernel() else default
        elif isinstance(made, FastFIDLoss):
            default = PooledMoments()
        super().__init__("all", made.dtype)
        self.loss, self.precision, self.score, self.dim = made, precision, made.score, made.dim
        self.summary = summary or default
        self.public: Tensor | None = None
        self.traffic = Traffic()

    @property
    def wants_public(self) -> bool:
        """Whether there are no public features yet, and a use for some."""
        return self.summary.wants_public and self.public is None

    def set_public(self, features: Tensor) -> None:
        """Keeps features [n, D] of images that clients may see; some of them are sent to every client."""
        check_features(features, "public features")
        self.public = features.detach()

    def connect(self, clients: Clients) -> Self:
        """The loss itself, against what these clients answer now, as `SummarisingClient` does; once only."""
        self.summary.check(self.loss, self.public)
        self.loss = self.summary.fit(self.loss, clients, self.public, self.precision).to(self._device)
        self.traffic, self.dim = clients.traffic, self.loss.dim
        return self

    def set_references(self, clients: Sequence[Tensor] | Sequence[Gaussian], weights: Weights = "examples") -> Self:
        """The loss itself, against what simulated clients of these features [n_i, D], not summaries, answer."""
        parts = features_of(clients)
        check_clients(parts)
        if self.public is not None and self.public.shape[1] != parts[0].shape[1]:
            raise ValueError(f"public features have {self.public.shape[1]} numbers, the clients' {parts[0].shape[1]}")
        if isinstance(self.loss, MMD2Loss):
            check_means(parts, self.loss.estimator if self.loss.constant else "v")
        each = zip(parts, message_weights(weights, [len(part) for part in parts]))
        return self.connect(SimulatedClients([self.client_of(*one) for one in each], self.precision))

    def client_of(self, features: Tensor, weight: float) -> SummarisingClient:
        """The client of these features [n, D] and weight, which answers what this loss asks."""
        if not isinstance(self.loss, MMD2Loss):
            return SummarisingClient(features, weight)
        estimator = self.loss.estimator if self.loss.constant else None
        check_means([features], estimator or "v")
        return SummarisingClient(features, weight, self.loss.kernel, estimator)

    def evaluate(self, features: Tensor) -> Tensor:
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
) -> list[ApproximationError]:
    """A row for each summary, of MMD^2 of one batch to the clients against `DistributedLoss`."""
    exact, slope = term(DistributedLoss().set_references(clients), batch)
    rows = []
    for summary in summaries:
        found = OneMessageLoss(summary=summary)
        if public is not None:
            found.set_public(public)
        value, gradient = term(found.set_references(clients), batch)
        error, distance = (value - exact).abs() / exact.abs(), (gradient - slope).norm() / slope.norm()
        cosine = (gradient * slope).sum() / (gradient.norm() * slope.norm())
        up, down = found.traffic.up, found.traffic.down
        rows.append(ApproximationError(str(summary), up, down, float(error), float(distance), float(cosine)))
    return rows


def local_drift(
    generator: nn.Module, objective: EmbeddedLoss, weights: Sequence[float], latents: Tensor, lr: float
) -> list[float]:
    """Distances of the mean of clients' local steps of SGD from steps on all clients, over these, after each step."""
    shares = resolve_weights(list(weights), [1.0] * len(weights)).tolist()
    networks = [copy.deepcopy(generator) for _ in [None, *shares]]  # of all clients, and of each
    trained = [[value for value in network.parameters() if value.requires_grad] for network in networks]
    optimizers = [torch.optim.SGD(parameters, lr) for parameters in trained]
    first, found = parameters_to_vector(trained[0]).detach().double(), []
    for batch in latents:
        for client, network, parameters, optimizer in zip([None, *range(len(shares))], networks, trained, optimizers):
            objective.start_turn(client)
            optimizer.zero_grad()
            for part in objective.backward_parts(network, batch, None):
                part.backward(inputs=parameters)
            optimizer.step()
        objective.start_turn(None)
        moved, *local = (parameters_to_vector(parameters).detach().double() for parameters in trained)
        mean = sum(share * vector for share, vector in zip(shares, local))
        found.append(float((mean - moved).norm() / (moved - first).norm()))
    return found
