"""Fréchet distance of generated features to clients' images as a training loss, after FastFID (arXiv 2009.14075).

Moments mu, C of the generator and mu_i, C_i of a reference: FID_i = |mu - mu_i|^2 + tr C + tr C_i - 2 tr sqrt(C C_i).
An image x that has the weight v in the population has the gradient
2 v [ (mu - mu_i) + n/(n - ddof) (I - T_i)(x - mu) ]. For a batch alone v = 1/m.

With C = C1^T C1 and a root of the reference's covariance, C_i = R^T R, the trace is the sum of the singular values of
C1 R^T = U S V^T, and its derivative in C1 is the polar factor U V^T R = C1 T_i with T_i = R^T V S^-1 V^T R: no
differences of eigenvalues, no roots of zero. The derivative in C is T_i / 2. Directions whose singular value rounding
may have made are left out, which is the gradient of least norm. Of the distance corrected for few images
(`fedgen.scores.frechet.corrected`) the derivative of the trace in C is R^T V F V^T R with the slopes F = dT / dl of
eigenvalues l, in place of S^-1 / 2.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from fedgen.losses.feature_loss import Aggregate, ClosedForm, FeatureLoss
from fedgen.losses.moments import BatchMoments, LateBuffers, Layout, MomentEstimate, Moments
from fedgen.scores.aggregate import Weights, resolve_weights
from fedgen.scores.frechet.corrected import Bias, ImageCounts, check_bias
from fedgen.scores.frechet.roots import Roots, Triangle, factor, sandwich, stack, stackable, sum_of_roots, top
from fedgen.statistics import Gaussian, pool, summarize
from fedgen.statistics.gaussian import check_features, check_size, eigh

Form = Literal["covariance", "rows", "strips"]

GROWTH = 1.25  # of the number of images, after which the factors are taken anew
ALL_CLIENTS = -1
NUMBERS = ("level", "inner", "unseen", "missing", "fresh", "count")


@dataclass(frozen=True, eq=False)
class Factors:
    """Factors of k references: the traces [k]; R^T V [k, D, r] as rows [k, r, D]."""

    traces: Tensor
    rows: Tensor
    values: Tensor
    inverses: Tensor


class FrechetTargets(nn.Module):
    """Covariances of k references of one form, cached: one covariance as it is, or roots."""

    means: Tensor
    traces: Tensor
    scales: Tensor
    covariance: Any  # of a single reference, else None
    root: Any  # [k, r, D], or a triangle's strips; None until a covariance's is needed

    def __init__(
        self,
        numbers: Sequence[int],
        summaries: Sequence[Gaussian],
        ddof: float,
        dtype: torch.dtype,
        form: Form,
        bias: Bias = "plug-in",
    ) -> None:
        super().__init__()
        self.numbers, self.dtype, self.bias = list(numbers), dtype, bias
        self.counts = [summary.count for summary in summaries]
        self.dim = summaries[0].dim
        self._keep("means", torch.stack([summary.mean for summary in summaries]))
        of_term = 0 if bias == "corrected" else ddof
        self._keep("traces", torch.stack([summary.trace(of_term) for summary in summaries]))
        self._keep("scales", torch.stack([_scale(summary, ddof) for summary in summaries]))
        self._height: int | None = None  # of a triangle's strips
        self._order: Tensor | slice = slice(None)
        self.register_buffer("covariance", None, persistent=False)
        self.register_buffer("root", None, persistent=False)
        if form == "covariance" and not summaries[0].is_low_rank:
            self._keep("covariance", summaries[0].covariance(ddof).to(dtype))
            self.ranks = torch.tensor([self.dim])
        else:
            roots = stack([factor(summary, ddof) for summary in summaries])
            self._keep_root(roots if form == "strips" else Roots(roots.rows, roots.ranks))

    def pull(
        self, estimate: MomentEstimate, ddof: float, weights: Tensor, needed: bool
    ) -> tuple[Tensor, Tensor | None]:
        """tr sqrt(C C_i) [k], and sum_i w_i (x - mean) T_i [m, D] of the batch if needed."""
        images = len(estimate.deviations)
        direct = images <= self.dim if self.covariance is not None else self._height is None
        if estimate.second is None and direct and self.bias == "plug-in":
            return self._pull_rows(estimate, ddof, weights, needed)
        if not needed:
            roots = self._roots()
            values = torch.linalg.eigvalsh(sandwich(roots, estimate.covariance(ddof)))
            ranks = roots.ranks.clamp(max=estimate.rank)
            corrected = self.bias == "corrected"
            return self._corrected(values, ranks, estimate)[0] if corrected else sum_of_roots(values, ranks), None
        factors = self.factorise(estimate, ddof)
        rows = factors.rows.flatten(0, 1)
        coefficients = (estimate.deviations @ rows.T) * (weights.unsqueeze(1) * factors.inverses).flatten()
        return factors.traces, coefficients @ rows

    def factorise(self, estimate: MomentEstimate, ddof: float) -> Factors:
        """The factors of T_i = rows^T S^-1 rows."""
        roots = self._roots()
        eigenvalues, vectors = eigh(sandwich(roots, estimate.covariance(ddof)))
        ranks = roots.ranks.clamp(max=estimate.rank)
        rows = vectors.mT @ roots.rows
        if self.bias == "corrected":
            traces, slopes = self._corrected(eigenvalues, ranks, estimate, slopes=True)
            return Factors(traces, rows, eigenvalues.clamp(min=0).sqrt(), 2 * slopes)
        values, inverses = self._invert(eigenvalues, ranks, estimate)
        return Factors(sum_of_roots(eigenvalues, ranks), rows, values, inverses)

    def _corrected(
        self, eigenvalues: Tensor, ranks: Tensor, estimate: MomentEstimate, slopes: bool = False
    ) -> tuple[Tensor, Tensor]:
        """The corrected traces [k], and their slopes [k, r]; FewImagesError for a batch of too few images."""
        names = [*(f"client {number}" for number in self.numbers), "the batch"]
        numbers = ImageCounts(self.counts, self.counts, (estimate.count, estimate.count), names)
        counted = eigenvalues.clamp(min=0) * top(eigenvalues.shape[1], ranks).to(eigenvalues)
        traces, found = numbers.traces(range(len(self.counts)), counted.cpu(), slopes)
        return traces.to(eigenvalues), found.to(eigenvalues)

    def _pull_rows(
        self, estimate: MomentEstimate, ddof: float, weights: Tensor, needed: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Work as `pull` does, for a batch alone, from whichever side of C1 R^T is smaller."""
        ranks = self.ranks.clamp(max=estimate.rank)
        root = estimate.root(ddof).to(self.dtype)
        if self.covariance is not None:
            wide, cross = True, (root @ self.covariance).double().unsqueeze(0)
            gram = cross @ root.double().T
        else:
            k, r, dim = self.root.shape
            wide = len(root) <= r
            cross = (root @ self.root.view(-1, dim).T).view(-1, k, r).transpose(0, 1).double()
            gram = cross @ cross.mT if wide else cross.mT @ cross
        if not needed:
            return sum_of_roots(torch.linalg.eigvalsh(gram), ranks), None
        eigenvalues, vectors = eigh(gram)
        inverses = self._invert(eigenvalues, ranks, estimate)[1] * weights.unsqueeze(1)
        middle = (vectors * inverses.unsqueeze(1)) @ vectors.mT
        polar = middle @ cross if wide else cross @ middle
        if self.covariance is not None:
            pulled = polar[0]
        else:
            pulled = (polar.to(self.dtype).transpose(0, 1).flatten(1) @ self.root.flatten(0, 1)).double()
        scale = (len(root) / estimate.stretch(ddof)) ** 0.5  # of x - mean over C1
        return sum_of_roots(eigenvalues, ranks), (pulled - pulled.mean(0)) * scale

    def _invert(self, eigenvalues: Tensor, ranks: Tensor, estimate: MomentEstimate) -> tuple[Tensor, Tensor]:
        """Roots of ascending eigenvalues [k, n], and their inverses, zero where rounding may have made them."""
        values = eigenvalues.clamp(min=0).sqrt()
        size = eigenvalues.shape[1]
        products = 4 * torch.finfo(self.dtype).eps
        relative = max((max(size, self.dim) ** 0.5 * torch.finfo(torch.float64).eps) ** 0.5, products)
        noise = estimate.eps * estimate.magnitude * (estimate.count**-0.5 + self.dim**-0.5)
        floors = torch.maximum(relative * values[:, -1], noise * self.scales)
        kept = (values > floors.unsqueeze(1)) & top(size, ranks).to(values.device).bool()
        return values, torch.where(kept, values, torch.ones_like(values)).reciprocal() * kept

    def _roots(self) -> Roots:
        """The roots in float64; that of a covariance is computed when first needed."""
        if self.root is None:
            self._keep_root(factor(Gaussian(2.0, self.means[0], scatter=self.covariance.double()), ddof=1))
        stored = self.root.double()
        return Roots(Triangle(stored, self.dim, self._height, self._order) if self._height else stored, self.ranks)

    def _keep_root(self, roots: Roots) -> None:
        self.ranks = roots.ranks
        stored = roots.stored
        if isinstance(stored, Triangle):
            self._height, self._order, stored = stored.height, stored.order, stored.strips
        self._keep("root", stored.to(self.dtype))

    def _keep(self, name: str, value: Tensor) -> None:
        self.register_buffer(name, value.clone(), persistent=False)


