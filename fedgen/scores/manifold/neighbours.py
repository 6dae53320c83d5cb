"""Nearest neighbours of every image within its client and within the pool, in one pass over the distances.

Squared distances compare as those of float64 differences do, mostly from float32 products: a block
|x|^2 + |y|^2 - 2 <x, y> in float32 misses the distance by at most b (|x|^2 + |y|^2), with x and y taken from a common
origin and b = (1.1 D + 64) / 2^24, a worst case over every order of summation. Where a comparison falls within that
bound, the distance is formed again from float64 differences.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedgen.scores.aggregate import Weights, resolve_weights
from fedgen.scores.kernel.kernels import block_pairs

NUMBERS = 2**18  # of differences formed at a time, within a cache: those of 128 pairs at D = 2048
ROWS = 256  # converted to float64 at a time, likewise: ten times as fast as thousands
CROWDED = 100  # a float32 block with more than 1 pair in so many within its bound is formed in float64
SPARE = 8  # neighbours kept beyond those asked for, as rounding may order them otherwise
PANEL = 1 << 22  # distances of a panel of rows that need more than their shortlist
Rows = slice | Tensor


class Points:
    """Features [n, D] about an origin, with what bounds the rounding of products with them."""

    def __init__(self, features: Tensor, origin: Tensor | None = None) -> None:
        self.features = features
        self.origin = _mean(features) if origin is None else origin
        self.squares = torch.cat([(part.double() - self.origin).square_().sum(1) for part in features.split(ROWS)])
        spread, far = float(self.squares.max()), float(self.origin.abs().max())
        if not spread < 1e300:
            raise ValueError("squared distances between these features overflow; rescale them")
        self.dtype = torch.float32 if 1e-25 < spread < 1e30 and far < 1e15 else torch.float64

    def __len__(self) -> int:
        return len(self.features)

    def about_origin(self, rows: Rows, dtype: torch.dtype) -> Tensor:
        """Features less the origin [b, D], each rounded once."""
        part = self.features[rows]
        if dtype == torch.float32 and part.dtype != torch.float64:
            return part.float() - self.origin.float()
        return (part.double() - self.origin).to(dtype)


def lower_bounds(x: Points, rows: Rows, y: Points, columns: Rows, dtype: torch.dtype) -> Tensor:
    """Numbers [b, c] below the squared distances of rows of x and of y by at most `widths`; may be negative."""
    shrink, floor = 1 - _rounding(x, dtype), _floor(x, dtype)
    left = (x.squares[rows] * shrink - floor).to(dtype)
    right = (y.squares[columns] * shrink).to(dtype)
    with full_precision(x.features.device.type):
        products = x.about_origin(rows, dtype) @ y.about_origin(columns, dtype).T
    return products.mul_(-2).add_(left.unsqueeze(1)).add_(right)


def widths(x: Points, rows: Tensor, y: Points, columns: Tensor, dtype: torch.dtype) -> Tensor:
    """Return how far squared distances of pairs may be above their `lower_bounds`, float64, of the indices' shape."""
    return 2 * _rounding(x, dtype) * (x.squares[rows] + y.squares[columns]) + 2 * _floor(x, dtype)


