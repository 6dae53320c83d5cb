"""Variances of a score from what it has computed anyway: a jackknife over images, and the variance of influences."""

import torch
from torch import Tensor


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
