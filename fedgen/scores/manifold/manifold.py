"""Precision, recall, density and coverage of one generated set to every client and to their pool, in one pass.

The manifold of a set is the union of balls around its images, each reaching to the k-th nearest other image of the
set. Precision: share of generated images within the real manifold; recall: share of real images within the generated
one (Kynkäänniemi et al. 2019, arXiv 1904.06991). Density: how many real balls hold a generated image, over k, on
average; coverage: share of real balls that hold one (Naeem et al. 2020, arXiv 2002.09797). Higher is better for all.

Errors are jackknife variances from counts of points in balls: one image at a time is left out and the radii of images
that had it among their k nearest follow, so each value is the score without that image, exactly. By Efron and Stein
(1981, Annals of Statistics 9) such a jackknife is on average not too small; for scores that ask whether a point lies in
any ball it errs towards too large.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedgen.scores.aggregate import (
    FederatedScore,
    OfFeatures,
    OverClients,
    SharedVariances,
    Weights,
    client_blocks,
    client_means,
    combine,
    jackknife_variance,
    joined,
    resolve_weights,
    with_errors,
)
from fedgen.scores.definition import ClientSide, ScoreDefinition, require_whole
from fedgen.scores.kernel.kernels import block_pairs
from fedgen.scores.manifold.neighbours import Neighbours, Points, lower_bounds, nearest, pairs_within, positive_weights
from fedgen.statistics.gaussian import check_clients, check_features, check_generated

NAMES = ("precision", "recall", "density", "coverage")


class Balls:
    """Counts of points in balls, taken in a block of pairs at a time."""

    def __init__(
        self, neighbours: Neighbours, groups: Tensor, number: int, points: int, strict: bool, rings: bool
    ) -> None:
        self.neighbours, self.groups = neighbours, groups
        self._strict = strict
        self._rings: list[tuple[Tensor, Tensor]] | None = [] if rings else None
        self.inside, self.wider, self.sole = (torch.zeros_like(groups) for _ in range(3))
        self.cover = groups.new_zeros(number, points)
        self.owner = torch.zeros_like(self.cover)

    def limits(self, balls: slice) -> Tensor:
        """Squared distances that decide who is inside, float64 [1 or 2, b]."""
        squares = self.neighbours.squares[balls].T
        return squares[:1] if self._rings is None else squares

    def add(self, balls: Tensor, points: Tensor, squares: Tensor) -> None:
        """Takes in pairs [p] of a ball and a point with their squared distances; every pair once."""
        radii, closer = self.neighbours.squares[balls], torch.lt if self._strict else torch.le
        within = closer(squares, radii[:, 0])
        if self._rings is not None:
            widened = closer(squares, radii[:, 1])
            self.wider.index_add_(0, balls[widened], torch.ones_like(balls[widened]))
            ring = widened & ~within
            self._rings.append((balls[ring], points[ring]))
        balls, points = balls[within], points[within]
        self.inside.index_add_(0, balls, torch.ones_like(balls))
        self.sole.index_add_(0, balls, points)
        flat = self.groups[balls] * self.cover.shape[1] + points
        self.cover.view(-1).index_add_(0, flat, torch.ones_like(flat))
        self.owner.view(-1).index_add_(0, flat, balls)

    def rings(self) -> tuple[Tensor, Tensor]:
        """Balls and points [p] outside them that come to lie in them when one of the k nearest is left out."""
        assert self._rings  # these were asked for
        balls, points = zip(*self._rings)
        return torch.cat(balls), torch.cat(points)

    def sums(self, values: Tensor) -> Tensor:
        total = torch.zeros(len(self.cover), dtype=torch.float64, device=values.device)
        return total.index_add_(0, self.groups, values.double())


def cover_changes(balls: Balls, targets: Tensor, number: int) -> Tensor:
    """Count the points that are in some ball of a group more once one of its balls is left out, float64 [number, n]."""
    group, point = (balls.cover == 1).nonzero(as_tuple=True)
    lost = balls.owner[group, point]
    changes = torch.zeros(number, len(balls.groups), dtype=torch.float64, device=targets.device)
    changes.index_put_((targets[point], lost), changes.new_tensor(-1.0), accumulate=True)
    ring_balls, ring_points = balls.rings()
    flat = balls.groups[ring_balls] * balls.cover.shape[1] + ring_points
    covered = balls.cover.view(-1)[flat]
    some = covered <= 1
    left_out, point = balls.neighbours.places[ring_balls[some]], ring_points[some]  # [p, k], [p]
    owner, covered = balls.owner.view(-1)[flat[some]], covered[some]
    gained = (covered == 0).unsqueeze(1) | (left_out == owner.unsqueeze(1))
    row, _ = gained.nonzero(as_tuple=True)
    keys = (left_out[gained] * balls.cover.shape[1] + point[row]).unique()
    centre, point = keys // balls.cover.shape[1], keys % balls.cover.shape[1]
    changes.index_put_((targets[point], centre), changes.new_tensor(1.0), accumulate=True)
    return changes


def neighbour_gains(balls: Balls, gains: Tensor) -> Tensor:
    """Sum of gains [n] over the balls that have each image among their k nearest, float64 [n]."""
    places = balls.neighbours.places
    total = torch.zeros(len(places), dtype=torch.float64, device=gains.device)
    return total.index_add_(0, places.flatten(), gains.double().repeat_interleave(places.shape[1]))


def mean_curve(values: Tensor) -> Tensor:
    """The mean of values over the last dimension, float64 [..., m], without each of them, up to a constant."""
    return values.double() / -max(1, values.shape[-1] - 1)


def without_real(balls: Balls, k: int) -> dict[str, Tensor]:
    """Precision, density and coverage of each ball's group without its image, up to a constant of the group, [n]."""
    points = balls.cover.shape[1]
    targets = torch.zeros(points, dtype=torch.int64, device=balls.groups.device)
    held, held_wider = balls.inside > 0, balls.wider > 0
    sizes = balls.sums(torch.ones_like(balls.groups))[balls.groups]
    coverage = balls.sums(held)[balls.groups] - held.double() + neighbour_gains(balls, held_wider & ~held)
    density = neighbour_gains(balls, balls.wider - balls.inside) - balls.inside
    return {
        "precision": cover_changes(balls, targets, 1)[0] / points,
        "density": density / (k * points),
        "coverage": coverage / (sizes - 1),
    }