Shares = Sequence[tuple[FrechetTargets, Tensor]]


def group(
    summaries: Sequence[Gaussian], ddof: float, dtype: torch.dtype, form: Form, together: bool, bias: Bias = "plug-in"
) -> Iterator[FrechetTargets]:
    """Targets of all clients; if `together`, small ones of about as many images are one."""
    rows = [None if summary.deviations is None else len(summary.deviations) for summary in summaries]
    for numbers in stackable(rows if together else [None] * len(summaries)):
        yield FrechetTargets(numbers, [summaries[number] for number in numbers], ddof, dtype, form, bias)


def _scale(summary: Gaussian, ddof: float) -> Tensor:
    """About the root of the covariance's largest eigenvalue: that of its Frobenius norm, at least as large."""
    if summary.is_low_rank:
        rows = summary.root(ddof)
        return (rows @ rows.T).norm().sqrt()
    return summary.covariance(ddof).norm().sqrt()


class FrozenPull(LateBuffers):
    """T = sum_i w_i T_i of an earlier step, and the trace linearised there."""

    matrix: Tensor
    age: Tensor
    level: Tensor  # tr sqrt(C0 C_i)
    inner: Tensor  # <T, C0>
    unseen: Tensor  # <T, C> expected of images that C0 lacks
    missing: Tensor  # sum_i s_i h_i / 4
    fresh: Tensor  # share of such images
    count: Tensor
    mark: Tensor

    def __init__(self, every: int) -> None:
        super().__init__("matrix", "age", "mark", *NUMBERS)
        self.every = every

    def prepare(self, dim: int, dtype: torch.dtype, device: torch.device) -> None:
        numbers: dict[str, Layout] = dict.fromkeys(NUMBERS, ((), torch.float64))
        matrix, age, mark = ((dim, dim), dtype), ((), torch.int64), ((3,), torch.float64)
        self.allocate({**numbers, "matrix": matrix, "age": age, "mark": mark}, device)

    def pull(self, shares: Shares, estimate: MomentEstimate, ddof: float, client: int | None) -> tuple[Tensor, Any]:
        """The covariances' terms, scalar, and sum_i w_i T_i (x - mean) [m, D]."""
        mark = _mark(shares, client)
        base = estimate.trace(ddof) + sum(weights @ targets.traces for targets, weights in shares)
        count, age = float(self.count), int(self.age)
        young = 0 < age < self.every and estimate.count <= GROWTH * count
        if not young or count <= len(self.matrix) or not torch.equal(mark, self.mark):
            pulled = self._freeze(shares, estimate, ddof)
            self.mark.copy_(mark)
            return (base - 2 * self.level).clamp(min=0), pulled
        self.age += 1
        self.fresh.mul_(estimate.kept).add_(estimate.share).clamp_(max=1)
        inner = estimate.inner(self.matrix.double(), ddof)
        expected = (1 - self.fresh) * self.inner + self.fresh * self.unseen
        trace = self.level + (inner - expected) / 2 + self.missing * (1 - self.count / estimate.count)
        pulled = estimate.deviations.to(self.matrix) @ self.matrix
        return (base - 2 * trace).clamp(min=0), pulled.double()

    def _freeze(self, shares: Shares, estimate: MomentEstimate, ddof: float) -> Tensor:
        """Remembers T and its numbers; the exact sum_i w_i T_i (x - mean) of this batch."""
        matrix = torch.zeros_like(self.matrix, dtype=torch.float64)
        pulled = torch.zeros_like(estimate.deviations)
        for number in (self.level, self.unseen, self.missing, self.fresh):
            number.zero_()
        for targets, weights in shares:
            factors = targets.factorise(estimate, ddof)
            rows, parts = factors.rows.flatten(0, 1), weights.unsqueeze(1)
            pulled += ((estimate.deviations @ rows.T) * (parts * factors.inverses).flatten()) @ rows
            leverages = _leverages(factors, estimate.count)
            eases = 1 + leverages * (estimate.count * estimate.share / len(pulled))
            matrix.addmm_(rows.T, rows * (parts * factors.inverses / eases).flatten().unsqueeze(1))
            self.level += weights @ factors.traces
            self.unseen += (parts * factors.values * (1 + leverages) / eases).sum()
            self.missing += (parts * factors.values * leverages).sum() / 4
        self.matrix.copy_(matrix)
        self.inner.copy_(estimate.inner(matrix, ddof))
        self.age.fill_(1)
        self.count.fill_(estimate.count)
        return pulled


