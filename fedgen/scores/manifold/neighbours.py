"""Nearest neighbours of every image within its client and within the pool, in one pass over the distances."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedgen.scores.kernel.kernels import block_pairs
from fedgen.scores.manifold.pairwise import Points, exact_squares, lower_bounds, widths

SPARE = 8  # neighbours kept beyond those asked for, as rounding may order them otherwise
PANEL = 1 << 22  # distances of a panel of rows that need more than their shortlist


@dataclass(frozen=True, eq=False)
class Neighbours:
    """The nearest others of each image.

    Args:
        squares: squared distances to the k-th and the (k + 1)-th nearest, float64 [n, 2]; the second repeats the first
            where there are only k others.
        places: the k nearest, int64 [n, k].
    """

    squares: Tensor
    places: Tensor


def nearest(points: Points, k: int, clients: Tensor | None = None) -> tuple[Neighbours, Neighbours]:
    """Neighbours within each image's client and among all images; the same object twice for a single client.

    Every block of the symmetric matrix of distances is formed once.

    Args:
        points: the images.
        k: neighbours of each; every client needs k + 1 images.
        clients: which client each image is of, int64 [n], ascending, on the CPU; all of one if None.
    """
    everyone = _Shortlist(points, k, None)
    single = clients is None or bool(clients[0] == clients[-1])
    own = everyone if clients is None or single else _Shortlist(points, k, clients)
    for rows, columns in block_pairs(len(points), len(points), symmetric=True):
        low = lower_bounds(points, rows, points, columns, points.dtype)
        if rows == columns:
            low.fill_diagonal_(torch.inf)
        sides = [(low, rows, columns)] if rows == columns else [(low, rows, columns), (low.T, columns, rows)]
        for block, mine, others in sides:
            found = everyone.smallest(block.contiguous())
            everyone.merge(mine, found, others)
            if clients is None or own is everyone or not _meet(clients[mine], clients[others]):
                continue
            if clients[rows][0] != clients[columns][-1]:
                same = (clients[mine].unsqueeze(1) == clients[others]).to(block.device)
                found = own.smallest(block.masked_fill(~same, torch.inf))
            own.merge(mine, found, others)
    pooled = everyone.settle()
    return (pooled if own is everyone else own.settle()), pooled


def refuse_weight_zero(weights: Tensor) -> None:
    """Raises ValueError for a client of weight 0: neighbours in the pool know no weights."""
    if (weights == 0).any():
        client = int((weights == 0).nonzero()[0])
        raise ValueError(
            f"client {client} has weight 0, but neighbours know no weights: its images would stay in the pool; "
            "leave the client out"
        )


def _meet(a: Tensor, b: Tensor) -> bool:
    """Whether two ascending stretches of client numbers have one in common."""
    return bool(a[0] <= b[-1]) and bool(b[0] <= a[-1])


class _Shortlist:
    """The k + 1 + SPARE smallest lower bounds of each image's distances seen so far, and whose they are."""

    def __init__(self, points: Points, k: int, clients: Tensor | None) -> None:
        self._points, self._k = points, k
        self._clients = None if clients is None else clients.to(points.squares.device)
        size = (len(points), k + 1 + SPARE)
        self._low = torch.full(size, torch.inf, dtype=points.dtype, device=points.squares.device)
        self._places = torch.zeros(size, dtype=torch.int64, device=points.squares.device)

    def smallest(self, block: Tensor) -> tuple[Tensor, Tensor]:
        """Return the smallest of each row of a block, ascending, with their columns."""
        return block.topk(min(self._low.shape[1], block.shape[1]), largest=False)

    def merge(self, rows: slice, found: tuple[Tensor, Tensor], columns: slice) -> None:
        low = torch.cat([self._low[rows], found[0]], 1)
        places = torch.cat([self._places[rows], found[1] + columns.start], 1)
        self._low[rows], kept = low.topk(self._low.shape[1], largest=False)
        self._places[rows] = places.gather(1, kept)

    def settle(self) -> Neighbours:
        """Exact squares at k and k + 1; rows with more near-ties than the shortlist holds are searched anew."""
        rows = torch.arange(len(self._low), device=self._low.device)
        squares, places, complete = _settle(self._points, rows, self._low, self._places, self._k)
        rows = (~complete).nonzero().flatten()
        if len(rows):
            squares[rows], places[rows] = self._search(rows)
        return Neighbours(squares, places)

    def _search(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Squares [r, 2] and places [r, k] of rows that have many near-ties, such as images with many copies."""
        squares = torch.zeros(len(rows), 2, dtype=torch.float64, device=rows.device)
        places = torch.zeros(len(rows), self._k, dtype=torch.int64, device=rows.device)
        rest = (self._copies(rows) < self._k + 2).nonzero().flatten()  # of the others both distances are 0
        for part in rest.split(max(1, PANEL // len(self._points))):
            squares[part], places[part], _ = self._search_panel(rows[part])
        return squares, places

    def _copies(self, rows: Tensor) -> Tensor:
        """Count the rows' images that equal each of them, itself included, in the same client; int64 [r]."""
        _, group = self._points.features[rows].unique(dim=0, return_inverse=True)
        if self._clients is not None:
            group = group * (self._clients[-1] + 1) + self._clients[rows]
        _, group, counts = group.unique(return_inverse=True, return_counts=True)
        return counts[group]

    def _search_panel(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        count = len(self._points)
        low = torch.empty(len(rows), count, dtype=torch.float64, device=rows.device)
        for columns, _ in block_pairs(count, 1, symmetric=False):
            low[:, columns] = lower_bounds(self._points, rows, self._points, columns, torch.float64)
        low[torch.arange(len(rows), device=rows.device), rows] = torch.inf
        if self._clients is not None:
            low.masked_fill_(self._clients[rows].unsqueeze(1) != self._clients, torch.inf)
        everyone = torch.arange(count, device=rows.device).expand(len(rows), -1)
        return _settle(self._points, rows, low, everyone, self._k)


def _settle(points: Points, rows: Tensor, low: Tensor, places: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Squares [r, 2] at k and k + 1, places [r, k], and whether the candidates are known to hold them [r].

    Args:
        points: the images.
        rows: places of the images [r].
        low: lower bounds of the squared distances to their candidates [r, c]; infinite for no candidate.
        places: the candidates [r, c].
        k: which neighbour.
    """
    dtype, bounds = low.dtype, low.double()
    high = bounds + widths(points, rows.unsqueeze(1), points, places, dtype)
    near = torch.zeros_like(low, dtype=torch.bool)
    furthest = bounds.new_zeros(len(rows))
    for rank in range(k, min(k + 1, low.shape[1]) + 1):
        least, most = bounds.kthvalue(rank, dim=1).values, high.kthvalue(rank, dim=1).values
        near |= (bounds <= most.unsqueeze(1)) & (high >= least.unsqueeze(1)) & bounds.isfinite()
        furthest = most
    last = bounds.amax(1)
    complete = (last > furthest) | last.isinf() | (low.shape[1] == len(points))
    i, j = near.nonzero(as_tuple=True)
    bounds[i, j] = exact_squares(points, rows[i], points, places[i, j])
    ordered, order = bounds.topk(min(k + 1, low.shape[1]), largest=False)
    squares = ordered[:, [k - 1, -1]]
    squares[:, 1] = torch.where(squares[:, 1].isinf(), squares[:, 0], squares[:, 1])
    return squares, places.gather(1, order[:, :k]), complete
