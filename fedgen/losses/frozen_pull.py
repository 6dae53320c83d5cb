"""The covariances' terms of a Fréchet loss with an eigendecomposition at every k-th step only."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fedgen.losses.frechet_targets import Factors, FrechetTargets
from fedgen.losses.late_buffers import LateBuffers, Layout
from fedgen.losses.moments import Estimate

GROWTH = 1.25  # of the number of images, after which the factors are taken anew
EVERYBODY = -1


class FrozenPull(LateBuffers):
    """T = sum_i w_i T_i of an earlier step, and the trace linearised there.

    tr sqrt(C C_i) is concave in C with the derivative T_i / 2, so tr sqrt(C0 C_i) + <T_i, C - C0> / 2 is at least as
    large, wrong in second order. Of high-dimensional samples the second order is large: T0 fits the n images that it
    was made from, and pulls others harder. In the mean over new images of the same distribution its part in direction i
    is too large by the factor 1 + h_i, h_i = 1/n sum_j s_j / (s_i + s_j) with the singular values s (first-order
    perturbation; 1 + D/2n if all are equal). T is frozen with that taken out, and the trace is
    tr sqrt(C0 C_i) + (<T, C> - (1 - f) <T, C0> - f tr sqrt(C0 C_i)) / 2 where f is the share of images newer than C0:
    new images of the same distribution leave it as it is. The step that takes the factors has its exact value and
    gradient.

    What is remembered (T and some numbers) lies in saved buffers; T is taken anew for other clients or references.

    Args:
        every: steps between eigendecompositions.
    """

    matrix: Tensor
    age: Tensor
    level: Tensor
    inner: Tensor
    fresh: Tensor
    count: Tensor
    mark: Tensor

    def __init__(self, every: int) -> None:
        super().__init__("matrix", "age", "level", "inner", "fresh", "count", "mark")
        self.every = every

    def prepare(self, dim: int, dtype: torch.dtype, device: torch.device) -> None:
        """Makes the buffers for features [m, dim], unless they are there."""
        numbers: dict[str, Layout] = dict.fromkeys(("level", "inner", "fresh", "count"), ((), torch.float64))
        layouts: dict[str, Layout] = {
            "matrix": ((dim, dim), dtype),
            "age": ((), torch.int64),
            "mark": ((3,), torch.float64),
        }
        self.allocate({**layouts, **numbers}, device)

    def pull(
        self, shares: Sequence[tuple[FrechetTargets, Tensor]], estimate: Estimate, ddof: float, client: int | None
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
        trace = self.level + (inner - self.inner - self.fresh * (self.level - self.inner)) / 2
        pulled = estimate.deviations.to(self.matrix) @ self.matrix
        return (base - 2 * trace).clamp(min=0), pulled.double()

    def _is_due(self, estimate: Estimate, mark: Tensor) -> bool:
        count, age = float(self.count), int(self.age)
        young = 0 < age < self.every and estimate.count <= GROWTH * count
        return not (young and count > len(self.matrix) and torch.equal(mark, self.mark))

    def _freeze(self, shares: Sequence[tuple[FrechetTargets, Tensor]], estimate: Estimate, ddof: float) -> Tensor:
        """Remembers T and its numbers; the exact sum_i w_i T_i (x - mean) of this batch."""
        matrix = torch.zeros_like(estimate.covariance(ddof))
        pulled = torch.zeros_like(estimate.deviations)
        self.level.zero_()
        for targets, weights in shares:
            factors = targets.factorise(estimate, ddof)
            rows = factors.rows.flatten(0, 1)
            pull = (weights.unsqueeze(1) * factors.inverses).flatten()
            pulled += ((estimate.deviations @ rows.T) * pull) @ rows
            eased = pull / (1 + _leverages(factors, estimate.count).flatten())
            matrix.addmm_(rows.T, rows * eased.unsqueeze(1))
            self.level += weights @ factors.traces
        self.matrix.copy_(matrix)
        self.inner.copy_(estimate.inner(self.matrix.double(), ddof))
        self.age.fill_(1)
        self.fresh.zero_()
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