def without_generated(balls: Balls, k: int) -> dict[str, Tensor]:
    """Precision, density and coverage of each group without each generated image, up to a constant, [groups, m]."""
    alone = (balls.inside == 1).nonzero().flatten()
    changes = torch.zeros(balls.cover.shape, dtype=torch.float64, device=balls.cover.device)
    groups, sizes = balls.groups[alone], balls.sums(torch.ones_like(balls.groups))
    changes.index_put_((groups, balls.sole[alone]), -1 / sizes[groups], accumulate=True)
    return {"precision": mean_curve(balls.cover > 0), "density": mean_curve(balls.cover / k), "coverage": changes}


class ManifoldReference(OfFeatures):
    """The clients' cached side of the four scores: features and radii, within each client and within the pool.

    Args:
        features: [n_i, D] of each client, of at least k + 1 images, of any floating dtype (kept as they are).
        k: which neighbour a ball reaches to; 5 in prdc, 3 in torch-fidelity.
        weights: of the clients in avg: "examples" (n_i / n), "uniform" or K positive numbers. Distances to neighbours
            know no weights, so that in `all` the pool is the union of the images whatever the weights, each counting
            once. With "examples" recall-all equals recall-avg; with others it does not.
        strict: whether an image at exactly the radius is outside. False is torch-fidelity's rule. True is prdc's; by it
            images with k copies hold nothing, not even themselves.
        device: where to work; that of the first client's features if None.

    Raises:
        ValueError: for unusable features or weights, a weight of 0, k below 1, or a client of fewer than k + 1 images.

    Examples:
        >>> import torch
        >>> from fedgen.scores import ManifoldReference
        >>> real = torch.tensor([[0.0], [1.0], [2.0]])
        >>> reference = ManifoldReference.from_features([real], k=1)
        >>> found = reference.score(torch.tensor([[0.5], [9.0], [9.5]]), errors=False)  # one of three near the data
        >>> {name: round(score.values["all"], 3) for name, score in found.items()}
        {'precision': 0.333, 'recall': 1.0, 'density': 0.667, 'coverage': 0.667}
    """

    def __init__(
        self,
        features: Iterable[Tensor],
        k: int = 5,
        weights: Weights = "examples",
        strict: bool = False,
        device: torch.device | str | None = None,
    ) -> None:
        parts = [part.detach() for part in features]
        if k < 1 or int(k) != k:
            raise ValueError(f"k must be a whole number of at least 1, got {k}")
        check_clients(parts)
        for number, part in enumerate(parts):
            _check_count(part, k, f"client {number}")
        self.k, self.strict = int(k), strict
        self.counts = [len(part) for part in parts]
        self.weights = positive_weights(weights, self.counts)
        parts = [part.to(device or parts[0].device) for part in parts]
        self._points = Points(joined(parts))
        clients = torch.repeat_interleave(torch.arange(len(parts)), torch.tensor(self.counts))
        self._own, self._pool = nearest(self._points, self.k, clients)
        self._clients = clients.to(self._points.squares.device)

    def score(self, generated: Tensor, errors: bool = True) -> dict[str, FederatedScore]:
        """Precision, recall, density and coverage, by name, of generated features [m, D]: clients, avg, all and worst.

        Counts are those of float64 distances. Higher is better, so that "worst" is the smallest.

        Args:
            generated: floating features; one set for all clients, of at least k + 1 images.
            errors: whether to add standard errors, by the jackknife that leaves out one image at a time, radii
                following. Generated images vary as one sample, real ones within each client; weights stay, and the
                worst client stays the worst. Against the spread of repeated draws: right for recall over real images
                and precision and density over generated ones, up to 2.2 times too large for the others. The bias that
                few images put into radii is left out. A client of k + 1 images keeps its radii.

        Raises:
            ValueError: for unusable features, another D, or fewer than k + 1 images.
        """
        check_features(generated, "generated features")
        _check_count(generated, self.k, "the generated set")
        check_generated(generated, self._points.features.shape[1])
        made = generated.detach().to(self._points.features.device)
        points, around = Points(made, self._points.origin), nearest(Points(made), self.k)[0]
        one_group, alone = torch.zeros_like(self._clients), len(self.counts) == 1
        pool = None if alone else Balls(self._pool, one_group, 1, len(made), self.strict, errors)
        shared = {name: SharedVariances(self.weights, jackknife_variance) for name in NAMES}
        values, over_own, recalled, lost = [], [], [], torch.zeros(len(made), dtype=torch.float64)
        for clients, images in client_blocks(self.counts, len(made)):
            counts = self.counts[clients]
            own, recall = self._count(clients, images, points, around, pool, errors)
            recalled.append((recall.cover[0] > 0).cpu())
            values.append(_values(own, recalled[-1], counts, self.k))
            if not errors:
                continue
            changes = cover_changes(recall, own.groups, len(counts)).cpu()
            lost += changes.sum(0)
            rows = without_generated(own, self.k)
            rows["recall"] = changes / torch.tensor(counts, dtype=torch.float64).unsqueeze(1)
            for name in NAMES:
                shared[name].add(clients, rows[name].cpu())
            over_own.append(without_real(own, self.k))
            over_own[-1]["recall"] = torch.cat([mean_curve(part) for part in recalled[-1].split(counts)])
        pool, held = pool or own, torch.cat(recalled)
        values.append(_values(pool, held, [len(held)], self.k))
        found = {name: torch.cat([part[name] for part in values]) for name in NAMES}
        sides = {name: (found[name][:-1], float(found[name][-1])) for name in NAMES}
        scores = {name: combine(name, *both, self.weights, higher_is_better=True) for name, both in sides.items()}
        if not errors:
            return scores
        by_count = resolve_weights("examples", self.counts)  # of the pool: a union of images whatever the weights
        curves, over_pool = without_generated(pool, self.k), without_real(pool, self.k)
        curves["recall"], over_pool["recall"] = (lost / len(held)).unsqueeze(0), mean_curve(held)
        for name, score in scores.items():
            by_own, by_pool = torch.cat([part[name] for part in over_own]).cpu(), over_pool[name].cpu()
            of_clients = torch.stack([jackknife_variance(part) for part in by_own.split(self.counts)])
            of_pool = sum(float(jackknife_variance(part)) for part in by_pool.split(self.counts))
            real = self.weights.square() @ of_clients, of_pool, of_clients  # these vary within each client on its own
            slopes = client_means(by_pool, self.counts) * (1 - len(held))
            beyond = OverClients(score.per_client, slopes, self.weights, by_count)
            scores[name] = with_errors(score, shared[name], curves[name][0].cpu(), real, beyond)
        return scores

    def _count(
        self, clients: slice, images: slice, made: Points, around: Neighbours, pool: Balls | None, errors: bool
    ) -> tuple[Balls, Balls]:
        """Balls of some clients and of the generated set, with all pairs of both counted, also in the pool's balls."""
        real, first = self._points, images.start
        groups, count = self._clients[images] - clients.start, images.stop - first
        around_own = Neighbours(self._own.squares[images], self._own.places[images] - first)
        own = Balls(around_own, groups, clients.stop - clients.start, len(made), self.strict, errors)
        one_group = torch.zeros(len(made), dtype=torch.int64, device=groups.device)
        recall = Balls(around, one_group, 1, count, self.strict, errors)
        dtype = real.dtype if made.dtype == real.dtype else torch.float64
        for block, columns in block_pairs(count, len(made), symmetric=False):
            rows = slice(block.start + first, block.stop + first)
            low = lower_bounds(real, rows, made, columns, dtype)
            limits = own.limits(block) if pool is None else torch.cat([own.limits(block), pool.limits(rows)])
            i, j, squares = pairs_within(real, rows, made, columns, low, limits, by_row=True)
            own.add(i - first, j, squares)
            if pool is not None:
                pool.add(i, j, squares)
            i, j, squares = pairs_within(real, rows, made, columns, low, recall.limits(columns), by_row=False)
            recall.add(j, i - first, squares)
        return own, recall


