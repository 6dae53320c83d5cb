"""Squared Euclidean distances that compare as those of float64 differences do, mostly from float32 products.

A block |x|^2 + |y|^2 - 2 <x, y> in float32 misses the distance by at most b (|x|^2 + |y|^2), with x and y taken from a
common origin and b = (1.1 D + 64) / 2^24: a worst case over every order of summation. Where a comparison falls within
that bound, the distance is formed again from float64 differences, so the outcome is theirs.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

NUMBERS = 2**18  # of differences formed at a time, within a cache: those of 128 pairs at D = 2048
ROWS = 256  # converted to float64 at a time, likewise: ten times as fast as thousands
CROWDED = 100  # a float32 block with more than 1 pair in so many within its bound is formed in float64
Rows = slice | Tensor


class Points:
    """Features [n, D] about an origin, with what bounds the rounding of products with them.

    Args:
        features: floating [n, D], finite; kept as they are.
        origin: float64 [D]; the features' mean if None. Two sets are compared about one origin.

    Attributes:
        squares: |x - origin|^2, float64 [n].
        dtype: of the products: float32, or float64 where float32 would overflow or lose small features.
    """

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
    """Squared distances of the pairs, float64 [p], from differences.

    The sum over D is folded in halves, so a pair's value depends on nothing else: copies of images tie exactly, on
    every device.
    """
    found = torch.empty(len(rows), dtype=torch.float64, device=x.features.device)
    size = max(1, NUMBERS // x.features.shape[1])
    for part, i, j in zip(found.split(size), rows.split(size), columns.split(size)):
        part.copy_(_folded(x, i, y, j))
    return found


def pairs_within(
    x: Points, rows: slice, y: Points, columns: slice, low: Tensor, limits: Tensor, by_row: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The block's pairs that may be within their limits: places in x and y [p], and squares that compare as exact ones.

    Args:
        x: one set.
        rows: the block's images of x.
        y: the other set, about the same origin.
        columns: the block's images of y.
        low: the block's `lower_bounds`.
        limits: squared distances float64 [l, b] of each row, or [l, c] of each column, with which squares are compared.
        by_row: whether limits are of rows.
    """
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


def _folded(x: Points, rows: Tensor, y: Points, columns: Tensor) -> Tensor:
    squares = (x.features[rows].double() - y.features[columns].double()).square_()
    width = squares.shape[1]
    while width > 1:
        half = width // 2
        squares[:, :half] += squares[:, width - half : width]
        width -= half
    return squares[:, 0]


def _mean(features: Tensor) -> Tensor:
    """Mean float64 [D], rounded to float32 so that float32 features lose nothing more by it."""
    total = sum(part.double().sum(0) / len(features) for part in features.split(ROWS))
    rounded = torch.as_tensor(total).float().double()
    return rounded if torch.isfinite(rounded).all() else torch.as_tensor(total)


def _rounding(x: Points, dtype: torch.dtype) -> float:
    return (1.1 * x.features.shape[1] + 64) * torch.finfo(dtype).eps / 2


def _floor(x: Points, dtype: torch.dtype) -> float:
    """Rounding of products too small for the dtype."""
    return 8 * x.features.shape[1] * torch.finfo(dtype).tiny
