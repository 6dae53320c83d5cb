"""Diffusion forwards, by a noise schedule, and backwards, from noise to images by diffusers' schedulers."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fedgen.extras import need
from fedgen.losses.feature_loss import KeepsPrecision
from fedgen.models.require import require
from fedgen.models.sampling import batches_of
from fedgen.progress import track

MOST_TIMESTEPS = 1_000_000  # papers use 1000; a damaged checkpoint may ask for more than memory holds
Kind = Literal["linear", "cosine", "scaled_linear"]
Prediction = Literal["epsilon", "v"]
BETAS = {"linear": "linear", "cosine": "squaredcos_cap_v2", "scaled_linear": "scaled_linear"}
PREDICTIONS = {"epsilon": "epsilon", "v": "v_prediction"}


@dataclass(frozen=True)
class NoiseSchedule:
    """The variances beta_t of the noise that is added at t = 0..timesteps - 1, and of the noise added back by "ddpm".

    Args:
        kind: "linear" in t (Ho et al. 2020), "cosine" (Nichol & Dhariwal 2021, arXiv 2102.09672, Eq. 17) or
            "scaled_linear" (linear in the root, as in latent diffusion).
        timesteps: T.
        beta_start: the first variance; the cosine schedule has its own.
        beta_end: the last one.
        variance: of an ancestral step: "fixed_large" is beta_t, "fixed_small" the posterior's (Ho et al., section 3.2).
        clip: whether every step clips the image that it predicts to [-1, 1].

    Raises:
        ValueError: for an unknown kind or variance, or betas outside (0, 1).
    """

    kind: Kind = "linear"
    timesteps: int = 1000
    beta_start: float = 1e-4
    beta_end: float = 0.02
    variance: Literal["fixed_large", "fixed_small"] = "fixed_large"
    clip: bool = True

    def __post_init__(self) -> None:
        require(self.kind in BETAS, f"schedule={self.kind!r}: choose {' or '.join(map(repr, BETAS))}")
        if self.variance not in ("fixed_large", "fixed_small"):
            raise ValueError(f"variance={self.variance!r}: choose 'fixed_large' or 'fixed_small'")
        if not 1 <= self.timesteps <= MOST_TIMESTEPS or not 0 < self.beta_start <= self.beta_end < 1:
            raise ValueError(
                f"timesteps={self.timesteps}, beta_start={self.beta_start}, beta_end={self.beta_end}: there must be 1"
                f" to {MOST_TIMESTEPS:,} timesteps and 0 < beta_start <= beta_end < 1"
            )

    def settings(self, prediction: Prediction) -> dict[str, Any]:
        """The arguments that all of diffusers' schedulers share."""
        return {
            "num_train_timesteps": self.timesteps,
            "beta_start": self.beta_start,
            "beta_end": self.beta_end,
            "beta_schedule": BETAS[self.kind],
            "prediction_type": PREDICTIONS[prediction],
        }

    def remaining(self) -> Tensor:
        """The share of the image's variance that is left: the products of 1 - beta, float32 [T]."""
        scheduler: Any = need("diffusers", "diffusion", "NoiseSchedule").DDPMScheduler(**self.settings("epsilon"))
        return scheduler.alphas_cumprod


class Diffusion(KeepsPrecision):
    """The forward process x_t = signal_t x_0 + noise_t e, e ~ N(0, 1), in float32 whatever the model's precision."""

    # half precision would take the first timesteps' signal of 0.99995 for 1

    signal: Tensor
    noise: Tensor

    def __init__(self, schedule: NoiseSchedule, prediction: Prediction) -> None:
        super().__init__()
        if prediction not in PREDICTIONS:
            raise ValueError(f"prediction={prediction!r}: choose {' or '.join(map(repr, PREDICTIONS))}")
        self.schedule, self.prediction = schedule, prediction
        remaining = schedule.remaining()
        self.register_buffer("signal", remaining.sqrt(), persistent=False)
        self.register_buffer("noise", (1 - remaining).sqrt(), persistent=False)

    def add_noise(self, images: Tensor, noise: Tensor, timesteps: Tensor) -> Tensor:
        """Noisy images [N, ...] of images and noise [N, ...] at timesteps int64 [N] (Ho et al. 2020, Eq. 4)."""
        return _at(self.signal, timesteps, images.ndim) * images + _at(self.noise, timesteps, images.ndim) * noise

    def target(self, images: Tensor, noise: Tensor, timesteps: Tensor) -> Tensor:
        """Return what a network should predict of them, as `add_noise` takes them."""
        if self.prediction == "epsilon":
            return noise
        return _at(self.signal, timesteps, images.ndim) * noise - _at(self.noise, timesteps, images.ndim) * images

    def epsilon(self, predicted: Tensor, noisy: Tensor, timesteps: Tensor) -> Tensor:
        """The noise that a network's prediction says is in noisy images."""
        if self.prediction == "epsilon":
            return predicted
        return _at(self.signal, timesteps, noisy.ndim) * predicted + _at(self.noise, timesteps, noisy.ndim) * noisy


def _at(values: Tensor, timesteps: Tensor, ndim: int) -> Tensor:
    """The values at the timesteps, shaped to multiply [N, ...]; in float32, to which products are promoted."""
    return values[timesteps].view(-1, *[1] * (ndim - 1))


Solver = Literal["dpm-solver++", "ddim", "ddpm"]
STEPS: dict[str, int | None] = {"dpm-solver++": 20, "ddim": 50, "ddpm": None}


# (noisy images [n, C, H, W], timestep or timesteps [n], which of all images they are) -> predictions
Predict = Callable[[Tensor, Tensor, slice | Tensor], Tensor]


@dataclass(frozen=True)
class Sampler:
    """Options for drawing images.

    Args:
        solver: "dpm-solver++" (Lu et al. 2022, arXiv 2211.01095, second order, deterministic), "ddim" (Song et al.
            2021, arXiv 2010.02502, deterministic) or "ddpm" (Ho et al. 2020, Algorithm 2: every step draws noise).
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
        require(self.solver in STEPS, f"solver={self.solver!r}: choose {', '.join(map(repr, STEPS))}")
        require(self.steps is None or self.steps >= 1, f"steps={self.steps}: an image takes at least one step")

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
    """Predictions in the images' dtype, for the labels int64 [N] of all images, guided by those for any class."""
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
    """Images float32 [N, C, H, W] of noise [N, C, H, W]; all take a step before any takes the next."""
    parts = batches_of(len(latents), batch_size)
    draws = torch.default_generator if generator is None else generator
    images, timesteps = latents, scheduler.timesteps
    for timestep in track(timesteps, "denoising", total=len(timesteps), unit="steps"):
        predicted = torch.cat([predict(images[part], timestep, part) for part in parts])
        images = scheduler.step(predicted, timestep, images, generator=draws, return_dict=False)[0]
    return images.clamp(-1, 1) if bounded else images