def _values(balls: Balls, recalled: Tensor, counts: list[int], k: int) -> dict[str, Tensor]:
    """The scores to each group of balls, float64 [groups], given which of the groups' images are recalled."""
    number, sizes = balls.cover.shape[1], torch.tensor(counts, dtype=torch.float64)
    return {
        "precision": (balls.cover > 0).sum(1).cpu().double() / number,
        "recall": torch.stack([part.sum() for part in recalled.split(counts)]).double() / sizes,
        "density": balls.sums(balls.inside).cpu() / (k * number),
        "coverage": balls.sums(balls.inside > 0).cpu() / sizes,
    }


def _check_count(part: Tensor, k: int, whose: str) -> None:
    if len(part) < k + 1:
        remedy = f"lower k to at most {len(part) - 1}, or add images"
        raise ValueError(f"{whose} has {len(part)} image(s), a radius to the {k}-th neighbour needs {k + 1}; {remedy}")


@dataclass(frozen=True)
class NeighbourScore(ScoreDefinition):
    """One of the four; `all` counts every image once, whatever the clients' weights.

    Args:
        k: the neighbour that a ball around an image reaches to.
        strict: whether a point on a ball's border is outside.
    """

    family: ClassVar[str] = "manifold"
    knows_weights: ClassVar[bool] = False
    higher_is_better: ClassVar[bool] = True

    k: int = 5
    strict: bool = False

    def __post_init__(self) -> None:
        require_whole(1, k=self.k)
        if not isinstance(self.strict, bool):
            raise ValueError(f"strict must be true or false, got {self.strict!r}")

    def too_few(self, count: float, whose: str) -> str:
        if count > self.k:
            return ""
        remedy = f"k={int(count) - 1} at most, or more images" if count > 1 else "more images"
        return (
            f"{whose} has {count:g} image(s), and {self.name} needs {self.k + 1}, to reach the {self.k}-th neighbour of"
            f" each: {remedy}"
        )

    def prepare(self, clients: ClientSide) -> ManifoldReference:
        return ManifoldReference.from_features(clients.features, weights=clients.weights, **self.options)


@dataclass(frozen=True)
class PrecisionScore(NeighbourScore):
    """Share of generated images within a ball of real ones (Kynkaanniemi et al. 2019, arXiv 1904.06991)."""

    name: ClassVar[str] = "precision"


@dataclass(frozen=True)
class RecallScore(NeighbourScore):
    """Share of real images within a ball of generated ones (Kynkaanniemi et al. 2019)."""

    name: ClassVar[str] = "recall"


@dataclass(frozen=True)
class DensityScore(NeighbourScore):
    """Number of real images' balls that a generated image lies in, over k (Naeem et al. 2020, arXiv 2002.09797)."""

    name: ClassVar[str] = "density"


@dataclass(frozen=True)
class CoverageScore(NeighbourScore):
    """Share of real images whose ball holds a generated one (Naeem et al. 2020)."""

    name: ClassVar[str] = "coverage"
