"""Denoising diffusion (Ho et al. 2020, arXiv 2006.11239) as a Lightning module."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedgen.models.diffusion.denoiser import Denoiser, full_precision, made
from fedgen.models.diffusion.diffusion_losses import epsilon_losses
from fedgen.models.diffusion.diffusion_sampling import Predict, Sampler, denoise, make_scheduler
from fedgen.models.diffusion.diffusion_schedule import Diffusion, Kind, NoiseSchedule, Prediction
from fedgen.models.diffusion.pretrained import read_pretrained, write_pretrained
from fedgen.models.fine_tuning.adapted_network import adapted
from fedgen.models.fine_tuning.lora import LoRA, merge_adapters, write_adapters
from fedgen.models.functional_step import Drawn
from fedgen.models.networks.network import describe
from fedgen.models.require import require
from fedgen.models.sampling import evaluating


class DDPM(Denoiser):
    """A network that learns to predict the noise in noisy images, and draws images by removing it step by step.

    One `training_step` is one iteration of automatic optimisation by Adam on the mean squared error of Eq. 14, at
    timesteps and noise drawn from torch's global generator. At a round's end its mean over all clients is logged as
    `loss`; nothing is logged per iteration.

    A checkpoint holds the network's class path and arguments and all settings as plain types, so that
    `load_from_checkpoint(path).sample(16)` needs nothing else and unpickles nothing.

    Args:
        network: predictions [N, C, H, W] of (noisy images, timesteps int64 [N]), and of labels int64 [N] if it has
            `num_classes`; usually `fedgen.models.networks.UNet`. Another module needs an attribute `image_shape`.
        pretrained: in place of a network: a folder of diffusers or a name on the hub, which brings network, schedule
            and prediction; weights are read from safetensors alone.
        schedule: of the noise: "linear" (the paper's, by default), "cosine", or a NoiseSchedule.
        prediction: "epsilon" (the paper's, by default) or "v" (Salimans & Ho 2022).
        lr: Adam's learning rate.
        warmup: iterations over which it rises linearly from 0, counted by each client for itself (the paper: 5,000).
        ema_decay: decay per iteration of the moving average of the network's weights that images are drawn with; it
            moves at round ends, by ema_decay ** iterations. None samples from the network itself.
        ema_warmup: whether that average forgets faster at first, for runs that are short against it (see `EMA`).
        flips: whether training images are mirrored at random; not for digits or letters.
        label_dropout: how often a training label is replaced by "any class", for guidance; used if there are classes.
        sampler: how images are drawn; 20 steps of DPM-Solver++ by default.
        lora: adapters on the network; they alone are then trained, sent and averaged.
        compile: whether training steps run through torch.compile.
        gradient_checkpointing: whether training computes activations twice to keep fewer of them.
        autoencoder: a frozen one, in whose latents the model then trains and draws, by its `LatentSpace`, or what that
            is made of: a folder of diffusers, a `VAE`'s checkpoint, a module; see docs/latent-models.md.

    Raises:
        ValueError: for a value out of range, or a network that does not fit the data (when `fit` starts).

    Examples:
        >>> import torch
        >>> from fedgen import DDPM
        >>> from fedgen.models.networks import UNet
        >>> model = DDPM(UNet(image_size=8, channels=1, widths=[4], layers=1, attention=[]))
        >>> model.sample(2, torch.Generator().manual_seed(0)).shape
        torch.Size([2, 1, 8, 8])
    """

    def __init__(
        self,
        network: nn.Module | None = None,
        pretrained: str | None = None,
        schedule: Kind | NoiseSchedule | None = None,
        prediction: Prediction | None = None,
        lr: float = 2e-4,
        warmup: int = 0,
        ema_decay: float | None = 0.9999,
        ema_warmup: bool = True,
        flips: bool = False,
        label_dropout: float = 0.1,
        sampler: Sampler | None = None,
        lora: LoRA | None = None,
        compile: bool = False,
        gradient_checkpointing: bool = False,
        autoencoder: nn.Module | str | None = None,
    ) -> None:
        if pretrained is not None:
            network, schedule, prediction = _take_pretrained(pretrained, network, schedule, prediction)
        if network is None:
            raise ValueError("DDPM needs a network, or the name of a pretrained one")
        shared = lr, warmup, ema_decay, ema_warmup, flips, label_dropout, lora, compile, gradient_checkpointing
        super().__init__(network, *shared, autoencoder)
        self.diffusion = Diffusion(self._schedule(schedule), prediction or "epsilon")
        self.sampler: Sampler = made(sampler, Sampler, "solver")
        self._check_sampler(self.sampler)
        settings: dict[str, Any] = {
            "prediction": self.diffusion.prediction,
            **self._training_settings,
            # plain types: Lightning's own capture would store objects
            "schedule": asdict(self.diffusion.schedule),
            "sampler": asdict(self.sampler),
            "lora": None if self.lora is None else asdict(self.lora),
        }
        self.save_hyperparameters({"network": describe(self.network), **settings})

    @classmethod
    def from_pretrained(cls, name: str | Path, **options: Any) -> "DDPM":
        """The model of a diffusers folder or a name on the hub; the options are the constructor's."""
        return cls(pretrained=str(name), **options)

    def _schedule(self, given: Any) -> NoiseSchedule:
        """The schedule; one of latents, which lie beyond [-1, 1], does not bound what is drawn."""
        schedule = made({"kind": given} if isinstance(given, str) else given, NoiseSchedule)
        if self.latent_space is None:
            return schedule
        require(
            not schedule.clip or not isinstance(given, NoiseSchedule | Mapping),
            f"{schedule}: clip=True keeps images in [-1, 1] at every step, and latents lie beyond; give clip=False",
        )
        return replace(schedule, clip=False)

    # ---- training ----

    def _drawn(self, images: Tensor, batch: Sequence[Tensor]) -> dict[str, Tensor]:
        timesteps = torch.randint(self.diffusion.schedule.timesteps, (len(images),), device=images.device)
        return {"images": images, "timesteps": timesteps, "noise": torch.randn_like(images)}

    def _loss(self, batch: Sequence[Tensor], drawn: Drawn) -> Tensor:
        """The loss of Ho et al. 2020, Eq. 14."""
        images, noise, timesteps = drawn["images"], drawn["noise"], drawn["timesteps"]
        predicted = self._predicted(self.diffusion.add_noise(images, noise, timesteps), timesteps, batch, drawn)
        return nn.functional.mse_loss(predicted, full_precision(self.diffusion.target(images, noise, timesteps)))

    # ---- after training ----

    def _told(self, sampler: Sampler) -> dict[str, Any]:
        return {"solver": sampler.solver, "steps": sampler.num_steps(self.diffusion.schedule.timesteps)}

    def _check_sampler(self, sampler: Sampler) -> None:
        sampler.num_steps(self.diffusion.schedule.timesteps)
        super()._check_sampler(sampler)

    def _draw(
        self, predict: Predict, latents: Tensor, sampler: Sampler, batch_size: int, generator: torch.Generator | None
    ) -> Tensor:
        scheduler = make_scheduler(sampler, self.diffusion.schedule, self.diffusion.prediction)
        return denoise(predict, latents, scheduler, batch_size, generator, bounded=self.latent_space is None)

    def example_losses(
        self,
        images: Tensor,
        labels: Tensor | None = None,
        seed: int = 0,
        timesteps: int | Sequence[int] = 10,
        batch_size: int = 250,
        average: bool = True,
        start: int = 0,
    ) -> Tensor:
        """The mean squared error of the predicted noise of each image, float32 [N] on the CPU.

        Example i's timesteps and noise depend on (seed, i) alone, so two sets are compared at common random numbers.

        Args:
            images: [N, C, H, W] in [-1, 1].
            labels: int64 [N] for a conditional model; the loss for "any class" by default.
            seed: of the draws.
            timesteps: how many an example, each uniform in one of as many equal parts of all; or which.
            batch_size: images that the network gets at once, a bound on memory.
            average: whether to measure the moving average, if there is one.
            start: the place of the first image, of a set that is asked about in parts.

        Raises:
            ValueError: for images or labels that do not fit, or a timestep that the model does not have.
        """
        require(
            (timesteps >= 1) if isinstance(timesteps, int) else len(timesteps) > 0 and self._has(timesteps),
            f"timesteps={timesteps}: give how many, from 1, or some below {self.diffusion.schedule.timesteps}",
        )
        network, encoded = self._asked(images, labels, average), self._encoded(images, batch_size)
        with evaluating(network):
            return epsilon_losses(network, self.diffusion, encoded, labels, seed, timesteps, batch_size, start)

    def _has(self, timesteps: Sequence[int]) -> bool:
        return 0 <= min(timesteps) <= max(timesteps) < self.diffusion.schedule.timesteps

    # ---- folders of diffusers ----

    def save_pretrained(self, folder: str | Path, average: bool = True, merge: bool = True) -> None:
        """Writes a folder that `diffusers.DDPMPipeline.from_pretrained(folder)` loads.

        Args:
            folder: where to.
            average: whether to write the moving average, if there is one.
            merge: with adapters, whether to add them to the weights; otherwise the adapters alone are written, for
                `load_adapters` or `peft.PeftModel.from_pretrained(base_unet, folder)`.

        Raises:
            TypeError: if the network is not a UNet.
            ValueError: for a model of latents, which a DDPMPipeline cannot draw, or a UNet that diffusers has not.
        """
        require(
            self.latent_space is None or not merge,
            "a DDPMPipeline has no autoencoder; share a model of latents by fedgen.hub.save_pretrained",
        )
        network = self.averaged if average else self.network
        if self.lora is not None:
            if not merge:
                return write_adapters(adapted(network), self.lora, folder)
            network = merge_adapters(network)
        write_pretrained(folder, network, self.diffusion.schedule, self.diffusion.prediction)


def _take_pretrained(name: str, network: Any, schedule: Any, prediction: Any) -> tuple[Any, Any, Any]:
    """Return a folder's settings, completed by what was given; both must not say the same."""
    require(network is None, f"pretrained={name!r} brings the network; give one of the two")
    found = read_pretrained(name)
    for argument, given, brought in (("schedule", schedule, found[1]), ("prediction", prediction, found[2])):
        require(given is None or brought is None, f"pretrained={name!r} brings its {argument}; leave {argument} out")
    return found[0], found[1] or schedule, found[2] or prediction
