"""The covariances' terms of a Fréchet loss with an eigendecomposition at every k-th step only."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fedgen.losses.frechet.frechet_targets import Factors, FrechetTargets
from fedgen.losses.frechet.late_buffers import LateBuffers, Layout
from fedgen.losses.moments import MomentEstimate

GROWTH = 1.25  # of the number of images, after which the factors are taken anew
EVERYBODY = -1
NUMBERS = ("level", "inner", "unseen", "missing", "fresh", "count")


class FrozenPull(LateBuffers):
    """T = sum_i w_i T_i of an earlier step, and the trace linearised there.

    tr sqrt(C C_i) is concave in C with the derivative T_i / 2, so tr sqrt(C0 C_i) + <T_i, C - C0> / 2 is at least as
    large, wrong in second order. Of high-dimensional samples the second order is large: T0 fits the n images that it
    was made from, and pulls others harder. To first order in 1/n, over samples of a population, with the singular
    values s of C0 and C_i and h_i = 1/n sum_j s_j / (s_i + s_j) (D/2n if all are equal):

    - T0 pulls an image of the share v in C0 by the factor 1 + n v h_i less in direction i than one that C0 lacks, so T
      is frozen with that factor taken out;
    - <T0, C> is sum_i s_i (1 + h_i) in the mean over images that C0 lacks, but tr sqrt(C0 C_i) = sum_i s_i for C0;
    - tr sqrt(C0 C_i) is by sum_i s_i h_i / 4 below that of the population.

    The trace therefore is tr sqrt(C0 C_i) + (<T, C> - what it is expected to be) / 2 + what more images n add to the
    last: new images of the same population leave it as it is. The step that takes the factors has its exact value and
    gradient.

    Measured at D = 2048 with batches of 128 of a generator that stands still, a queue of 10,000 and factors at every
    16th step: a step costs 0.9 products of D x D matrices instead of 8.5 in the mean, the value is within 0.6 percent,
    and the gradient's cosine with the exact one falls from 0.995 to 0.93. It is the share of the images since that
    matters: where they are half of the population (an average of decay 0.95) it falls to 0.72.

    What is remembered (T and some numbers) lies in saved buffers; T is taken anew for other clients or references.

    Args:
        every: steps between eigendecompositions.
    """

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
        """Makes the buffers for features [m, dim], unless they are there."""
        numbers: dict[str, Layout] = dict.fromkeys(NUMBERS, ((), torch.float64))
        layouts: dict[str, Layout] = {
            "matrix": ((dim, dim), dtype),
            "age": ((), torch.int64),
            "mark": ((3,), torch.float64),
        }
        self.allocate({**layouts, **numbers}, device)

    def pull(
        self, shares: Sequence[tuple[FrechetTargets, Tensor]], estimate: MomentEstimate, ddof: float, client: int | None
    ) -> tuple[Tensor, Tensor]:
        """The covariances' terms, scalar, and sum_i w_i T_i (x - mean) [m, D]."""
        mark = _mark(shares, client)
        base = estimate.trace(ddof) + sum(weights @ targets.traces for targets, weights in shares)
        if self._is_due(estimate, mark):
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

    def _is_due(self, estimate: MomentEstimate, mark: Tensor) -> bool:
        count, age = float(self.count), int(self.age)
        young = 0 < age < self.every and estimate.count <= GROWTH * count
        return not (young and count > len(self.matrix) and torch.equal(mark, self.mark))

    def _freeze(self, shares: Sequence[tuple[FrechetTargets, Tensor]], estimate: MomentEstimate, ddof: float) -> Tensor:
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


def _mark(shares: Sequence[tuple[FrechetTargets, Tensor]], client: int | None) -> Tensor:
    """Three numbers that tell references and clients apart."""
    traces = sum(weights @ targets.traces for targets, weights in shares)
    centre = sum(weights @ targets.means for targets, weights in shares)
    assert isinstance(traces, Tensor)
    assert isinstance(centre, Tensor)
    ramp = torch.arange(1, len(centre) + 1, dtype=centre.dtype, device=centre.device)
    return torch.stack([torch.full_like(traces, EVERYBODY if client is None else client), traces, centre @ ramp.cos()])
