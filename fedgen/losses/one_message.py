"""A score of generated images against what clients send once: sums over their images, and the loss made of them.

MMD^2 = A + B - 2 C of a batch needs of the clients A, a number, and C, the mean over the batch of their mean kernel
c(y) = sum_i lambda_i E_{x ~ P_i} k(y, x). The within-batch term B is exact, whatever stands in for c:

- Nystrom (Williams and Seeger 2001; for MMD iRDM, arXiv 2607.02375): with public landmarks z_j a client sends
  E k(z_j, x); c is projected on the span of the k(z_j, .), which gives sum_j a_j k(z_j, y) with a = K_zz^+ E k(z, x).
- random sketches of the cubic kernel (`statistics.sketches`): c without bias, exact but for its third-order term.

FID to the pool needs moments alone, and is exact. How far a loss is from asking at every step is measured at the end.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from fedgen.losses.distributed import Clients, DistributedLoss, SimulatedClients, Traffic, message_weights, term
from fedgen.losses.embedded import EmbeddedLoss
from fedgen.losses.fastfid import FastFIDLoss
from fedgen.losses.feature_loss import FeatureLoss, KeepsPrecision, check_precision
from fedgen.losses.mmd2 import KernelSide, MMD2Loss, features_of
from fedgen.scores.aggregate import Weights, resolve_weights
from fedgen.scores.kernel.kernels import Kernel, PolynomialKernel, cross_sums
from fedgen.scores.kernel.mmd import Estimator, KernelReference, check_means
from fedgen.seeds import generator
from fedgen.statistics import Gaussian, gaussian_from_message, gaussian_to_sums, summarize
from fedgen.statistics.gaussian import check_clients, check_features, eigh
from fedgen.statistics.sketches import CubicSketch, KernelMoments
from fedgen.statistics.statistic_messages import Message


class Summary(ABC):
    """A kind of summable reference; the same at every client."""

    wants_public: ClassVar[bool] = True
    """Whether public features improve it."""

    @abstractmethod
    def check(self, loss: FeatureLoss, public: Tensor | None) -> None:
        """Raises ValueError if the summary does not fit a loss, or there are too few public features."""

    def asks(self, question: Message) -> bool:
        """Whether `fit` asks such a question; a client refuses others. By default all are allowed."""
        return True

    @abstractmethod
    def fit(self, loss: Any, clients: Clients, public: Tensor | None, precision: torch.dtype) -> FeatureLoss:
        """The loss against what the clients answer, each question once."""


@dataclass(frozen=True)
class Nystrom(Summary):
    """Mean kernels with landmarks: a message has `number` numbers and two.

    Args:
        number: of landmarks, drawn from the public features.
        seed: of that draw.

    Examples:
        >>> import torch
        >>> from fedgen.losses import MMD2Loss, Nystrom, OneMessageLoss
        >>> images = torch.tensor([[0.0], [1.0]])
        >>> loss = OneMessageLoss(MMD2Loss(estimator="v"), Nystrom(2))
        >>> loss.set_public(images)
        >>> _ = loss.set_references([images])
        >>> round(float(loss(images)), 6)  # landmarks that span everything lose nothing
        0.0
    """

    number: int = 512
    seed: int = 0

    def check(self, loss: FeatureLoss, public: Tensor | None) -> None:
        _check_kernel_loss(loss, self)
        found = 0 if public is None else len(public)
        if not 1 <= self.number <= found:
            remedy = "give more by set_public, take fewer, or Sketches()"
            raise ValueError(f"Nystrom(number={self.number}) needs as many public images, has {found}: {remedy}")

    def asks(self, question: Message) -> bool:
        return question.kind == "landmarks" and len(question.tensors["landmarks"]) <= self.number

    def fit(self, loss: MMD2Loss, clients: Clients, public: Tensor | None, precision: torch.dtype) -> MMD2Loss:
        assert public is not None
        chosen = torch.randperm(len(public), generator=generator(self.seed, "landmarks"))[: self.number]
        landmarks = _as_sent(public[chosen])
        sums = clients.ask(Message("landmarks", {"landmarks": landmarks})).tensors
        values, vectors = eigh(loss.kernel.block(landmarks, landmarks))
        # what is rounded in the means is multiplied by the inverses
        kept = values > torch.finfo(precision).eps ** 0.5 * values[-1]
        basis = vectors[:, kept] / values[kept].sqrt()
        shares = basis @ (basis.T @ (sums["kernels"] / sums["weight"]))
        return loss.set_expansion(landmarks, shares, float(sums["within"] / sums["weight"]))


@dataclass(frozen=True)
class Sketches(Summary):
    """Moments up to the second and random sketches of the third: D^2 + 2 D + `number` numbers and 5; for KID's kernel.

    Around the public features' mean, if there are any: third moments there are smaller than around zero.

    Args:
        number: of sketches; the error falls as one over its root.
        seed: public, of their random signs.

    Examples:
        >>> import torch
        >>> from fedgen.losses import MMD2Loss, OneMessageLoss, Sketches
        >>> draws = torch.Generator().manual_seed(0)
        >>> loss = OneMessageLoss(MMD2Loss(), Sketches(100)).set_references([torch.randn(50, 2, generator=draws)])
        >>> abs(float(loss(torch.randn(50, 2, generator=draws)))) < 0.5  # one distribution
        True
    """

    number: int = 1000
    seed: int = 0

    def check(self, loss: FeatureLoss, public: Tensor | None) -> None:
        kernel = _check_kernel_loss(loss, self).kernel
        if kernel != PolynomialKernel():
            raise ValueError(f"Sketches are of KID's kernel PolynomialKernel(), got {kernel}; use Nystrom")

    def asks(self, question: Message) -> bool:
        if question.kind == "sketch":
            return (question.meta.get("number"), question.meta.get("seed")) == (str(self.number), str(self.seed))
        return question.kind == "moments" or (question.kind == "landmarks" and not len(question.tensors["landmarks"]))

    def fit(self, loss: MMD2Loss, clients: Clients, public: Tensor | None, precision: torch.dtype) -> MMD2Loss:
        pooled = gaussian_from_message(clients.ask(Message("moments", {})))
        centre = None if public is None else _as_sent(public.double().mean(0))
        sketch = CubicSketch(pooled.dim, self.number, self.seed, centre)
        given = torch.zeros(0) if centre is None else centre
        settings = {"number": str(self.number), "seed": str(self.seed), "dim": str(pooled.dim)}
        moments = sketch.read(clients.ask(Message("sketch", {"centre": given}, settings)), pooled)
        # no landmarks: the clients' own mean kernels alone
        sums = clients.ask(Message("landmarks", {"landmarks": torch.zeros(0, pooled.dim)})).tensors
        return SketchedMMD2Loss(loss, sketch, moments, float(sums["within"] / sums["weight"]))


@dataclass(frozen=True)
class PooledMoments(Summary):
    """Count, sum and sum of outer products, for FID to the pool, exactly: D (D + 3) / 2 numbers and one.

    Examples:
        >>> import torch
        >>> from fedgen.losses import FastFIDLoss, OneMessageLoss, PooledMoments
        >>> loss = OneMessageLoss(FastFIDLoss(), PooledMoments())
        >>> _ = loss.set_references([torch.tensor([[-1.0], [1.0]])])
        >>> round(float(loss(torch.tensor([[2.0], [4.0]]))), 6)
        9.0
    """

    wants_public: ClassVar[bool] = False

    def check(self, loss: FeatureLoss, public: Tensor | None) -> None:
        if not (isinstance(loss, FastFIDLoss) and loss.aggregate == "all"):
            raise ValueError("PooledMoments are for FastFIDLoss(aggregate='all'); other scores need more than moments")

    def asks(self, question: Message) -> bool:
        return question.kind == "moments"

    def fit(self, loss: FastFIDLoss, clients: Clients, public: Tensor | None, precision: torch.dtype) -> FastFIDLoss:
        return loss.set_references([gaussian_from_message(clients.ask(Message("moments", {})))])


def _check_kernel_loss(loss: FeatureLoss, summary: Summary) -> MMD2Loss:
    if not isinstance(loss, MMD2Loss):
        raise ValueError(f"{summary} stands in for a kernel's mean: give an MMD2Loss, got {type(loss).__name__}")
    return loss


def _as_sent(points: Tensor) -> Tensor:
    """Float64 points on the CPU that messages of either precision leave as they are: both sides have the same."""
    return points.detach().cpu().float().double()


class SummarisingClient(KeepsPrecision):
    """A client that answers "landmarks", "moments" and "sketch" with sums over its images, times its weight."""

    def __init__(
        self, features: Tensor, weight: float, kernel: Kernel | None = None, estimator: Estimator | None = None
    ) -> None:
        super().__init__()
        self.features, self.weight, self.kernel, self.estimator = features.cpu(), weight, kernel, estimator

    def forward(self, question: Message) -> Message:
        share = self.weight / len(self.features)
        if question.kind == "landmarks":
            return self._kernel_means(question.tensors["landmarks"])
        if question.kind == "moments":
            return gaussian_to_sums(summarize(self.features)).scaled(share)
        if question.kind != "sketch":
            raise ValueError(f"a client with a summary does not answer {question.kind!r}")
        dim, number, seed = (int(question.meta[name]) for name in ("dim", "number", "seed"))
        centre = question.tensors["centre"] if len(question.tensors["centre"]) else None
        return CubicSketch(dim, number, seed, centre).message(self.features).scaled(share)

    def _kernel_means(self, landmarks: Tensor) -> Message:
        assert self.kernel is not None
        count, within = len(self.features), 0.0
        if self.estimator is not None:
            within = KernelReference.from_features([self.features], self.kernel, self.estimator).within_pool
        sums = landmarks.new_zeros(0)
        if len(landmarks):
            single = torch.zeros(count, dtype=torch.int64)
            sums = cross_sums(self.features, single, 1, landmarks, self.kernel)[0][0] * (self.weight / count)
        weight = torch.tensor(self.weight, dtype=torch.float64)
        return Message("kernel-means", {"weight": weight, "within": weight * within, "kernels": sums})


class SketchedMMD2Loss(MMD2Loss):
    """MMD^2 with KID's kernel to clients known by their moments and sketches; within the batch it is exact."""

    def __init__(self, loss: MMD2Loss, sketch: CubicSketch, moments: KernelMoments, within: float) -> None:
        super().__init__(loss.kernel, loss.estimator, constant=loss.constant)
        self.sketch, self.moments, self._within = sketch, moments, {None: within}
        self._origin = moments.vectors[0].new_zeros(sketch.dim)
        self.counts, self.dim = [round(moments.count)], sketch.dim

    def _between(self, made: KernelSide, client: int | None, needed: bool) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        values, slopes = self.sketch.mean_kernels(made.features.cpu(), self.moments)
        return values.to(made.features.device), (slopes.to(made.features.device), torch.zeros_like(made.offsets))


