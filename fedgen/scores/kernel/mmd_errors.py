"""Jackknife variances of MMD^2 from kernel row sums: what remains when one image is left out, without new kernels.

Leaving out image a removes its row and its column, so every mean without it follows from sums over its row. A jackknife
of a U-statistic errs towards too large, also where MMD^2 is zero and first-order formulas give nothing.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedgen.scores.uncertainty import jackknife_variance


@dataclass(frozen=True, eq=False)
class ClientSums:
    """Kernel sums of the clients' images among themselves.

    Args:
        own: sum of each image's kernel over its client's other images [n].
        weighted: sum over all other images b of share_b k(a, b) [n].
        diagonal: k(a, a) [n].
        clients: which client each image is of [n].
        counts: images of each client [K].
        weights: of each client [K]; an image's share is weight / count.
        unbiased: whether means leave out the diagonal (U-statistic).
    """

    own: Tensor
    weighted: Tensor
    diagonal: Tensor
    clients: Tensor
    counts: Tensor
    weights: Tensor
    unbiased: bool

    def per_client(self, values: Tensor) -> Tensor:
        """Sums of values [n] over each client's images [K]."""
        return values.new_zeros(len(self.counts)).index_add_(0, self.clients, values)

    def within(self) -> Tensor:
        """A_i, the mean kernel within each client [K]."""
        total, counts = self.per_client(self.own), self.counts
        return _mean(total, self.per_client(self.diagonal), counts, self.unbiased)

    def pool_moments(self) -> tuple[Tensor, Tensor, Tensor]:
        """Scalars: v_a v_b k(a, b) over pairs a != b, sum_a v_a^2 k(a, a), sum_a v_a^2, with v the images' shares."""
        shares = (self.weights / self.counts)[self.clients]
        return shares @ self.weighted, shares.square() @ self.diagonal, shares.square().sum()

    def within_pool(self) -> Tensor:
        """A_pool, the mean kernel within the pool, scalar."""
        return _weighted_mean(*self.pool_moments(), self.unbiased)

    def slopes(self, between: Tensor) -> Tensor:
        """Slope [K] of the pool's MMD^2 as its mixture moves towards each client, up to a constant.

        Args:
            between: mean kernel of each client with the generated images [K].
        """
        total, squares, norm = self.pool_moments()
        shares = self.weights / self.counts
        slope = 2 * (self.per_client(self.weighted) / self.counts - total)
        if self.unbiased:
            mean = _weighted_mean(total, squares, norm, unbiased=True)
            slope = (slope + mean * 2 * (shares - norm)) / (1 - norm)
        else:
            slope = slope + 2 * (shares * self.per_client(self.diagonal) / self.counts - squares)
        return slope - 2 * between


def generated_variances(
    between: Tensor, rows: Tensor, diagonal: Tensor, weights: Tensor, worst: int, unbiased: bool
) -> tuple[dict[str, float], Tensor]:
    """Variances over generated images: of avg, all and worst (those of avg and all are one), and of each client [K].

    Args:
        between: mean kernel of client i with generated image g [K, m].
        rows: sum of each generated image's kernel over the others [m].
        diagonal: kernel of each with itself [m].
        weights: of the clients [K].
        worst: place of the worst client.
        unbiased: whether the mean within leaves out the diagonal.
    """
    count = between.shape[1]
    if count < 2:
        return {"avg": 0.0, "all": 0.0, "worst": 0.0}, torch.zeros_like(weights)
    without = torch.full_like(rows, count - 1.0)
    within = _mean(rows.sum() - 2 * rows, diagonal.sum() - diagonal, without, unbiased)
    curves = torch.cat([between, (weights @ between).unsqueeze(0)])
    cross = (curves.sum(1, keepdim=True) - curves) / (count - 1)
    variances = jackknife_variance(within - 2 * cross)
    average = float(variances[-1])
    return {"avg": average, "all": average, "worst": float(variances[worst])}, variances[:-1]


def real_variances(sums: ClientSums, between: Tensor, worst: int) -> tuple[dict[str, float], Tensor]:
    """Variances over real images, which vary within each client on its own: of avg, all and worst, and each client [K].

    Args:
        sums: kernel sums among the clients' images.
        between: mean kernel of each real image with the generated ones [n].
        worst: place of the worst client.
    """
    moments = sums.pool_moments()
    variances = {"avg": 0.0, "all": 0.0, "worst": 0.0}
    of_clients = torch.zeros_like(sums.weights)
    start = 0
    for client, count in enumerate(sums.counts.tolist()):
        mine = slice(start, start + count)
        start += count
        if count < 2:
            continue
        cross = (between[mine].sum() - between[mine]) / (count - 1)
        own = float(jackknife_variance(_within_without(sums, mine) - 2 * cross))
        weight = float(sums.weights[client])
        pool = _pool_without(sums, moments, mine, weight)
        variances["avg"] += weight**2 * own
        variances["all"] += float(jackknife_variance(pool - 2 * weight * cross))
        of_clients[client] = own
    variances["worst"] = float(of_clients[worst])
    return variances, of_clients


def _within_without(sums: ClientSums, mine: slice) -> Tensor:
    """A_i without each of the client's images [n_i]."""
    own, diagonal = sums.own[mine], sums.diagonal[mine]
    without = torch.full_like(own, len(own) - 1.0)
    return _mean(own.sum() - 2 * own, diagonal.sum() - diagonal, without, sums.unbiased)


def _pool_without(sums: ClientSums, moments: tuple[Tensor, Tensor, Tensor], mine: slice, weight: float) -> Tensor:
    """A_pool without each of one client's images [n_i], whose weight the client's other images take over."""
    own, diagonal, weighted = sums.own[mine], sums.diagonal[mine], sums.weighted[mine]
    count = len(own)
    old, new = weight / count, weight / (count - 1)
    others = weighted - old * own  # share-weighted sum over the other clients' images
    total, squares, norm = moments
    total = total - old**2 * own.sum() - 2 * old * others.sum()
    total = total + new**2 * (own.sum() - 2 * own) + 2 * new * (others.sum() - others)
    squares = squares - old**2 * diagonal.sum() + new**2 * (diagonal.sum() - diagonal)
    norm = norm - old**2 * count + new**2 * (count - 1)
    return _weighted_mean(total, squares, norm, sums.unbiased)


def _mean(total: Tensor, diagonal: Tensor, counts: Tensor, unbiased: bool) -> Tensor:
    """Mean kernel from its sum off the diagonal and that on it; 0 where a U-statistic has a single image left."""
    if not unbiased:
        return (total + diagonal) / counts**2
    return torch.where(counts > 1, total / (counts * (counts - 1)).clamp(min=1), 0.0)


def _weighted_mean(total: Tensor, squares: Tensor, norm: Tensor, unbiased: bool) -> Tensor:
    if not unbiased:
        return total + squares
    return torch.where(norm < 1, total / (1 - norm).clamp(min=torch.finfo(norm.dtype).eps), 0.0)
