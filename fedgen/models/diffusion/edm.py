"""EDM (Karras et al. 2022, arXiv 2206.00364) as a Lightning module: preconditioning, sampler, training."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from statistics import NormalDist
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fedgen.models.diffusion.denoiser import Ask, Denoiser, full_precision, made, require_times
from fedgen.models.diffusion.diffusion_process import Predict
from fedgen.models.diffusion.lora import LoRA
from fedgen.models.optional_hooks import Drawn
from fedgen.models.require import require
from fedgen.models.sampling import batches_of
from fedgen.progress import track


@dataclass(frozen=True)
class Preconditioning:
    """The denoiser D(x; sigma) = c_skip x + c_out F(c_in x, c_noise) around a network F (Table 1, column "Ours")."""

    sigma_data: float = 0.5
    p_mean: float = -1.2
    p_std: float = 1.2

    def __post_init__(self) -> None:
        require(self.sigma_data > 0, f"sigma_data={self.sigma_data}: the images' deviation is positive")
        require(self.p_std > 0, f"p_std={self.p_std}: the deviation of ln sigma is positive")

    def c_skip(self, sigma: Tensor) -> Tensor:
        return self.sigma_data**2 / (sigma**2 + self.sigma_data**2)

    def c_out(self, sigma: Tensor) -> Tensor:
        return sigma * self.sigma_data / (sigma**2 + self.sigma_data**2).sqrt()

    def c_in(self, sigma: Tensor) -> Tensor:
        return 1 / (sigma**2 + self.sigma_data**2).sqrt()

    def c_noise(self, sigma: Tensor) -> Tensor:
        return sigma.log() / 4

    def weight(self, sigma: Tensor) -> Tensor:
        """The loss's weight lambda of squared errors of the denoiser: 1 / c_out^2."""
        return (sigma**2 + self.sigma_data**2) / (sigma * self.sigma_data) ** 2

    def target(self, images: Tensor, noisy: Tensor, sigma: Tensor) -> Tensor:
        """Outputs [N, ...] of the network by which the denoiser gives the images of noisy images [N, ...] (Eq. 8)."""
        return (images - self.c_skip(sigma) * noisy) / self.c_out(sigma)

    def draw_sigmas(self, count: int, device: torch.device) -> Tensor:
        """Training's noise levels float32 [count], log-normal, from torch's global generator."""
        # "bf16-true" changes the default type
        return (self.p_mean + self.p_std * torch.randn(count, device=device, dtype=torch.float32)).exp()

    def spread_sigmas(self, count: int, generator: torch.Generator) -> Tensor:
        """Noise levels float32 [count] of the same distribution, one in each of as many equally probable parts."""
        places = (torch.arange(count) + torch.rand(count, generator=generator, dtype=torch.float64)) / count
        inside = places.clamp(1e-9, 1 - 1e-9).tolist()
        normal = NormalDist(self.p_mean, self.p_std)
        return torch.tensor([normal.inv_cdf(place) for place in inside]).exp()


def noise_levels(steps: int, sigma_min: float, sigma_max: float, rho: float) -> Tensor:
    """The levels sigma_0 > ... > sigma_N = 0 of N steps, float64 [N + 1] (Eq. 5)."""
    ends = sigma_max ** (1 / rho), sigma_min ** (1 / rho)
    levels = torch.linspace(*ends, steps, dtype=torch.float64) ** rho
    return torch.cat([levels, levels.new_zeros(1)])


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
    """Images [N, ...] of noise [N, ...]; all take a step before any takes the next, so batches change no draw."""
    parts = batches_of(len(latents), batch_size)

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


_TOLD = ("solver", "steps", "sigma_min", "sigma_max", "rho", "churn")
_TOLD_OF_CHURN = ("churn_from", "churn_to", "churn_noise")


