"""The density of a flow by the instantaneous change of variables, with its error."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from fedgen.models.diffusion.flow_sampling import FlowSampler
from fedgen.models.diffusion.ode import Field
from fedgen.seeds import generator


class LogDensity(NamedTuple):
    """Natural logarithms of densities, and what the draws of their estimate leave open.

    Attributes:
        value: float64 [N] on the CPU.
        error: their standard errors over the probes, float64 [N]; 0 of an exact divergence.
    """

    value: Tensor
    error: Tensor


def draw_probes(count: int, probes: int, dim: int, seed: int, first: int = 0) -> Tensor:
    """Random signs float32 [count, probes, dim], those of example i by (seed, i).

    Args:
        count: examples.
        probes: of each.
        dim: entries of a probe.
        seed: of the draws.
        first: the place of the first example, from 0.
    """
    rows = [
        torch.randint(0, 2, (probes, dim), generator=generator(seed, "probes", first + place)) for place in range(count)
    ]
    return torch.stack(rows).float() * 2 - 1


def log_density(field: Field, points: Tensor, sampler: FlowSampler, probes: Tensor | None) -> LogDensity:
    """Log-densities of points at t = 1 under a flow whose points at t = 0 are standard normal.

    log p_1(x_1) = log N(x_0) - the integral of div v(x_t, t) over [0, 1] (Chen et al. 2018, arXiv 1806.07366, Eq. 8;
    Lipman et al. 2023, appendix C), solved backwards together with x_t. The divergence is estimated by Hutchinson's
    e^T (dv/dx) e, with the same probes e at all times (Grathwohl et al. 2019, arXiv 1810.01367), or exact: a
    derivative for each dimension.

    Args:
        field: velocities.
        points: [N, D].
        sampler: the solver; its error comes besides.
        probes: [N, P, D] with P of at least 2; None for the exact divergence.
    """
    dim, extra = points.shape[1], 1 if probes is None else probes.shape[1]
    start = torch.cat([points, points.new_zeros(len(points), extra)], dim=1)
    end = sampler.solve(_with_divergence(field, dim, probes), start, backward=True, parts=(dim, extra))
    normal = -(end[:, :dim].double().square().sum(1) + dim * math.log(2 * math.pi)) / 2
    found = normal[:, None] + end[:, dim:].double()
    error = torch.zeros_like(normal) if probes is None else found.std(1) / math.sqrt(extra)
    return LogDensity(found.mean(1).cpu(), error.cpu())


def _with_divergence(field: Field, dim: int, probes: Tensor | None) -> Field:
    """Velocities and divergences [n, D + P] of states [n, D + P]."""

    def both(times: Tensor, states: Tensor, who: Tensor) -> Tensor:
        with torch.enable_grad():
            points = states[:, :dim].detach().requires_grad_()
            velocity = field(times, points, who)
            traces = _exact(velocity, points) if probes is None else _estimated(velocity, points, probes[who])
        return torch.cat([velocity.detach(), traces], dim=1)

    return both


def _exact(velocity: Tensor, points: Tensor) -> Tensor:
    """Traces [n, 1] of the derivatives of velocities [n, D]."""
    dim = points.shape[1]
    rows = [torch.autograd.grad(velocity[:, k].sum(), points, retain_graph=k < dim - 1)[0][:, k] for k in range(dim)]
    return torch.stack(rows).sum(0)[:, None]


def _estimated(velocity: Tensor, points: Tensor, probes: Tensor) -> Tensor:
    """Estimates [n, P] of the same by probes [n, P, D]."""
    found = []
    for place, probe in enumerate(probes.to(velocity).unbind(1)):
        last = place == probes.shape[1] - 1
        found.append((torch.autograd.grad(velocity, points, probe, retain_graph=not last)[0] * probe).sum(1))
    return torch.stack(found, dim=1)


def dequantised(images: Tensor, bits: int, noise: Tensor) -> Tensor:
    """Points [N, ...] in [-1, 1) of images in [-1, 1] with 2^bits grey levels, each in its level's bin.

    Level l lies at 2 (l + u) / 2^bits - 1.

    Args:
        images: [N, ...].
        bits: of a grey level.
        noise: u in [0, 1), [N, ...].
    """
    top = 2**bits - 1
    levels = ((images + 1) * (top / 2)).round().clamp(0, top)
    return 2 * (levels + noise) / 2**bits - 1
