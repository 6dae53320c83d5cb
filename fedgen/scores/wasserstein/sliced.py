"""Sliced Wasserstein distance: the exact one-dimensional distance, averaged over random directions.

SW_p = (mean over theta of W_p^p(<theta, X>, <theta, Y>))^(1/p) with theta uniform on the sphere (Bonneel et al. 2015,
J. Math. Imaging Vis. 51). In one dimension optimal plans match sorted values, for any numbers and weights of images.
The value comes as the dual sum_a w_a phi(x_a) + sum_b v_b psi(y_b), whose potentials are the influences of the images:
the standard errors cost no second pass.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from fedgen import seeds
from fedgen.scores.aggregate import (
    FederatedScore,
    OfFeatures,
    SharedVariances,
    Weights,
    client_blocks,
    combine,
    resolve_weights,
    with_influences,
)
from fedgen.scores.definition import ClientSide, ScoreDefinition, require_whole
from fedgen.statistics.gaussian import check_clients, check_generated

VALUES = 2**22  # projected values of one side held at once: 34 MB


class Projected:
    """One side on some directions, sorted: values [L, n], and the cumulative weights of the images, [n] or [L, n]."""

    def __init__(self, values: Tensor, shares: Tensor) -> None:
        self.values, self.order = values.sort(dim=1)
        self.shares, count = shares, len(shares)
        equal = bool((shares == shares[0]).all())  # one row of levels then serves all directions
        self.levels = torch.arange(1, count + 1, dtype=torch.float64) / count if equal else shares[self.order].cumsum(1)


def transport_1d(x: Projected, y: Projected, p: int) -> tuple[Tensor, Tensor, Tensor]:
    """W_p^p on every direction, [L], with the potentials phi [L, n] and psi [L, m] in the images' own order."""
    above = _place(y.levels, x.levels, right=True)
    below = _place(x.levels, y.levels, right=False)
    phi = _potential(x.values, _at(y.values, above), p)
    psi = _potential(y.values, _at(x.values, below), p) + (x.values[:, :1] - y.values[:, :1]).abs() ** p
    phi = torch.empty_like(phi).scatter_(1, x.order, phi)
    psi = torch.empty_like(psi).scatter_(1, y.order, psi)
    return (phi @ x.shares + psi @ y.shares).clamp(min=0), phi, psi


def sliced_wasserstein(x: Tensor, y: Tensor, p: int = 1, projections: int = 1000, seed: int = 0) -> float:
    """The distance between features x [n, D] and y [m, D], in the features' unit.

    Args:
        x: floating features; computed in float64, some directions at a time.
        y: likewise; n and m may differ.
        p: 1 or 2.
        projections: random directions; the error they bring is of the order of 1 / sqrt(projections).
        seed: of the directions.

    Raises:
        ValueError: for unusable features, or options out of range.

    Examples:
        >>> import torch
        >>> from fedgen.scores import sliced_wasserstein
        >>> sliced_wasserstein(torch.tensor([[0.0], [1.0]]), torch.tensor([[3.0], [4.0]]), projections=5)  # a shift
        3.0
    """
    return SlicedReference.from_features([x], p, projections, seed).score(y, errors=False).values["all"]


