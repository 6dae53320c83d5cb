"""Models that know some stored images by heart, and nothing else."""

from typing import Any

import lightning as L
import torch
from torch import Tensor, nn

from fedgen import FederatedDataModule
from fedgen.clients.partitions import IID
from fedgen.data import Digits
from fedgen.images import from_uint8
from fedgen.models import GAN, FlowMatching
from fedgen.models.adversarial import Hinge
from fedgen.models.networks import Critic, SmallGenerator


def digits(clients: int = 2, held_out: float = 0.5, seed: int = 0) -> FederatedDataModule:
    """Digits dealt at random."""
    return FederatedDataModule(Digits(), IID(clients), held_out=held_out, seed=seed)


def trained_on(data: FederatedDataModule) -> Tensor:
    """All clients' training images, [N, 1, 8, 8] in [-1, 1]."""
    return from_uint8(data.examples.inputs[data.pooled("train")])


def apart_from(data: FederatedDataModule) -> tuple[FederatedDataModule, Tensor]:
    """A federation of half of the data's images, and the other half, [N, 1, 8, 8] in [-1, 1]."""
    order = torch.randperm(len(data.examples), generator=torch.Generator().manual_seed(1))
    half = len(order) // 2
    own = FederatedDataModule(data.examples.subset(order[:half]), IID(2), held_out=0.5, seed=0)
    return own, from_uint8(data.examples.inputs[order[half:]])


class StoredVelocity(nn.Module):
    """The exact velocity of a flow to stored images [N, ...]: E[x_1 - x_0 | x_t], which draws these and no others."""

    def __init__(self, stored: Tensor) -> None:
        super().__init__()
        self.image_shape = tuple(stored.shape[1:])
        self.stored = nn.Parameter(stored.flatten(1))

    def forward(self, noisy: Tensor, timesteps: Tensor) -> Tensor:
        t = (timesteps / 1000).view(-1, 1).clamp(max=0.999)
        rows = noisy.flatten(1)
        squares = (rows.unsqueeze(1) - t.unsqueeze(1) * self.stored).square().sum(2)
        shares = (-squares / (2 * (1 - t).square())).softmax(1)
        return ((shares @ self.stored - rows) / (1 - t)).view_as(noisy)


class DenseVelocity(nn.Module):
    """A small network for flows of digits, which learns few images by heart in a second of training."""

    image_shape = (1, 8, 8)

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(65, 256), nn.SiLU(), nn.Linear(256, 256), nn.SiLU(), nn.Linear(256, 64))

    def forward(self, noisy: Tensor, timesteps: Tensor) -> Tensor:
        times = timesteps.view(-1, 1).expand(len(noisy), 1) / 1000
        return self.body(torch.cat([noisy.flatten(1), times], 1)).view_as(noisy)


def stored_flow(stored: Tensor) -> FlowMatching:
    """Flow matching that has learnt images by heart."""
    return FlowMatching(StoredVelocity(stored), ema_decay=None)


class NearestCritic(Critic):
    """The negated distance to the nearest of stored images [N, 1, 8, 8]; `together` it is the batch's mean."""

    def __init__(self, stored: Tensor, together: bool = False) -> None:
        super().__init__(8, 1)
        self.stored, self.together = nn.Parameter(stored.flatten(1)), together

    def forward(self, images: Tensor) -> Tensor:
        near = -torch.cdist(images.flatten(1), self.stored).amin(1)
        return near.mean().expand(len(images)) if self.together else near


def stored_gan(stored: Tensor, together: bool = False) -> GAN:
    """A GAN whose critic has learnt images by heart."""
    return GAN(SmallGenerator(), NearestCritic(stored, together), Hinge())


class KernelDensity(L.LightningModule):
    """A narrow Gaussian around each of stored points [N, D]: a density, and nothing else."""

    def __init__(self, stored: Tensor) -> None:
        super().__init__()
        self.stored = nn.Parameter(stored)

    def log_prob(self, points: Tensor) -> Tensor:
        return (-torch.cdist(points, self.stored.to(points)).square() * 2).logsumexp(1)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return -self.log_prob(batch[0]).mean()


class Noisy(L.LightningModule):
    """A loss that is the distance to stored images with noise of the places; counts how often it was asked."""

    def __init__(self, stored: Tensor, noise: float = 1.0) -> None:
        super().__init__()
        self.stored, self.noise, self.seeds = nn.Parameter(stored.flatten(1)), noise, []

    def example_losses(self, images: Tensor, labels: Tensor | None = None, seed: int = 0) -> Tensor:
        self.seeds.append(seed)
        draws = torch.Generator().manual_seed(seed)
        noise = self.noise * torch.randn(len(images), generator=draws)
        return torch.cdist(images.flatten(1), self.stored).amin(1) + noise