def _leverages(factors: Factors, count: float) -> Tensor:
    """h_i [k, r] = 1/n sum_j s_j / (s_i + s_j) over the directions that are not left out."""
    values = torch.where(factors.inverses > 0, factors.values, 0)
    pairs = values.unsqueeze(2) + values.unsqueeze(1)
    return (values.unsqueeze(1) / pairs.clamp(min=torch.finfo(values.dtype).tiny)).sum(2) / count


def _mark(shares: Shares, client: int | None) -> Tensor:
    """Three numbers that distinguish references and clients."""
    traces: Any = sum(weights @ targets.traces for targets, weights in shares)
    centre: Any = sum(weights @ targets.means for targets, weights in shares)
    ramp = torch.arange(1, len(centre) + 1, dtype=centre.dtype, device=centre.device)
    number = torch.full_like(traces, ALL_CLIENTS if client is None else client)
    return torch.stack([number, traces, centre @ ramp.cos()])


class FastFIDLoss(FeatureLoss):
    """FID of generated features [m, D] to the clients' images, with its gradient in closed form.

    The value is that of `scores.frechet_distance` and `FrechetReference`; near it in training with `refresh_every` > 1.
    The gradient is finite for every batch: collapsed, centred, or of more images than their rank.

    A batch alone of m <= D costs one product of [m, D] with [D, D] and little beside: at m = 128 and D = 2048 forward
    and backward take 0.15 of the time of a product of two D x D matrices, where the value alone takes torchmetrics 14.
    Population moments take 8 such products, mostly for an eigendecomposition, or 0.7 to 0.9 with `refresh_every=16`.

    In float32 the products with the references' matrices are in float32. Measured against a float64 SVD with 64 to
    1,000 features of D = 512 and 2048: the value within 4e-8, its own rounding, and the gradient within 7e-7 of its
    norm; the eigenvalues of C C_i in float32 lose 2e-3 and 0.2.

    Args:
        moments: whose moments the generator has: `BatchMoments()` (if None; biased), `QueueMoments()`, `EMAMoments()`.
        aggregate: see `FeatureLoss`.
        ddof: divisor n - ddof of every covariance, as for the scores; 0 <= ddof < 2.
        refresh_every: with a queue or an average, take the eigendecomposition at every n-th step of training; see
            `FrozenPull` for what happens between. It starts once more than D images count and, while the queue fills,
            is taken whenever it has grown by a quarter. Costs one D x D matrix more to remember.
        dtype: of the references' matrices and the products with them; moments and eigenvalues are in float64.
        bias: "plug-in" for the FID of the images, which pulls a generator of few images together; "corrected" for the
            distance of populations, which needs more images in a batch (or in a queue or an average), and of each
            client, than directions in which features vary, and two further ones; ddof is then 1.

    Examples:
        >>> import torch
        >>> from fedgen.losses import FastFIDLoss
        >>> loss = FastFIDLoss().set_references([torch.tensor([[-1.0], [1.0]])])
        >>> float(loss(torch.tensor([[2.0], [4.0]])))  # the means are 3 apart, the variances are equal: 3^2
        9.0
    """

    score = "fid"

    def __init__(
        self,
        moments: Moments | None = None,
        aggregate: Aggregate = "all",
        ddof: float = 1,
        refresh_every: int = 1,
        dtype: torch.dtype = torch.float64,
        bias: Bias = "plug-in",
    ) -> None:
        super().__init__(aggregate, dtype)
        check_bias(bias, ddof)
        if bias == "corrected" and refresh_every > 1:
            raise ValueError(f"refresh_every={refresh_every} is for the plug-in distance; leave it or bias out")
        self.bias: Bias = bias
        if bias == "corrected":
            self.score = "fidc"
        if refresh_every < 1:
            raise ValueError(f"refresh_every={refresh_every}: must be at least 1")
        if not 0 <= ddof < 2:
            raise ValueError(f"ddof={ddof}: the divisor is n - ddof; 1 is what peers print, 0 the population's")
        self.moments = moments or BatchMoments()
        if refresh_every > 1 and not self.moments.remembers:
            raise ValueError(f"refresh_every={refresh_every} needs moments that change little: a queue or an average")
        self.ddof, self.refresh_every = ddof, refresh_every
        self.frozen = FrozenPull(refresh_every) if refresh_every > 1 else None
        self.targets: Any = nn.ModuleList()  # of FrechetTargets
        self.weights: Tensor = torch.empty(0)

    @torch.no_grad()
    def set_references(self, clients: Sequence[Tensor] | Sequence[Gaussian], weights: Weights = "examples") -> Self:
        """The loss itself, against these clients from now on; what it remembers of batches stays.

        For "all" the clients' pool alone is kept, for the others each client: 19 to 34 MB at D = 2048 for one of more
        images than that, its deviations for a smaller one.
        """
        if not len(clients):
            raise ValueError("a loss needs at least one client")
        summaries = (self._summarize(number, clients[number]) for number in range(len(clients)))
        if self.aggregate == "all":
            by_examples = isinstance(weights, str) and weights == "examples"
            pooled = [pool(summaries, None if by_examples else resolve_weights(weights, [1.0] * len(clients)))]
            shares = torch.ones(1, dtype=torch.float64)
        else:
            pooled = list(summaries)
            shares = resolve_weights(weights, [summary.count for summary in pooled])
        if len({summary.dim for summary in pooled}) > 1:
            raise ValueError(f"clients differ in D: {[summary.dim for summary in pooled]}; use one embedding for all")
        form: Form = "strips" if self.moments.remembers else "covariance" if self.dtype == torch.float64 else "rows"
        targets = list(group(pooled, self.ddof, self.dtype, form, self.aggregate != "own", self.bias))
        dim = pooled[0].dim
        self.moments.prepare(dim, self._device)
        if self.frozen is not None:
            self.frozen.prepare(dim, self.dtype, self._device)
        self.targets, self.weights, self.dim = nn.ModuleList(targets), shares, dim
        return self

    def evaluate(self, features: Tensor) -> Tensor:
        check_features(features, "generated features")
        check_size(features, "generated features")
        if self.moments.count(len(features)) - self.ddof <= 0:
            raise ValueError(
                f"the covariance of {len(features)} image(s) is undefined with ddof={self.ddof:g}; use a larger batch"
            )
        client = self.client_in_turn(len(self.weights))
        shares = self._shares(client)
        needed = features.requires_grad and torch.is_grad_enabled()
        remember = self.training and torch.is_grad_enabled()
        with torch.no_grad():
            estimate = self.moments.estimate(features.detach(), remember)
            if self.frozen is not None and remember:
                covariance, pulled = self.frozen.pull(shares, estimate, self.ddof, client)
            else:
                covariance, pulled = self._pull(shares, estimate, needed)
            means, centre = _mean_terms(shares, estimate)
            value = (means + covariance).to(self.dtype)
            if not needed:
                return value
            if self.bias == "corrected":  # in which the trace is that of divisor n
                pulled = pulled * estimate.stretch(self.ddof)
                spread = estimate.deviations - pulled
            else:
                spread = (estimate.deviations - pulled).mul_(estimate.stretch(self.ddof))
            gradient = spread.add_(estimate.mean - centre).mul_(2 * estimate.weight)
        return ClosedForm.apply(features, value, gradient.to(self.dtype))

    def _pull(self, shares: Shares, estimate: MomentEstimate, needed: bool) -> tuple[Tensor, Any]:
        """The covariances' terms, and sum_i w_i T_i (x - mean) [m, D] if needed."""
        term = estimate.mean.new_zeros(())
        total: Tensor | None = None
        for targets, weights in shares:
            traces, pulled = targets.pull(estimate, self.ddof, weights, needed)
            if self.bias == "corrected":
                term += weights @ (estimate.trace(0) + targets.traces - 2 * traces)
            else:
                terms = estimate.trace(self.ddof) + targets.traces - 2 * traces
                term += weights @ terms.clamp(min=0)  # as the scores do
            if pulled is not None:
                total = pulled if total is None else total.add_(pulled)
        return term, total

    def _shares(self, client: int | None) -> Shares:
        """The targets of a client, or of all of them, with their weights [k]."""
        if client is not None:
            return [(part, torch.ones_like(part.traces)) for part in self.targets if client in part.numbers]
        weighted = [(part, self.weights[part.numbers].to(part.means)) for part in self.targets]
        return [(part, weights) for part, weights in weighted if weights.any()]

    def _summarize(self, number: int, client: Tensor | Gaussian) -> Gaussian:
        if isinstance(client, Gaussian):
            parts = (client.deviations, client.shares, client.scatter)
            moved = [None if part is None else part.to(self._device) for part in parts]
            summary = Gaussian(client.count, client.mean.to(self._device), *moved)
        else:
            summary = summarize(client.to(self._device), f"features of client {number}")
        try:
            if self.aggregate != "all":  # in a pool a single image does
                summary.divisor(self.ddof)
        except ValueError as error:
            raise ValueError(f"client {number}: {error}") from error
        return summary


def _mean_terms(shares: Shares, estimate: MomentEstimate) -> tuple[Tensor, Tensor]:
    """sum_i w_i |mu - mu_i|^2, and sum_i w_i mu_i [D]."""
    term, centre = torch.zeros_like(estimate.mean[0]), torch.zeros_like(estimate.mean)
    for targets, weights in shares:
        term += weights @ (estimate.mean - targets.means).square().sum(1)
        centre += weights @ targets.means
    return term, centre