class OneMessageLoss(FeatureLoss):
    """A score against summable references that clients send once; the server then trains without asking again.

    MMD^2 has its within-batch term exactly and that with the clients approximately: the value is about the mean of the
    clients' scores, the gradient about that to their pool. FID to the pool is exact. In a simulation `set_references`
    makes the clients from their features; real clients are given by `connect`.

    Args:
        loss: `MMD2Loss` or `FastFIDLoss`, which may remember past batches; MMD2Loss() if None. Its aggregate for MMD^2
            does not matter.
        summary: what clients send. For FID `PooledMoments()`; for MMD^2 `Sketches()`, or `Nystrom()`, which needs
            `set_public` first and is the default for other kernels than KID's.
        precision: of the numbers sent, torch.float64 or torch.float32.

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
        self, loss: FeatureLoss | None = None, summary: Summary | None = None, precision: torch.dtype = torch.float64
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


def approximation_errors(
    summaries: Sequence[Summary], clients: Sequence[Tensor], batch: Tensor, public: Tensor | None = None
) -> list[dict[str, Any]]:
    """For each summary the distance of its MMD^2 of a batch from `DistributedLoss`, and the bytes up and down."""
    exact, slope = term(DistributedLoss().set_references(clients), batch)
    rows = []
    for summary in summaries:
        found = OneMessageLoss(summary=summary)
        if public is not None:
            found.set_public(public)
        value, gradient = term(found.set_references(clients), batch)
        error, distance = (value - exact).abs() / exact.abs(), (gradient - slope).norm() / slope.norm()
        cosine = (gradient * slope).sum() / (gradient.norm() * slope.norm())
        numbers = {"value": float(error), "gradient": float(distance), "cosine": float(cosine)}
        rows.append({"summary": str(summary), "up": found.traffic.up, "down": found.traffic.down, **numbers})
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