def exact_squares(x: Points, rows: Tensor, y: Points, columns: Tensor) -> Tensor:
    """Squared distances of the pairs, float64 [p], from differences."""
    found = torch.empty(len(rows), dtype=torch.float64, device=x.features.device)
    size = max(1, NUMBERS // x.features.shape[1])
    for part, i, j in zip(found.split(size), rows.split(size), columns.split(size)):
        squares = (x.features[i].double() - y.features[j].double()).square_()
        width = squares.shape[1]
        while width > 1:  # the same order of summation whatever the number of pairs
            half = width // 2
            squares[:, :half] += squares[:, width - half : width]
            width -= half
        part.copy_(squares[:, 0])
    return found


def pairs_within(
    x: Points, rows: slice, y: Points, columns: slice, low: Tensor, limits: Tensor, by_row: bool
) -> tuple[Tensor, Tensor, Tensor]:
    reach = torch.nextafter(limits.amax(0).to(low.dtype), torch.tensor(torch.inf, dtype=low.dtype, device=low.device))
    i, j = (low <= (reach.unsqueeze(1) if by_row else reach)).nonzero(as_tuple=True)
    squares, own_limits = low[i, j].double(), limits[:, i if by_row else j]
    i, j = i + rows.start, j + columns.start
    high = squares + widths(x, i, y, j, low.dtype)
    near = ((own_limits >= squares) & (own_limits <= high)).any(0).nonzero().flatten()
    if low.dtype == torch.float32 and len(near) * CROWDED > low.numel():
        sharper = lower_bounds(x, rows, y, columns, torch.float64)
        return pairs_within(x, rows, y, columns, sharper, limits, by_row)
    squares[near] = exact_squares(x, i[near], y, j[near])
    return i, j, squares


@contextmanager
def full_precision(device: str) -> Iterator[None]:
    """Float32 products in float32, whatever precision or autocast the caller trains with."""
    mkldnn: Any = torch.backends.mkldnn
    backends = torch.backends.cuda.matmul, mkldnn.matmul
    before = [backend.fp32_precision for backend in backends]
    try:
        for backend in backends:
            backend.fp32_precision = "ieee"
        with torch.autocast(device, enabled=False):
            yield
    finally:
        for backend, precision in zip(backends, before):
            backend.fp32_precision = precision


def _mean(features: Tensor) -> Tensor:
    """Mean float64 [D], rounded to float32 so that float32 features lose nothing more by it."""
    total = sum(part.double().sum(0) / len(features) for part in features.split(ROWS))
    rounded = torch.as_tensor(total).float().double()
    return rounded if torch.isfinite(rounded).all() else torch.as_tensor(total)


def _rounding(x: Points, dtype: torch.dtype) -> float:
    return (1.1 * x.features.shape[1] + 64) * torch.finfo(dtype).eps / 2


def _floor(x: Points, dtype: torch.dtype) -> float:
    return 8 * x.features.shape[1] * torch.finfo(dtype).tiny


@dataclass(frozen=True, eq=False)
class Neighbours:
    squares: Tensor
    places: Tensor


def nearest(points: Points, k: int, clients: Tensor | None = None) -> tuple[Neighbours, Neighbours]:
    """Neighbours within each image's client and among all images; the same object twice for a single client."""
    everyone = own = _Shortlist(points, k, None)
    if clients is not None and clients[0] != clients[-1]:
        own = _Shortlist(points, k, clients)
    for rows, columns in block_pairs(len(points), len(points), symmetric=True):
        low = lower_bounds(points, rows, points, columns, points.dtype)
        if rows == columns:
            low.fill_diagonal_(torch.inf)
        sides = [(low, rows, columns)] if rows == columns else [(low, rows, columns), (low.T, columns, rows)]
        for block, mine, others in sides:
            found = everyone.smallest(block.contiguous())
            everyone.merge(mine, found, others)
            if clients is None or own is everyone:
                continue
            if clients[mine][0] > clients[others][-1] or clients[others][0] > clients[mine][-1]:
                continue  # no client has images in both
            if clients[rows][0] != clients[columns][-1]:
                same = (clients[mine].unsqueeze(1) == clients[others]).to(block.device)
                found = own.smallest(block.masked_fill(~same, torch.inf))
            own.merge(mine, found, others)
    pooled = everyone.settle()
    return (pooled if own is everyone else own.settle()), pooled


def positive_weights(weights: Weights, counts: Sequence[int]) -> Tensor:
    """Client weights float64 [K]; ValueError for a client of weight 0, as neighbours in the pool know no weights."""
    shares = resolve_weights(weights, counts)
    if (shares == 0).any():
        client = int((shares == 0).nonzero()[0])
        raise ValueError(f"client {client} has weight 0, but its images would stay in the pool; leave the client out")
    return shares


class _Shortlist:
    """The k + 1 + SPARE smallest lower bounds of each image's distances seen so far, and whose they are."""

    def __init__(self, points: Points, k: int, clients: Tensor | None) -> None:
        self._points, self._k = points, k
        self._clients = None if clients is None else clients.to(points.squares.device)
        size = (len(points), k + 1 + SPARE)
        self._low = torch.full(size, torch.inf, dtype=points.dtype, device=points.squares.device)
        self._places = torch.zeros(size, dtype=torch.int64, device=points.squares.device)

    def smallest(self, block: Tensor) -> tuple[Tensor, Tensor]:
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
    """Squares [r, 2] at k and k + 1, places [r, k], and whether the candidates are known to hold them [r]."""
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


@dataclass(frozen=True, eq=False)
class NearestReal:
    """The nearest of a set's images to each generated one: squared distances float64 [m] and places int64 [m]."""

    squares: Tensor
    places: Tensor
    count: int

    def beside(self, other: "NearestReal") -> "NearestReal":
        """The nearest of both sets' images, the other's after these; in a tie one of these."""
        closer = other.squares < self.squares
        places = torch.where(closer, other.places + self.count, self.places)
        return NearestReal(torch.minimum(self.squares, other.squares), places, self.count + other.count)


def nearest_real(made: Points, features: Tensor) -> NearestReal:
    others = Points(features.to(made.features.device), made.origin)
    squares = torch.full((len(made),), torch.inf, dtype=torch.float64, device=made.squares.device)
    places = torch.zeros(len(made), dtype=torch.int64, device=made.squares.device)
    for rows, columns in block_pairs(len(made), len(others), symmetric=False):
        low, column = lower_bounds(made, rows, others, columns, torch.float64).min(1)
        closer = low < squares[rows]
        squares[rows] = torch.where(closer, low, squares[rows])
        places[rows] = torch.where(closer, column + columns.start, places[rows])
    everyone = torch.arange(len(made), device=places.device)
    return NearestReal(exact_squares(made, everyone, others, places), places, len(others))
