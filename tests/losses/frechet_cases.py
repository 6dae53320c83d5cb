"""Features with a decaying spectrum, and a Fréchet distance whose gradient comes from autograd through an SVD."""

import torch
from torch import Tensor, nn

DIM = 12


def draw(count: int, seed: int, scale: float = 1.0, shift: float = 0.0, dim: int = DIM) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    spectrum = torch.logspace(0, -1, dim, dtype=torch.float64)
    return torch.randn(count, dim, generator=generator, dtype=torch.float64) * spectrum * scale + shift


def value_and_gradient(loss: nn.Module, features: Tensor) -> tuple[float, Tensor]:
    features = features.detach().clone().requires_grad_()
    value = loss(features)
    return value.item(), torch.autograd.grad(value, features)[0]


def by_svd(features: Tensor, clients: list[Tensor], weights: list[float]) -> tuple[float, Tensor]:
    """Weighted mean distance to the clients and its gradient; no eigenvalue is differentiated."""
    features = features.detach().double().requires_grad_()
    centred = (features - features.mean(0)) / (len(features) - 1) ** 0.5
    total = torch.zeros(())
    for client, weight in zip(clients, weights):
        real = (client.double() - client.double().mean(0)) / (len(client) - 1) ** 0.5
        mean = (features.mean(0) - client.double().mean(0)).square().sum()
        root = real if len(real) <= real.shape[1] else torch.linalg.qr(real)[1]  # smaller, same R^T R
        spread = centred.square().sum() + real.square().sum() - 2 * torch.linalg.svdvals(centred @ root.T).sum()
        total = total + weight * (mean + spread)
    return total.item(), torch.autograd.grad(total, features)[0]


def least_gradient(features: Tensor, client: Tensor, rank: int) -> Tensor:
    """The gradient of least norm for a batch of known rank, in closed form from an SVD."""
    count = len(features)
    centred = (features - features.mean(0)) / (count - 1) ** 0.5
    real = (client - client.mean(0)) / (len(client) - 1) ** 0.5
    left, _, right = torch.linalg.svd(centred @ real.T, full_matrices=False)
    polar = left[:, :rank] @ right[:rank] @ real
    shift = 2 / count * (features.mean(0) - client.mean(0))
    return shift + 2 / (count - 1) ** 0.5 * (centred - polar)
