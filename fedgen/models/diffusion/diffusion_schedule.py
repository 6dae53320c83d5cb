"""The forward process of diffusion models: what is left of an image at each timestep, and what is predicted of it."""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from fedgen.extras import need
from fedgen.losses.feature_loss import KeepsPrecision

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
        if self.kind not in BETAS:
            raise ValueError(f"schedule={self.kind!r}: choose {' or '.join(map(repr, BETAS))}")
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
    """The forward process x_t = signal_t x_0 + noise_t e with e ~ N(0, 1), in float32 whatever the model's precision.

    Saves nothing: it is a function of its arguments. Inputs in half precision give results in float32, to be cast for
    the network: half precision would take the first timesteps' signal of 0.99995 for 1, and round the noise to it.

    Args:
        schedule: of the noise.
        prediction: what a network predicts of (x_t, t): "epsilon", the noise e (Ho et al. 2020), or "v",
            signal_t e - noise_t x_0 (Salimans & Ho 2022, arXiv 2202.00512, appendix D).
    """

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


def draw_timesteps(count: int, schedule_length: int, generator: torch.Generator) -> Tensor:
    """Timesteps int64 [count], one uniform in each of `count` equal parts of 0..schedule_length - 1."""
    places = (torch.arange(count) + torch.rand(count, generator=generator, dtype=torch.float64)) / count
    return (places * schedule_length).long().clamp(max=schedule_length - 1)
