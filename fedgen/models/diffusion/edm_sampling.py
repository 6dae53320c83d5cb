"""The stochastic Heun sampler of EDM (Karras et al. 2022, arXiv 2206.00364, Algorithm 2)."""

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor

from fedgen.models.diffusion.diffusion_sampling import Predict
from fedgen.models.diffusion.preconditioning import Preconditioning, noise_levels
from fedgen.models.require import require
from fedgen.models.sampling import require_batch_size
from fedgen.progress import track


@dataclass(frozen=True)
class EDMSampler:
    """Options for drawing images by EDM.

    Args:
        solver: "heun" (Algorithm 1 or 2, second order) or "euler" (the same without its correction).
        steps: N noise levels above 0; Heun's evaluates the network 2 N - 1 times.
        sigma_min: the last level above 0.
        sigma_max: the first level, at which images are noise.
        rho: how much shorter steps are near sigma_min (Eq. 5).
        churn: S_churn, how much noise is added back over all steps; 0 draws none, which is Algorithm 1.
        churn_from: S_tmin, the least level at which it is.
        churn_to: S_tmax, the largest; None for no bound.
        churn_noise: S_noise, the factor of what is added.
        guidance: scale w of classifier-free guidance: predictions are any + w (class - any).

    Raises:
        ValueError: for an unknown solver, fewer than one step, levels out of order or negative churn.
    """

    solver: Literal["heun", "euler"] = "heun"
    steps: int = 18
    sigma_min: float = 0.002
    sigma_max: float = 80.0
    rho: float = 7.0
    churn: float = 0.0
    churn_from: float = 0.0
    churn_to: float | None = None
    churn_noise: float = 1.0
    guidance: float = 1.0

    def __post_init__(self) -> None:
        require(self.solver in ("heun", "euler"), f"solver={self.solver!r}: choose 'heun' or 'euler'")
        require(self.steps >= 1, f"steps={self.steps}: an image takes at least one step")
        require(
            0 < self.sigma_min < self.sigma_max and self.rho > 0,
            f"sigma_min={self.sigma_min}, sigma_max={self.sigma_max}, rho={self.rho}: noise falls from sigma_max to"
            " sigma_min above 0, and rho is positive",
        )
        require(
            min(self.churn, self.churn_from, self.churn_noise) >= 0,
            f"churn={self.churn}, churn_from={self.churn_from}, churn_noise={self.churn_noise}: none is negative",
        )

    def changed(
        self, solver: Any = None, steps: int | None = None, guidance: float | None = None, **others: Any
    ) -> "EDMSampler":
        """This one with what is not None in its place; `others` are further fields."""
        given = {"solver": solver, "steps": steps, "guidance": guidance, **others}
        return replace(self, **{name: value for name, value in given.items() if value is not None})

    def gamma(self, sigma: float) -> float:
        """Part of a level by which it is raised before a step from it (Algorithm 2, line 5)."""
        inside = self.churn_from <= sigma <= (math.inf if self.churn_to is None else self.churn_to)
        return min(self.churn / self.steps, math.sqrt(2) - 1) if inside else 0.0


@torch.no_grad()
def denoise_edm(
    predict: Predict,
    latents: Tensor,
    conditions: Preconditioning,
    sampler: EDMSampler,
    batch_size: int,
    generator: torch.Generator | None,
) -> Tensor:
    """Images [N, ...] of noise [N, ...].

    All images take a step before any takes the next, so that what a step draws does not depend on `batch_size`.

    Args:
        predict: the network F: scaled noisy images, c_noise (no dimension), and the slice of all images that they are.
        latents: standard normal, on the network's device.
        conditions: of the network.
        sampler: the options.
        batch_size: images that the network gets at once, a bound on memory.
        generator: a CPU generator for churned noise; the global generator by default.

    Raises:
        ValueError: for a batch size below 1.
    """
    require_batch_size(batch_size)
    parts = [slice(start, start + batch_size) for start in range(0, len(latents), batch_size)]

    def slope(images: Tensor, level: float) -> Tensor:
        """The derivative by sigma, (x - D(x; sigma)) / sigma."""
        sigma = torch.tensor(level, dtype=images.dtype, device=images.device)
        scaled, times = conditions.c_in(sigma) * images, conditions.c_noise(sigma)
        predicted = torch.cat([predict(scaled[part], times, part) for part in parts])
        clean = conditions.c_skip(sigma) * images + conditions.c_out(sigma) * predicted
        return (images - clean) / sigma

    levels = noise_levels(sampler.steps, sampler.sigma_min, sampler.sigma_max, sampler.rho).tolist()
    images = latents * levels[0]
    pairs = list(pairwise(levels))
    for level, after in track(pairs, "denoising", total=len(pairs), unit="steps"):
        if gamma := sampler.gamma(level):
            raised = level * (1 + gamma)
            drawn = torch.randn(images.shape, generator=generator).to(images) * sampler.churn_noise
            images, level = images + math.sqrt(raised**2 - level**2) * drawn, raised
        first = slope(images, level)
        moved = images + (after - level) * first
        if sampler.solver == "heun" and after > 0:
            moved = images + (after - level) * (first + slope(moved, after)) / 2
        images = moved
    return images
