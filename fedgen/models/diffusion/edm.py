"""EDM (Karras et al. 2022, arXiv 2206.00364) as a Lightning module."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from fedgen.models.diffusion.denoiser import Denoiser, full_precision, made
from fedgen.models.diffusion.diffusion_losses import losses_of_examples
from fedgen.models.diffusion.diffusion_sampling import Predict
from fedgen.models.diffusion.edm_sampling import EDMSampler, denoise_edm
from fedgen.models.diffusion.preconditioning import Preconditioning
from fedgen.models.fine_tuning.lora import LoRA
from fedgen.models.functional_step import Drawn
from fedgen.models.networks.network import describe
from fedgen.models.require import require
from fedgen.models.sampling import evaluating

_TOLD = ("solver", "steps", "sigma_min", "sigma_max", "rho", "churn")
_TOLD_OF_CHURN = ("churn_from", "churn_to", "churn_noise")


class EDM(Denoiser):
    """A network whose output, preconditioned, removes noise of any level, and images drawn by Heun's method.

    One `training_step` is one iteration of automatic optimisation by Adam on the weighted error of Eq. 8, at log-normal
    noise levels from torch's global generator. At a round's end its mean over all clients is logged as `loss`; nothing
    is logged per iteration. Everything else is `DDPM`'s: networks, moving average, labels, adapters, checkpoints
    without pickles.

    Inputs of a network with `image_shape` (D,) are points [N, D] of any range. Images drawn are cut to [-1, 1], points
    are not.

    Args:
        network: outputs [N, C, H, W] of (noisy images of unit variance, ln(sigma) / 4 float32 [N]), and of labels int64
            [N] if it has `num_classes`; usually `fedgen.models.networks.UNet`. Another module needs an attribute
            `image_shape`.
        sigma_data: deviation of the images' values in [-1, 1].
        p_mean: mean of the logarithm of training's noise levels.
        p_std: its deviation.
        lr: Adam's learning rate.
        warmup: iterations over which it rises linearly from 0, counted by each client for itself.
        ema_decay: decay per iteration of the moving average of the network's weights that images are drawn with; it
            moves at round ends, by ema_decay ** iterations. None samples from the network itself.
        ema_warmup: whether that average forgets faster at first, for runs that are short against it (see `EMA`).
        flips: whether training images are mirrored at random; not for digits or letters.
        label_dropout: how often a training label is replaced by "any class", for guidance; used if there are classes.
        sampler: how images are drawn; 18 steps of Heun's method without churn by default.
        lora: adapters on the network; they alone are then trained, sent and averaged.
        compile: whether training steps run through torch.compile.
        gradient_checkpointing: whether training computes activations twice to keep fewer of them.
        autoencoder: a frozen one, in whose latents the model then trains and draws, by its `LatentSpace`, or what that
            is made of: a folder of diffusers, a `VAE`'s checkpoint, a module; see docs/latent-models.md.

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
        self.sampler: EDMSampler = made(sampler, EDMSampler, "solver")
        self._check_sampler(self.sampler)
        settings = asdict(self.conditions) | self._training_settings
        settings |= {"sampler": asdict(self.sampler), "lora": None if self.lora is None else asdict(self.lora)}
        # plain types: Lightning's own capture would store objects
        self.save_hyperparameters({"network": describe(self.network), **settings})

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
        found = denoise_edm(predict, latents, self.conditions, sampler, batch_size, generator)
        return self._bounded(found)

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
            sigmas: how many noise levels an example, each in one of as many equally probable parts of training's; or
                which.
            batch_size: images that the network gets at once, a bound on memory.
            average: whether to measure the moving average, if there is one.
            start: the place of the first image, of a set that is asked about in parts.

        Raises:
            ValueError: for images or labels that do not fit, or noise levels that are not positive.
        """
        count = sigmas if isinstance(sigmas, int) else len(sigmas)
        positive = isinstance(sigmas, int) or all(sigma > 0 for sigma in sigmas)
        require(count >= 1 and positive, f"sigmas={sigmas}: give how many, from 1, or some above 0")
        network, encoded = self._asked(images, labels, average), self._encoded(images, batch_size)

        def errors(ask: Callable[[Tensor, Tensor], Tensor], part: Tensor, sigma: Tensor, noise: Tensor) -> Tensor:
            wide = sigma.view(-1, *[1] * (part.ndim - 1))
            noisy = part + wide * noise
            predicted = ask(self.conditions.c_in(wide) * noisy, self.conditions.c_noise(sigma))
            return predicted - self.conditions.target(part, noisy, wide)

        def draw_sigmas(draws: torch.Generator) -> Tensor:
            if isinstance(sigmas, int):
                return self.conditions.spread_sigmas(sigmas, draws)
            return torch.tensor(list(sigmas), dtype=torch.float32)

        with evaluating(network):
            return losses_of_examples(network, errors, draw_sigmas, encoded, labels, seed, batch_size, start)
