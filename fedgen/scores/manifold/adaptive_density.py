"""A density of generated features: a normal around each, of a width of its own that is fitted to training features.

As Jiralerspong et al. (2023, arXiv 2302.04440) have it, with the constants of their published code: isotropic normals
of equal weight; variances begin at (smallest squared distance to a training image + 1e-3) / D and take 50 passes of
Adam at rate 0.5 on their logarithms, in batches of 10,000, clamped to [-40, 20]. The loss is the mean negative
log-likelihood of training images over D, of the mixture and a broad normal besides, around the training images' mean
and of fitted variance, which bounds it where a training image is far from all generated ones. The density itself has no
such part. Sums and gradients here are float64 and in a fixed order, so that a value is the same in every run.
"""

import math

import torch
from torch import Tensor

from fedgen.scores.manifold.pairwise import Points, exact_squares

RATE, PASSES, BATCH = 0.5, 50, 10_000
LEAST, BOUNDS = 1e-3, (-40.0, 20.0)  # added to squared distances; of the logarithms of variances
SHRINK = (1 - 0.1) ** 2  # of squared distances to the training images' mean, in the broad normal
ROWS = 256  # training images of a step's part: a few such rows of float64 beside the stored distances
FAR = -700.0  # exp of less is nothing beside 1, and several times slower
CLOSE = 1e-8  # of |x|^2 + |y|^2: squared distances below are formed from differences


class AdaptiveDensity:
    """The fitted mixture.

    Holds 4 bytes for each pair of a generated and a training image while it fits.

    Args:
        centres: generated features, float64 [m, D].
        training: training features, float64 [n, D].
    """

    def __init__(self, centres: Tensor, training: Tensor) -> None:
        self._centres = _points(centres)
        self.log_variances = _fitted(self._centres, training)

    def log_density(self, features: Tensor) -> Tensor:
        """The log-density of features float64 [h, D]: float64 [h]."""
        points, dim = _points(features), features.shape[1]
        found = []
        for rows in torch.arange(len(features), device=features.device).split(ROWS):
            logs = _log_normals(_squares(points, rows, self._centres), self.log_variances, dim)
            found.append(logs.logsumexp(1) - math.log(len(self.log_variances)))
        return torch.cat(found)


def _fitted(centres: Points, training: Tensor) -> Tensor:
    """The logarithms of variances, float64 [m]."""
    points, dim = _points(training), training.shape[1]
    parts = torch.arange(len(training), device=training.device).split(ROWS)
    squares = torch.cat([_squares(points, rows, centres).float() for rows in parts])
    away = SHRINK * (training - training.mean(0)).square().sum(1)
    logs = ((squares.amin(0).double() + LEAST) / dim).log()
    broad = torch.zeros(1, dtype=torch.float64, device=training.device)
    optimizer = torch.optim.Adam([logs, broad], RATE)
    for _ in range(PASSES):
        for batch in zip(squares.split(BATCH), away.split(BATCH)):
            logs.grad, broad.grad = _slopes(*batch, logs, broad, dim)
            optimizer.step()
            logs.clamp_(*BOUNDS)
    return logs


def _slopes(squares: Tensor, away: Tensor, logs: Tensor, broad: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Derivatives of the loss of one batch by the logarithms of variances [m], and by the broad normal's [1].

    The derivative of -log sum_j exp(a_j) by the logarithm v_j of a variance is -r_j (s_j exp(-v_j) - D) / 2, with the
    share r_j that the j-th normal has in the sum.
    """
    of_logs, of_broad = torch.zeros_like(logs), torch.zeros_like(broad)
    for near, far in zip(squares.split(ROWS), away.split(ROWS)):
        normals, around = _log_normals(near.double(), logs, dim), _log_normals(far.unsqueeze(1), broad, dim)
        normals -= math.log(len(logs))
        largest = torch.maximum(normals.amax(1, keepdim=True), around)
        shares, other = normals.sub_(largest).clamp_(min=FAR).exp_(), (around - largest).exp_()
        scale = 1 / (shares.sum(1) + other[:, 0])
        of_logs += dim * (scale @ shares) - (scale @ shares.mul_(near)) * (-logs).exp()
        of_broad += (scale * other[:, 0] * (dim - far * (-broad).exp())).sum()
    return of_logs / (2 * len(squares) * dim), of_broad / (2 * len(squares) * dim)


def _log_normals(squares: Tensor, log_variances: Tensor, dim: int) -> Tensor:
    """Log-densities [r, m] of isotropic normals at squared distances [r, m] from their centres."""
    constants = dim / 2 * (log_variances + math.log(2 * math.pi))
    return squares * (-0.5 * (-log_variances).exp()) - constants


def _points(features: Tensor) -> Points:
    return Points(features, torch.zeros(features.shape[1], dtype=torch.float64, device=features.device))


def _squares(points: Points, rows: Tensor, centres: Points) -> Tensor:
    """Squared distances of some points to all centres, float64 [r, m]: exactly 0 for copies."""
    sums = points.squares[rows].unsqueeze(1) + centres.squares
    found = torch.addmm(sums, points.features[rows], centres.features.T, alpha=-2).clamp_(min=0)
    close = found <= CLOSE * sums
    i, j = close.nonzero(as_tuple=True)
    found[i, j] = exact_squares(points, rows[i], centres, j)
    return found