class EDM(Denoiser):
    """A network whose output, preconditioned, removes noise of any level, and images drawn by Heun's method.

    One `training_step` is one iteration of automatic optimisation by Adam on the weighted error of Eq. 8, at log-normal
    noise levels from torch's global generator. At a round's end its mean over all clients is logged as `loss`.
    Everything else is `DDPM`'s. Inputs of a network with `image_shape` (D,) are points [N, D] of any range, which are
    not cut to [-1, 1] where they are drawn.

    Args:
        network: outputs [N, C, H, W] of (noisy images of unit variance, ln(sigma) / 4 float32 [N]), and of labels int64
            [N] if it has `num_classes`; usually `fedgen.models.networks.UNet`. Others need an attribute `image_shape`.
        sigma_data: deviation of the images' values in [-1, 1].
        p_mean: mean of the logarithm of training's noise levels.
        p_std: its deviation.
        lr: Adam's learning rate.
        warmup: iterations over which it rises linearly from 0, counted by each client for itself.
        ema_decay: decay per iteration of the weights' average, moved at round ends, that draws images; None for none.
        ema_warmup: whether that average forgets faster at first, for runs that are short against it (see `EMA`).
        flips: whether training images are mirrored at random; not for digits or letters.
        label_dropout: how often a training label is replaced by "any class", for guidance; used if there are classes.
        sampler: how images are drawn; 18 steps of Heun's method without churn by default.
        lora: adapters on the network; they alone are then trained, sent and averaged.
        compile: whether training steps run through torch.compile.
        gradient_checkpointing: whether training computes activations twice to keep fewer of them.
        autoencoder: a frozen one, or what `LatentSpace` makes one of, in whose latents the model trains and draws.

    Raises:
        ValueError: for a value out of range, or a network that does not fit the data (when `fit` starts).

    Examples:
        >>> import torch
        >>> from fedgen.models import EDM
        >>> from fedgen.models.networks import UNet
        >>> model = EDM(UNet(image_size=8, channels=1, widths=[4], layers=1, attention=[]))
        >>> model.sample(2, torch.Generator().manual_seed(0), steps=2).shape
        torch.Size([2, 1, 8, 8])
    """

    def __init__(
        self,
        network: nn.Module,
        sigma_data: float = 0.5,
        p_mean: float = -1.2,
        p_std: float = 1.2,
        lr: float = 2e-4,
        warmup: int = 0,
        ema_decay: float | None = 0.9999,
        ema_warmup: bool = True,
        flips: bool = False,
        label_dropout: float = 0.1,
        sampler: EDMSampler | None = None,
        lora: LoRA | None = None,
        compile: bool = False,
        gradient_checkpointing: bool = False,
        autoencoder: nn.Module | str | None = None,
    ) -> None:
        shared = lr, warmup, ema_decay, ema_warmup, flips, label_dropout, lora, compile, gradient_checkpointing
        super().__init__(network, *shared, autoencoder)
        self.conditions = Preconditioning(sigma_data, p_mean, p_std)
        self._start_with(made(sampler, EDMSampler, "solver"), asdict(self.conditions))

    # ---- training ----

    def _drawn(self, images: Tensor, batch: Sequence[Tensor]) -> dict[str, Tensor]:
        sigma = self.conditions.draw_sigmas(len(images), images.device)
        return {"images": images, "sigma": sigma, "noise": torch.randn_like(images)}

    def _loss(self, batch: Sequence[Tensor], drawn: Drawn) -> Tensor:
        """The loss of Karras et al. 2022, Eq. 8: lambda c_out^2 is 1."""
        images, sigma = drawn["images"], drawn["sigma"]
        wide = sigma.view(-1, *[1] * (images.ndim - 1))
        noisy = images + wide * drawn["noise"]
        predicted = self._predicted(self.conditions.c_in(wide) * noisy, self.conditions.c_noise(sigma), batch, drawn)
        return nn.functional.mse_loss(predicted, full_precision(self.conditions.target(images, noisy, wide)))

    # ---- after training ----

    def _told(self, sampler: EDMSampler) -> dict[str, Any]:
        names = _TOLD + (_TOLD_OF_CHURN if sampler.churn else ())
        return {name: getattr(sampler, name) for name in names}

    def _draw(self, predict: Predict, latents: Tensor, sampler: EDMSampler, batch_size: int, generator: Any) -> Tensor:
        return self._bounded(denoise_edm(predict, latents, self.conditions, sampler, batch_size, generator))

    def example_losses(
        self,
        images: Tensor,
        labels: Tensor | None = None,
        seed: int = 0,
        sigmas: int | Sequence[float] = 10,
        batch_size: int = 250,
        average: bool = True,
        start: int = 0,
    ) -> Tensor:
        """The mean weighted error of the denoised image of each image, float32 [N] on the CPU.

        Example i's noise levels and noise depend on (seed, i) alone, so two sets are compared at common random numbers.

        Args:
            images: [N, C, H, W] in [-1, 1].
            labels: int64 [N] for a conditional model; the loss for "any class" by default.
            seed: of the draws.
            sigmas: how many noise levels an example, each in one of as many equally probable parts; or which.
            batch_size: images that the network gets at once, a bound on memory.
            average: whether to measure the moving average, if there is one.
            start: the place of the first image, of a set that is asked about in parts.

        Raises:
            ValueError: for images or labels that do not fit, or noise levels that are not positive.
        """
        require_times("sigmas", sigmas, lambda sigma: sigma > 0, "above 0")

        def errors(ask: Ask, part: Tensor, sigma: Tensor, noise: Tensor) -> Tensor:
            wide = sigma.view(-1, *[1] * (part.ndim - 1))
            noisy = part + wide * noise
            predicted = ask(self.conditions.c_in(wide) * noisy, self.conditions.c_noise(sigma))
            return predicted - self.conditions.target(part, noisy, wide)

        spread = self.conditions.spread_sigmas
        return self._losses_of_examples(images, labels, seed, sigmas, spread, errors, batch_size, average, start)
