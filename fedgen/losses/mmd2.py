"""MMD^2 of generated features to clients' images as a training loss: KID with the cubic kernel (arXiv 1801.01401).

MMD^2 = A + B - 2 C, with A, B and C the mean kernels within the references, within the batch and between them. Only B
and C have a gradient. With k = f(u) as `Kernel` has it, that of sum_b v_b k(x_a, y_b) is sum_b v_b f'(u_ab) du_ab/dx_a:
one product more a block of references, formed beside the values, and the backward pass keeps [m, D] alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from fedgen.losses.feature_loss import Aggregate, ClosedForm, FeatureLoss
from fedgen.scores.aggregate import Weights, resolve_weights
from fedgen.scores.kernel.kernels import Kernel, PolynomialKernel
from fedgen.scores.kernel.mmd import Estimator, KernelReference, check_estimator, check_means, checked_diagonal
from fedgen.statistics.gaussian import CHUNK, Gaussian, check_features

BLOCK = 512  # references taken at a time on a CPU, so that a block [m, 512] stays in its cache
ACCELERATOR_BLOCK = 8192  # on accelerators, where starting a kernel costs more than running it


@dataclass(frozen=True, eq=False)
class KernelSide:
    """Images of one side: features [n, D] minus the origin, in the loss's dtype; offsets and shares float64 [n]."""

    features: Tensor
    offsets: Tensor
    shares: Tensor


