"""Balls around images, each reaching to its k-th nearest neighbour, and counts of the points that lie in them."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedgen.scores.manifold.neighbours import Neighbours


@dataclass(frozen=True, eq=False)
class Rings:
    """Points outside a ball that come to lie in it when one of the k nearest is left out: balls and points [p]."""

    balls: Tensor
    points: Tensor


class Balls:
    """Counts of points in balls, taken in a block of pairs at a time.

    Args:
        neighbours: of the balls' centres; a ball's squared radius is the first of its squares.
        groups: which group each ball is of, int64 [n].
        number: of groups.
        points: how many points there are.
        strict: whether a point on a ball's surface is outside.
        rings: whether to keep what jackknives need.

    Attributes:
        inside: points in each ball, int64 [n].
        wider: points in it once one of its k nearest centres is left out, int64 [n].
        sole: the point of each ball that holds one, int64 [n].
        cover: balls of each group that hold a point, int64 [groups, points].
        owner: the ball of each group that holds a point which no other of the group holds, int64 [groups, points].
    """

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
        radii = self.neighbours.squares[balls]
        within = squares < radii[:, 0] if self._strict else squares <= radii[:, 0]
        if self._rings is not None:
            widened = squares < radii[:, 1] if self._strict else squares <= radii[:, 1]
            self.wider.index_add_(0, balls[widened], torch.ones_like(balls[widened]))
            ring = widened & ~within
            self._rings.append((balls[ring], points[ring]))
        balls, points = balls[within], points[within]
        self.inside.index_add_(0, balls, torch.ones_like(balls))
        self.sole.index_add_(0, balls, points)
        flat = self.groups[balls] * self.cover.shape[1] + points
        self.cover.view(-1).index_add_(0, flat, torch.ones_like(flat))
        self.owner.view(-1).index_add_(0, flat, balls)

    def rings(self) -> Rings:
        """Return the counts of all pairs taken in."""
        if not self._rings:
            raise RuntimeError("these balls were made without rings, or no pairs were added")
        balls, points = zip(*self._rings)
        return Rings(torch.cat(balls), torch.cat(points))

    def sums(self, values: Tensor) -> Tensor:
        """Sums of values [n] over each group's balls, float64 [groups]."""
        total = torch.zeros(len(self.cover), dtype=torch.float64, device=values.device)
        return total.index_add_(0, self.groups, values.double())


def cover_changes(balls: Balls, targets: Tensor, number: int) -> Tensor:
    """Count the points that are in some ball of a group more once one of its balls is left out, float64 [number, n].

    The radii of the others follow: a ball that had the image among its k nearest reaches to the next one.

    Args:
        balls: with rings.
        targets: which kind each point is of, int64 [points]; kinds are counted apart.
        number: of kinds.
    """
    group, point = (balls.cover == 1).nonzero(as_tuple=True)
    lost = balls.owner[group, point]
    changes = torch.zeros(number, len(balls.groups), dtype=torch.float64, device=targets.device)
    _add_at(changes, targets[point], lost, -1.0)
    rings = balls.rings()
    flat = balls.groups[rings.balls] * balls.cover.shape[1] + rings.points
    covered = balls.cover.view(-1)[flat]
    some = covered <= 1
    left_out, point = balls.neighbours.places[rings.balls[some]], rings.points[some]  # [p, k], [p]
    owner, covered = balls.owner.view(-1)[flat[some]], covered[some]
    gained = (covered == 0).unsqueeze(1) | (left_out == owner.unsqueeze(1))
    row, _ = gained.nonzero(as_tuple=True)
    keys = (left_out[gained] * balls.cover.shape[1] + point[row]).unique()
    centre, point = keys // balls.cover.shape[1], keys % balls.cover.shape[1]
    _add_at(changes, targets[point], centre, 1.0)
    return changes


def neighbour_gains(balls: Balls, gains: Tensor) -> Tensor:
    """Sum of gains [n] over the balls that have each image among their k nearest, float64 [n]."""
    places = balls.neighbours.places
    total = torch.zeros(len(places), dtype=torch.float64, device=gains.device)
    return total.index_add_(0, places.flatten(), gains.double().repeat_interleave(places.shape[1]))


def _add_at(values: Tensor, rows: Tensor, columns: Tensor, amount: float) -> None:
    flat = rows * values.shape[1] + columns
    values.view(-1).index_add_(0, flat, torch.full_like(flat, amount, dtype=values.dtype))