class SlicedReference(OfFeatures):
    """The clients' features, against which generated ones are scored on the same directions for all.

    Args:
        features: floating [n_i, D], one tensor a client, kept as they are.
        p: 1 or 2.
        projections: random directions.
        seed: of the directions.
        weights: "examples" (n_i / n), "uniform" or K numbers; the pool is the mixture sum_i w_i P_i.

    Raises:
        ValueError: for unusable features or weights, or options out of range.

    Examples:
        >>> import torch
        >>> from fedgen.scores import SlicedReference
        >>> clients = [torch.tensor([[-1.0]]), torch.tensor([[1.0]])]
        >>> score = SlicedReference.from_features(clients, projections=10).score(torch.tensor([[0.0]]), errors=False)
        >>> score.values["avg"], score.values["all"]
        (1.0, 1.0)
    """

    def __init__(
        self,
        features: Iterable[Tensor],
        p: int = 1,
        projections: int = 1000,
        seed: int = 0,
        weights: Weights = "examples",
    ) -> None:
        if p not in (1, 2):
            raise ValueError(f"p must be 1 or 2, got {p}")
        if projections < 2:
            raise ValueError(f"projections must be at least 2, better hundreds, got {projections}")
        self._parts = [part.detach().cpu() for part in features]
        check_clients(self._parts)
        self.p, self.projections, self.seed = p, projections, seed
        self.counts = [len(part) for part in self._parts]
        self.weights = resolve_weights(weights, self.counts)
        by_count = isinstance(weights, str) and weights == "examples"
        masses = [1.0 / sum(self.counts) if by_count else w / n for w, n in zip(self.weights.tolist(), self.counts)]
        self._pool_shares = torch.tensor(masses, dtype=torch.float64).repeat_interleave(torch.tensor(self.counts))

    def score(self, generated: Tensor, errors: bool = True) -> FederatedScore:
        """The distance of generated features [m, D] to every client, "sw1" or "sw2": avg, all and worst.

        All images of both sides are used. Finite samples make it too large, the more so the fewer images: equal
        distributions do not score 0.

        Args:
            generated: floating features; one set for all clients.
            errors: whether to add standard errors (first order), with the parts "generated", "real" (both with the
                other side's images held fixed) and "projections" (with all images held fixed). Where the distance is
                hardly above its bias they are rough.

        Raises:
            ValueError: for unusable features or another D.
        """
        check_generated(generated, self._parts[0].shape[1])
        made, number = generated.detach().cpu(), len(self.counts)
        shared = {side: SharedVariances(self.weights) for side in ("generated", "projections")}
        means, real = [], []
        for clients, _ in client_blocks(self.counts, max(len(made), self.projections)):
            rows = self._slices(clients, clients.stop == number > 1, made)  # the pool's are the last ones
            powers = rows.powers.mean(1)
            means.append(powers)
            if not errors:
                continue
            # d(V^(1/p)) = V^(1/p - 1) / p dV, which says nothing where V is 0
            rows = rows.scaled(torch.where(powers > 0, powers ** (1 / self.p - 1) / self.p, 0.0))
            count = clients.stop - clients.start
            shared["generated"].add(clients, rows.generated[:count])
            shared["projections"].add(clients, rows.powers[:count])
            real += rows.real
        distances = torch.cat(means) ** (1 / self.p)
        per_client, name, pooled = distances[:number], f"sw{self.p}", float(distances[-1])
        score = combine(name, per_client, pooled, self.weights)
        if not errors:
            return score
        influences = rows.generated[-1], real[:number], real[-1].split(self.counts)
        found = with_influences(score, shared["generated"], *influences)
        worst = int(per_client.masked_fill(self.weights == 0, -torch.inf).argmax())
        parts = {**found.error_parts, "projections": shared["projections"].errors(worst, rows.powers[-1])}
        own = {**found.client_error_parts, "projections": shared["projections"].of_clients.sqrt()}
        score = combine(name, per_client, pooled, self.weights, None, parts, own, over_clients=found.over_clients)
        return replace(score, real_influences=found.real_influences)

    def _slices(self, clients: slice, pooled: bool, generated: Tensor) -> "Slices":
        shares = [torch.full((count,), 1 / count, dtype=torch.float64) for count in self.counts[clients]]
        even = torch.full((len(generated),), 1 / len(generated), dtype=torch.float64)
        counts = self.counts[clients] + ([sum(self.counts)] if pooled else [])
        powers, made = (torch.zeros(len(counts), n, dtype=torch.float64) for n in (self.projections, len(generated)))
        slices = Slices(powers, made, [torch.zeros(count, dtype=torch.float64) for count in counts])
        for start, directions in self._directions(generated.shape[1], max(sum(self.counts), len(generated))):
            columns = slice(start, start + len(directions))
            values = [_project(part, directions) for part in (self._parts if pooled else self._parts[clients])]
            other = Projected(_project(generated, directions), even)
            for row, (part, share) in enumerate(zip(values[clients] if pooled else values, shares)):
                slices.add(row, columns, *transport_1d(Projected(part, share), other, self.p))
            if pooled:
                pool = Projected(torch.cat(values, 1), self._pool_shares)
                slices.add(len(shares), columns, *transport_1d(pool, other, self.p))
        return slices

    def _directions(self, dim: int, images: int) -> Iterator[tuple[int, Tensor]]:
        """Unit vectors [L, D] and the place of the first, a chunk at a time, the same ones whatever the chunk."""
        random = seeds.generator(self.seed, "sliced wasserstein")
        size = max(1, VALUES // images)
        for start in range(0, self.projections, size):
            places = range(start, min(start + size, self.projections))
            rows = torch.stack([torch.randn(dim, dtype=torch.float64, generator=random) for _ in places])
            yield start, rows / rows.norm(dim=1, keepdim=True)


@dataclass(frozen=True, eq=False)
class Slices:
    """Sums over directions for some sides: clients, or their pool."""

    powers: Tensor
    generated: Tensor
    real: list[Tensor]

    def add(self, row: int, columns: slice, power: Tensor, phi: Tensor, psi: Tensor) -> None:
        """Adds what `transport_1d` found for one side on some directions."""
        self.powers[row, columns] = power
        # potentials are known up to a constant, which differs by direction and would cost digits
        self.generated[row] += (psi - psi.mean(1, keepdim=True)).sum(0)
        self.real[row].add_((phi - phi.mean(1, keepdim=True)).sum(0))

    def scaled(self, slopes: Tensor) -> "Slices":
        """Powers, and means of potentials over directions, of every side times its slope [k]."""
        column, count = slopes.unsqueeze(1), self.powers.shape[1]
        real = [part / count * slope for part, slope in zip(self.real, slopes)]
        return Slices(self.powers * column, self.generated / count * column, real)


def _project(features: Tensor, directions: Tensor) -> Tensor:
    """Values [L, n] of features [n, D] along directions [L, D], float64 without a float64 copy of all features."""
    return torch.cat([directions @ part.double().T for part in features.split(8192)], 1)


def _place(levels: Tensor, of: Tensor, right: bool) -> Tensor:
    """For each step between neighbours of one side, the place on the other side at the level between them."""
    steps = of[..., :-1].contiguous()
    if levels.ndim != steps.ndim:
        rows = max(levels.shape[0] if levels.ndim == 2 else 0, steps.shape[0] if steps.ndim == 2 else 0)
        levels, steps = levels.expand(rows, -1), steps.expand(rows, -1)
    found = torch.searchsorted(levels.contiguous(), steps.contiguous(), right=right)
    return found.clamp(max=levels.shape[-1] - 1)  # rounding of the last level


def _at(values: Tensor, places: Tensor) -> Tensor:
    return values[:, places] if places.ndim == 1 else values.gather(1, places)


def _potential(values: Tensor, partners: Tensor, p: int) -> Tensor:
    """Potential of sorted values [L, n], 0 at the first, from the other side's values at the steps [L, n - 1]."""
    steps = (values[:, 1:] - partners).abs() ** p - (values[:, :-1] - partners).abs() ** p
    return torch.cat([torch.zeros_like(values[:, :1]), steps.cumsum(1)], 1)


@dataclass(frozen=True)
class SlicedScore(ScoreDefinition):
    """Sliced p-Wasserstein distance.

    Args:
        projections: random directions.
        seed: of the directions.
    """

    p: ClassVar[int]

    projections: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        require_whole(2, projections=self.projections)
        require_whole(0, seed=self.seed)

    def prepare(self, clients: ClientSide) -> SlicedReference:
        return SlicedReference.from_features(clients.features, p=self.p, weights=clients.weights, **self.options)


@dataclass(frozen=True)
class SlicedScore1(SlicedScore):
    """The sliced 1-Wasserstein distance."""

    name: ClassVar[str] = "sw1"
    p: ClassVar[int] = 1


@dataclass(frozen=True)
class SlicedScore2(SlicedScore):
    """The sliced 2-Wasserstein distance."""

    name: ClassVar[str] = "sw2"
    p: ClassVar[int] = 2