class MMD2Loss(FeatureLoss):
    """MMD^2 of generated features [m, D] to the clients' images, with its gradient in closed form.

    The value is that of `KernelReference.score`. Its U-statistic is unbiased at any m, so this loss keeps no population
    of past batches; it may be negative. "avg" and "all" differ by a constant of the references, so they have the same
    gradient; both exist for their values.

    A call costs two products of [m, D] with [D, n] and little beside, in memory for some blocks of [m, D].

    In float32 these products alone are in float32, of features centred on the references' mean; sums are in float64.
    Measured with 128 against 2,000 features of D = 2048, also of one distribution: before it is rounded to float32 the
    value is within 1e-9 mean kernels of that in float64, the gradient within 3e-7 of its norm. Where
    `torch.set_float32_matmul_precision("medium")` allows bfloat16 products: 1e-6 and 5e-3.

    Args:
        kernel: PolynomialKernel() (that of KID) if None.
        estimator: "u" (needs two images per batch) or "v" (of the empirical distributions, biased upwards).
        aggregate: see `FeatureLoss`; under "own" a turn costs the client's own references alone.
        constant: whether the value includes A. Without it the value is the score minus a number that is the same for
            every generator and often far from zero; the gradient is the same, and `set_references` saves A's pass over
            all pairs of references (n^2 D multiplications in float64, on the CPU; "avg" and "own": the sum of n_i^2 D).
        dtype: of the products, torch.float64 or torch.float32.

    Examples:
        >>> import torch
        >>> from fedgen.losses import MMD2Loss
        >>> from fedgen.scores import PolynomialKernel
        >>> loss = MMD2Loss(PolynomialKernel(1, 1.0, 0.0), estimator="v").set_references([torch.tensor([[0.0], [2.0]])])
        >>> float(loss(torch.tensor([[4.0]])))  # of a linear kernel the squared distance of the means: (4 - 1)^2
        9.0
    """

    score = "kid"

    def __init__(
        self,
        kernel: Kernel | None = None,
        estimator: Estimator = "u",
        aggregate: Aggregate = "all",
        constant: bool = True,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        super().__init__(aggregate, dtype)
        check_estimator(estimator)
        self.kernel = kernel or PolynomialKernel()
        self.estimator: Estimator = estimator
        self.constant = constant
        self.counts: list[int] = []
        self._within: dict[int | None, float] = {}  # A of the aggregate at None, and of each client unless "all"
        self._references: Tensor  # centred on the origin, in the loss's dtype [n, D]
        self._offsets: Tensor  # of the references, see Kernel, float64 [n]
        self._shares: Tensor  # w_i / n_i, float64 [n]
        self._origin: Tensor  # the pool's mean, float64 [D]
        for name in ("_references", "_offsets", "_shares", "_origin"):
            self.register_buffer(name, torch.empty(0), persistent=False)

    @torch.no_grad()
    def set_references(self, clients: Sequence[Tensor] | Sequence[Gaussian], weights: Weights = "examples") -> Self:
        """The loss itself, against these clients' features [n_i, D], not summaries; copies them in its dtype."""
        parts = features_of(clients)
        check_means(parts, self.estimator if self.constant else "v")
        for number, part in enumerate(parts):
            checked_diagonal(part, self.kernel, f"client {number}")
        counts = torch.tensor([len(part) for part in parts])
        shares = resolve_weights(weights, counts.tolist())
        if self.constant and self.aggregate == "all":
            self._within = {None: KernelReference.from_features(parts, self.kernel, self.estimator, shares).within_pool}
        elif self.constant:
            singles = [KernelReference.from_features([part], self.kernel, self.estimator).within_pool for part in parts]
            average = sum(share * single for share, single in zip(shares.tolist(), singles))
            self._within = {None: average, **dict(enumerate(singles))}
        each = (shares / counts).repeat_interleave(counts)
        return self._keep(parts, each, each, counts.tolist())

    def set_constant(self, within: float) -> Self:
        """The loss itself, whose references were set with `constant=False`, with an A that was computed before."""
        self.constant, self._within = True, {None: within}
        return self

    @torch.no_grad()
    def set_expansion(self, points: Tensor, shares: Tensor, within: float = 0.0) -> Self:
        """The loss itself, against sum_j shares_j k(points_j, .) in place of the references' mean kernel.

        Large shares of either sign cancel, and only float64 keeps the digits of that. `within` is A.
        """
        check_features(points, "points")
        if shares.shape != (len(points),):
            raise ValueError(f"{len(points)} points need as many shares, got {list(shares.shape)}")
        self._within = {None: within}
        weights = torch.full_like(shares.double(), 1 / len(points))
        return self._keep([points], shares.double(), weights, [len(points)])

    def _keep(self, parts: list[Tensor], shares: Tensor, weights: Tensor, counts: list[int]) -> Self:
        """Keeps features [n, D] in all with shares [n], centred on their mean by the weights [n]."""
        self.counts, self.dim = counts, parts[0].shape[1]
        self._shares, weights = shares.to(self._device), weights.to(self._device)
        self._origin = weights.new_zeros(self.dim)
        chunks = [rows for part in parts for rows in part.split(CHUNK)]
        sizes = [len(rows) for rows in chunks]
        for share, rows in zip(weights.split(sizes), chunks):
            self._origin += share @ rows.to(self._origin)
        self._references = self._origin.new_empty(len(shares), self.dim, dtype=self.dtype)
        self._offsets = torch.empty_like(self._shares)
        for kept, offsets, rows in zip(self._references.split(sizes), self._offsets.split(sizes), chunks):
            kept.copy_(rows.to(self._origin) - self._origin)
            offsets.copy_(self.kernel.offsets(kept, self._origin)[0])
        return self

    def evaluate(self, features: Tensor) -> Tensor:
        check_features(features, "generated features")
        if self.estimator == "u" and len(features) < 2:
            raise ValueError("the batch has one image, the U-statistic needs two; use a larger one or estimator='v'")
        checked_diagonal(features.detach(), self.kernel, "the batch")
        needed = features.requires_grad and torch.is_grad_enabled()
        with torch.no_grad():
            value, gradient = self._differentiate(features, needed)
        return value if gradient is None else ClosedForm.apply(features, value, gradient)

    def _differentiate(self, features: Tensor, needed: bool) -> tuple[Tensor, Tensor | None]:
        """The value and, if needed, its gradient [m, D], both in the loss's dtype."""
        client = self.client_in_turn(len(self.counts))
        count = len(features)
        pairs = count * (count - 1) if self.estimator == "u" else count**2
        batch = (features.double() - self._origin).to(self.dtype)
        offsets, slope = self.kernel.offsets(batch, self._origin)
        made = KernelSide(batch, offsets, torch.full_like(offsets, 1 / pairs))
        within, pull = self._sums(made, made, needed, diagonal=self.estimator == "v")
        between, push = self._between(made, client, needed)
        value = (self._within.get(client, 0.0) + within.sum() - 2 * between.mean()).to(self.dtype)
        if not needed:
            return value, None
        # x_a is on both sides of B, hence its 2; du_ab / dx_a = y_b - origin + slope_a
        rows, mass = (2 * a.double() - (2 / count) * b for a, b in zip(pull, push))
        return value, rows.addcmul_(mass.unsqueeze(1), slope).to(self.dtype)

    def _between(self, made: KernelSide, client: int | None, needed: bool) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """The sums of `_sums` of the batch with all references, or one client's, whose shares then sum to 1."""
        if client is None:
            return self._sums(made, KernelSide(self._references, self._offsets, self._shares), needed)
        start, count = sum(self.counts[:client]), self.counts[client]
        rows = slice(start, start + count)
        shares = torch.full_like(self._shares[rows], 1 / count)
        return self._sums(made, KernelSide(self._references[rows], self._offsets[rows], shares), needed)

    def _sums(
        self, x: KernelSide, y: KernelSide, needed: bool, diagonal: bool = True
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Sums over b of v_b k(x_a, y_b) [m]; if needed, of v_b f'(u_ab) y_b [m, D] and v_b f'(u_ab) [m]."""
        values, mass = torch.zeros_like(x.offsets), torch.zeros_like(x.offsets)
        rows = torch.zeros_like(x.features)
        block = BLOCK if x.features.device.type == "cpu" else ACCELERATOR_BLOCK
        for start in range(0, len(y.features), block):
            part = slice(start, start + block)
            u = (x.features @ y.features[part].T).double().add_(x.offsets.unsqueeze(1)).add_(y.offsets[part])
            kernels, slopes = self.kernel.profile(u, x.features.shape[1])
            if not diagonal:
                kernels.diagonal(-start).zero_()
                slopes.diagonal(-start).zero_()
            values += kernels @ y.shares[part]
            if needed:
                slopes.mul_(y.shares[part])
                mass += slopes.sum(1)
                rows.addmm_(slopes.to(rows.dtype), y.features[part])
        return values, (rows, mass)


def features_of(clients: Sequence[Tensor] | Sequence[Gaussian]) -> list[Tensor]:
    """The clients' features, detached."""
    parts: list[Tensor] = []
    for number, part in enumerate(clients):
        if not isinstance(part, Tensor):
            raise ValueError(f"client {number} is a {type(part).__name__}: give the features [n, D] of every image")
        parts.append(part.detach())
    return parts
