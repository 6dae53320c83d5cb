"""Fréchet distance of generated features to clients' images as a training loss, after FastFID (arXiv 2009.14075).

Moments mu, C of the generator and mu_i, C_i of a reference: FID_i = |mu - mu_i|^2 + tr C + tr C_i - 2 tr sqrt(C C_i).
An image x that has the weight v in the population has the gradient
2 v [ (mu - mu_i) + n/(n - ddof) (I - T_i)(x - mu) ], with T_i as in `frechet_targets`. For a batch alone v = 1/m.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn

from fedgen.losses.feature_loss import Aggregate, ClosedForm, FeatureLoss
from fedgen.losses.frechet_targets import Form, FrozenPull, Shares, group
from fedgen.losses.moments import BatchMoments, MomentEstimate, Moments
from fedgen.scores.aggregate import Weights, resolve_weights
from fedgen.statistics import Gaussian, pool, summarize
from fedgen.statistics.gaussian import check_features, check_size


class FastFIDLoss(FeatureLoss):
    """FID of generated features [m, D] to the clients' images, with its gradient in closed form.

    The value is that of `scores.frechet_distance` and `FrechetReference`; near it in training with `refresh_every` > 1.
    The gradient is finite for every batch: collapsed, centred, or of more images than their rank.

    A batch alone of m <= D costs one product of [m, D] with [D, D] and little beside: at m = 128 and D = 2048 forward
    and backward take 0.15 of the time of a product of two D x D matrices, where the value alone takes torchmetrics 14.
    Population moments take 9 such products, mostly for an eigendecomposition, or 0.8 to 0.9 with `refresh_every=16`.

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
    ) -> None:
        super().__init__(aggregate, dtype)
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
        numbered: Iterable[tuple[int, Tensor | Gaussian]] = enumerate(clients)
        summaries = (self._summarize(number, client) for number, client in numbered)
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
        targets = list(group(pooled, self.ddof, self.dtype, form, together=self.aggregate != "own"))
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
            pulled: Tensor | None
            if self.frozen is not None and remember:
                covariance, pulled = self.frozen.pull(shares, estimate, self.ddof, client)
            else:
                covariance, pulled = self._pull(shares, estimate, needed)
            means, centre = _mean_terms(shares, estimate)
            value = (means + covariance).to(self.dtype)
            if not needed:
                return value
            assert pulled is not None
            spread = (estimate.deviations - pulled).mul_(estimate.stretch(self.ddof))
            gradient = spread.add_(estimate.mean - centre).mul_(2 * estimate.weight)
        return ClosedForm.apply(features, value, gradient.to(self.dtype))

    def _pull(self, shares: Shares, estimate: MomentEstimate, needed: bool) -> tuple[Tensor, Tensor | None]:
        """The covariances' terms, and sum_i w_i T_i (x - mean) [m, D] if needed."""
        term = estimate.mean.new_zeros(())
        total: Tensor | None = None
        for targets, weights in shares:
            traces, pulled = targets.pull(estimate, self.ddof, weights, needed)
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
