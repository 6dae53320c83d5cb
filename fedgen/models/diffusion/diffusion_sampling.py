"""The backward process of diffusion models: from noise to images with diffusers' schedulers."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fedgen.extras import need
from fedgen.models.diffusion.diffusion_schedule import NoiseSchedule, Prediction
from fedgen.models.sampling import require_batch_size
from fedgen.progress import track

Solver = Literal["dpm-solver++", "ddim", "ddpm"]
STEPS: dict[str, int | None] = {"dpm-solver++": 20, "ddim": 50, "ddpm": None}
# (noisy images [n, C, H, W], timestep or timesteps [n], which of all images they are) -> predictions
Predict = Callable[[Tensor, Tensor, slice | Tensor], Tensor]


@dataclass(frozen=True)
class Sampler:
    """Options for drawing images.

    Args:
        solver: "dpm-solver++" (Lu et al. 2022, arXiv 2211.01095, second order, deterministic), "ddim" (Song et al.
            2021, arXiv 2010.02502, deterministic) or "ddpm" (Ho et al. 2020, Algorithm 2, ancestral: every step draws
            noise).
        steps: evaluations of the network an image; 20 and 50 by default, for "ddpm" one for every timestep.
        guidance: scale w of classifier-free guidance (Ho & Salimans 2022, arXiv 2207.12598): predictions are
            any + w (class - any), so 1 is the conditional model itself, 0 the unconditional one.

    Raises:
        ValueError: for an unknown solver, or fewer than one step.
    """

    solver: Solver = "dpm-solver++"
    steps: int | None = None
    guidance: float = 1.0

    def __post_init__(self) -> None:
        if self.solver not in STEPS:
            raise ValueError(f"solver={self.solver!r}: choose {', '.join(map(repr, STEPS))}")
        if self.steps is not None and self.steps < 1:
            raise ValueError(f"steps={self.steps}: an image takes at least one step")

    def changed(
        self, solver: Solver | None = None, steps: int | None = None, guidance: float | None = None
    ) -> "Sampler":
        """This one with what is not None in its place; another solver brings its own number of steps."""
        if solver is not None and solver != self.solver:
            new = replace(self, solver=solver, steps=steps)
        else:
            new = self if steps is None else replace(self, steps=steps)
        return new if guidance is None else replace(new, guidance=guidance)

    def num_steps(self, timesteps: int) -> int:
        """Steps for a model of so many timesteps.

        Raises:
            ValueError: if there are more steps than timesteps, or DDIM's would not be of one length.
        """
        if self.steps is None:
            steps = min(STEPS[self.solver] or timesteps, timesteps)
            return steps if self.solver != "ddim" else max(n for n in range(1, steps + 1) if timesteps % n == 0)
        if self.steps > timesteps:
            raise ValueError(f"steps={self.steps}: the model has {timesteps} timesteps, take no more steps than these")
        if self.solver == "ddim" and timesteps % self.steps:
            raise ValueError(f"steps={self.steps}: with 'ddim' a number that divides the model's {timesteps} timesteps")
        return self.steps


def make_scheduler(sampler: Sampler, schedule: NoiseSchedule, prediction: Prediction) -> Any:
    """The diffusers scheduler that a sampler names, its timesteps set."""
    diffusers = need("diffusers", "diffusion", "Sampler")
    shared = schedule.settings(prediction)
    scheduler: Any
    if sampler.solver == "ddpm":
        scheduler = diffusers.DDPMScheduler(**shared, variance_type=schedule.variance, clip_sample=schedule.clip)
    elif sampler.solver == "ddim":
        scheduler = diffusers.DDIMScheduler(**shared, clip_sample=schedule.clip, timestep_spacing="trailing")
    else:
        # without the bound the cosine schedule's last timesteps, nearly pure noise, throw the solver off
        bound = -5.1 if schedule.kind == "cosine" else -float("inf")
        # thresholds that cannot exceed 1 clip the predicted image to [-1, 1]
        clip = {"thresholding": schedule.clip, "sample_max_value": 1.0}
        scheduler = diffusers.DPMSolverMultistepScheduler(
            **shared, **clip, lambda_min_clipped=bound, timestep_spacing="trailing"
        )
    scheduler.set_timesteps(sampler.num_steps(schedule.timesteps))
    return scheduler


def predictor(network: nn.Module, labels: Tensor | None, guidance: float, null_label: int | None) -> Predict:
    """Predictions in the images' dtype, for the labels int64 [N] of all images, guided by those for any class.

    Args:
        network: in eval mode.
        labels: None for an unconditional network.
        guidance: w of any + w (class - any); 1 asks the network once.
        null_label: the label that stands for any class.
    """
    parameter = next(network.parameters())

    def predict(images: Tensor, timestep: Tensor, part: slice | Tensor) -> Tensor:
        arguments = images.to(parameter), timestep.expand(len(images)).to(parameter.device)
        if labels is None:
            return network(*arguments).to(images.dtype)
        chosen = labels[part if isinstance(part, slice) else part.to(labels.device)].to(parameter.device)
        for_class = network(*arguments, chosen).to(images.dtype)
        if guidance == 1 or null_label is None:
            return for_class
        for_any = network(*arguments, torch.full_like(chosen, null_label)).to(images.dtype)
        return for_any + guidance * (for_class - for_any)

    return predict


@torch.no_grad()
def denoise(
    predict: Predict,
    latents: Tensor,
    scheduler: Any,
    batch_size: int,
    generator: torch.Generator | None,
    bounded: bool = True,
) -> Tensor:
    """Images float32 [N, C, H, W] of noise [N, C, H, W].

    All images take a step before any takes the next, so that what a step draws does not depend on `batch_size`.

    Args:
        predict: the network: noisy images, timestep (int64, no dimension), and the slice of all images that they are.
        latents: standard normal, on the network's device.
        scheduler: from `make_scheduler`.
        batch_size: images that the network gets at once, a bound on memory.
        generator: a CPU generator for the noise of ancestral steps; the global generator by default.
        bounded: whether they are cut to [-1, 1].

    Raises:
        ValueError: for a batch size below 1.
    """
    require_batch_size(batch_size)
    draws = torch.default_generator if generator is None else generator
    parts = [slice(start, start + batch_size) for start in range(0, len(latents), batch_size)]
    images, timesteps = latents, scheduler.timesteps
    for timestep in track(timesteps, "denoising", total=len(timesteps), unit="steps"):
        predicted = torch.cat([predict(images[part], timestep, part) for part in parts])
        images = scheduler.step(predicted, timestep, images, generator=draws, return_dict=False)[0]
    return images.clamp(-1, 1) if bounded else images
