"""Data N(mean, deviation^2 I), of which velocities, denoised points and densities are known exactly."""

import math

import torch
from torch import nn

MEAN, DEVIATION = 0.7, 0.4


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def velocity(points, times, sigma_min=0.0, mean=MEAN, deviation=DEVIATION):
    """E[x_1 - (1 - sigma_min) x_0 | x_t] at points [N, ...] and times [N]: a regression of normal variables."""
    t = times.view(-1, *[1] * (points.ndim - 1))
    left, factor = 1 - (1 - sigma_min) * t, 1 - sigma_min
    variance = t**2 * deviation**2 + left**2
    return mean + (t * deviation**2 - factor * left) / variance * (points - t * mean)


def denoised(points, sigma, mean=MEAN, deviation=DEVIATION):
    """E[y | y + sigma e]."""
    return mean + deviation**2 / (deviation**2 + sigma**2) * (points - mean)


def log_normal(points, deviation=DEVIATION, mean=MEAN):
    """Log-densities [N] of points [N, D]."""
    dim = points[0].numel()
    squares = ((points.double().flatten(1) - mean) / deviation).square().sum(1)
    return -squares / 2 - dim * math.log(deviation * math.sqrt(2 * math.pi))


class ExactVelocity(nn.Module):
    """Velocities of such data times a parameter, which is 1; labels shift the mean."""

    def __init__(self, shape=(2,), sigma_min=0.0, num_classes=None):
        super().__init__()
        self.image_shape, self.sigma_min, self.num_classes = shape, sigma_min, num_classes
        self.null_label = num_classes is not None
        self.factor, self.sizes = nn.Parameter(torch.ones(())), []

    def forward(self, points, timesteps, labels=None):
        self.sizes.append(len(points))
        shift = 0.0 if labels is None else labels.view(-1, *[1] * (points.ndim - 1)).to(points)
        return self.factor * velocity(points, timesteps / 1000, self.sigma_min, MEAN + shift)


class ExactDenoiser(nn.Module):
    """The network F whose preconditioned output is `denoised`, times a parameter, which is 1; labels shift the mean."""

    def __init__(self, conditions, shape=(2,), num_classes=None):
        super().__init__()
        self.conditions, self.image_shape, self.num_classes = conditions, shape, num_classes
        self.null_label = num_classes is not None
        self.factor, self.seen = nn.Parameter(torch.ones(())), []

    def forward(self, scaled, times, labels=None):
        self.seen.append((scaled, times, labels))
        sigma = (4 * times).exp().view(-1, *[1] * (scaled.ndim - 1))
        noisy = scaled / self.conditions.c_in(sigma)
        shift = 0.0 if labels is None else labels.view(-1, *[1] * (scaled.ndim - 1)).to(scaled)
        return self.factor * self.conditions.target(denoised(noisy, sigma, MEAN + shift), noisy, sigma)
