"""Standard errors from what a score has computed anyway: jackknife over images, and influence functions of the FID.

The influence of an image x of P on FD(P, Q) is the closed-form gradient at x,
    h(x) = 2 (mu_P - mu_Q)^T (x - mu_P) + c (x - mu_P)^T (I - T) (x - mu_P) + const,
with T = R^T (R Q R^T)^(1/2 -> -1/2) R the optimal transport map between the two Gaussians and c = n / (n - ddof).
Its variance over n is the infinitesimal jackknife. A bootstrap would not do: duplicates lower the covariance's rank and
its interval misses its own estimate.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedgen.scores.frechet.roots import Roots, eigenvalues, in_float32, of_scales, sandwich, sum_of_roots, top
from fedgen.statistics.gaussian import eigh


def jackknife_variance(leave_one_out: Tensor) -> Tensor:
    """Variance of an estimate from its n values with one image left out, over the last dimension; 0 for n < 2."""
    count = leave_one_out.shape[-1]
    if count < 2:
        return leave_one_out.new_zeros(leave_one_out.shape[:-1])
    return leave_one_out.var(dim=-1, correction=0) * (count - 1)


def mean_variance(influence: Tensor, shares: Tensor | None = None, count: float | None = None) -> Tensor:
    """Variance of the weighted mean of an influence [..., p] over images; 0 where a single image shows no spread."""
    number = influence.shape[-1]
    if number < 2:
        return influence.new_zeros(influence.shape[:-1])
    if shares is None:
        return influence.var(dim=-1) / (count or number)
    centred = influence - (influence * shares).sum(-1, keepdim=True)
    return (shares * centred).square().sum(-1) / (1 - shares.square().sum()).clamp(min=torch.finfo(shares.dtype).eps)


@dataclass(frozen=True, eq=False)
class Spectrum:
    """Eigenvalues [k, r] and vectors [k, r, r] of R_i C R_i^T, of which the largest `ranks` [k] are not zero."""

    values: Tensor
    vectors: Tensor
    ranks: Tensor

    def traces(self) -> Tensor:
        """tr sqrt(C_i C), float64 [k]."""
        return sum_of_roots(self.values, self.ranks)

    def roots(self) -> Tensor:
        """Square roots of the eigenvalues [k, r], zero beyond the rank."""
        return self.values.clamp(min=0).sqrt() * top(self.values.shape[-1], self.ranks).to(self.values)

    def at_images(self) -> Tensor:
        """e_j^T (R_i C R_i^T)^(1/2) e_j [k, r]: the transport map i -> C at the j-th row of R_i."""
        return torch.einsum("kjs,ks->kj", self.vectors.square(), self.roots())

    def at_coordinates(self, coordinates: Tensor) -> Tensor:
        """z^T (R_i C R_i^T)^(1/2) z [p] for k = 1 and coordinates z [p, r]: the map i -> C at the points z R_i."""
        return (coordinates @ self.vectors[0].to(coordinates)).square().double() @ self.roots()[0]

    def at_others(self, rows: Tensor, deviations: Tensor) -> Tensor:
        """y^T (R_i C R_i^T)^(-1/2) y [k, p] with y = R_i x: the map C -> i at points x [p, D], for R_i [k, r, D]."""
        size = self.roots()
        if not size.shape[1]:  # a constant client
            return size.new_zeros(len(size), len(deviations))
        largest = size[:, -1:].clamp(min=torch.finfo(size.dtype).tiny)
        floor = (size.shape[1] * torch.finfo(size.dtype).eps) ** 0.5
        inverse = torch.where(size > floor * largest, largest / size.clamp(min=torch.finfo(size.dtype).tiny), 0.0)
        (points, one), (single, other) = in_float32(deviations.to(rows)), in_float32(rows)
        projected = torch.einsum("pd,krd->kpr", points, single)
        found = torch.bmm(torch.bmm(projected, self.vectors.float()).square_(), inverse.float().unsqueeze(2)).squeeze(2)
        return found.to(rows) * ((one * other) ** 2 / largest)


def spectrum(roots: Roots, covariance: Tensor, rank: int) -> Spectrum:
    """Spectrum of R_i C R_i^T for a covariance C [D, D] of at most the given rank."""
    values, vectors = eigh(sandwich(roots, covariance))
    if of_scales(covariance.diagonal()):  # those found with vectors are right to 1e-16 of the largest only
        values = eigenvalues(roots, covariance)
    return Spectrum(values, vectors, roots.ranks.clamp(max=rank))


def influence(deviations_sq: Tensor, along: Tensor, transported: Tensor, scale: float | Tensor) -> Tensor:
    """h(x) up to a constant: 2 `along` + scale (|x|^2 - x^T T x), where `along` is (mu_P - mu_Q)^T x."""
    return 2 * along + scale * (deviations_sq - transported)
