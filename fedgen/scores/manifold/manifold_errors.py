"""Jackknife variances of precision, recall, density and coverage from counts of points in balls.

One image at a time is left out and the radii of the images that had it among their k nearest follow, so each value is
the score without that image, exactly. By Efron and Stein (1981, Annals of Statistics 9) such a jackknife is on
average not too small; for scores that ask whether a point lies in any ball it errs towards too large.
"""

import torch
from torch import Tensor

from fedgen.scores.manifold.manifold_counts import Balls, cover_changes, neighbour_gains
from fedgen.scores.uncertainty import jackknife_variance

Parts = dict[str, float]


def generated_variances(curves: Tensor, weights: Tensor, worst: int) -> tuple[Parts, Tensor]:
    """Variances over generated images: of avg, all and worst, and of each client [K].

    Args:
        curves: the scores without each generated image up to a constant, clients before the pool [K + 1, m].
        weights: of the clients [K].
        worst: place of the worst client.
    """
    variances = jackknife_variance(curves)
    average = float(jackknife_variance(weights @ curves[:-1]))
    return {"avg": average, "all": float(variances[-1]), "worst": float(variances[worst])}, variances[:-1]


def real_variances(own: Tensor, pool: Tensor, counts: list[int], weights: Tensor, worst: int) -> tuple[Parts, Tensor]:
    """Variances over real images, which vary within each client on its own: of avg, all and worst, and clients [K].

    Args:
        own: the client's score without each of its images, up to a constant of the client [n].
        pool: the pool's score without each image, likewise.
        counts: images of each client.
        weights: of the clients [K].
        worst: place of the worst client.
    """
    of_clients = torch.stack([jackknife_variance(part) for part in own.split(counts)])
    pooled = sum(float(jackknife_variance(part)) for part in pool.split(counts))
    average = float(weights.square() @ of_clients)
    return {"avg": average, "all": pooled, "worst": float(of_clients[worst])}, of_clients


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


def coverage_without_generated(balls: Balls) -> Tensor:
    """Coverage of each group without each generated image, up to a constant, [groups, m]."""
    alone = (balls.inside == 1).nonzero().flatten()
    changes = torch.zeros(balls.cover.shape, dtype=torch.float64, device=balls.cover.device)
    flat = balls.groups[alone] * balls.cover.shape[1] + balls.sole[alone]
    sizes = balls.sums(torch.ones_like(balls.groups))
    changes.view(-1).index_add_(0, flat, -1 / sizes[balls.groups[alone]])
    return changes
