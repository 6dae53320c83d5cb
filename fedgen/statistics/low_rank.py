"""The exact rank of few images, given back to a summary that reached us as D x D sums.

Rounding fills the null space of a scatter matrix of n <= D images with noise of 1e-16, of which a Fréchet distance
takes the square root: 1e-7 of the distance. With the rank known from the count the noise is left out: 1e-12.
"""

import torch
from torch import Tensor

from fedgen.statistics.gaussian import Gaussian


def thin(summary: Gaussian) -> Gaussian:
    """The same summary with n deviations [n, D] in place of a scatter matrix, if n <= D; else the summary itself.

    The deviations are not the images', but have the same mean and scatter. For a dense summary of n whole images.
    """
    if summary.scatter is None or summary.count > summary.dim:
        return summary
    count = round(summary.count)
    rows = _rows(summary.scatter, count - 1)
    return Gaussian(count, summary.mean, deviations=_helmert(count, rows)[:, : len(rows)] @ rows)


def _rows(matrix: Tensor, rank: int) -> Tensor:
    """R [r <= rank, D] with R^T R = matrix, by Cholesky with pivots: r^2 D multiplications."""
    rows = matrix.new_zeros(rank, len(matrix))
    left = matrix.diagonal().clone()
    noise = float(left.max()) * len(matrix) * torch.finfo(matrix.dtype).eps
    for number in range(rank):
        pivot = int(left.argmax())
        if left[pivot] <= noise:
            return rows[:number]
        rows[number] = (matrix[pivot] - rows[:number, pivot] @ rows[:number]) / left[pivot].sqrt()
        left -= rows[number].square()
        left[pivot] = 0  # exactly, so that it is never chosen again
    return rows


def _helmert(count: int, like: Tensor) -> Tensor:
    """Helmert's matrix [n, n - 1]: orthonormal columns that sum to zero, as deviations from a mean do."""
    number = torch.arange(1, count, dtype=like.dtype, device=like.device)
    columns = torch.ones(count, count - 1, dtype=like.dtype, device=like.device).triu()
    columns.diagonal(-1).copy_(-number)
    return columns / (number * (number + 1)).sqrt()
