"""Denoising diffusion (Ho et al. 2020, arXiv 2006.11239) as a Lightning module, and its folders of diffusers."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedgen.extras import need
from fedgen.io.field_types import fault
from fedgen.io.files import write_json
from fedgen.io.tensor_files import find_folder
from fedgen.models.checkpoint_file import rebuild_model
from fedgen.models.diffusion.denoiser import Ask, Denoiser, full_precision, made, require_times
from fedgen.models.diffusion.diffusion_process import (
    BETAS,
    PREDICTIONS,
    Diffusion,
    Kind,
    NoiseSchedule,
    Predict,
    Prediction,
    Sampler,
    denoise,
    make_scheduler,
    predictor,
)
from fedgen.models.diffusion.lora import LoRA, adapted, merge_adapters, write_adapters
from fedgen.models.networks.diffusers_networks import CONFIG, UNet, network_around, read_body, read_settings
from fedgen.models.networks.network import Network, build, describe
from fedgen.models.optional_hooks import Drawn
from fedgen.models.require import require

SCHEDULER, LABELS = "scheduler_config.json", "fedgen.json"
_SAID = ("num_train_timesteps", "beta_start", "beta_end", "beta_schedule")


def read_pretrained(name: str | Path) -> tuple[UNet, NoiseSchedule | None, Prediction | None]:
    """The network, its noise schedule and prediction (None without a scheduler); no code of the folder is run."""
    folder = find_folder(name)
    unet = folder / "unet" if (folder / "unet").is_dir() else folder
    missing = f"{name} is no diffusers folder of an image diffusion model"
    body = read_body(unet, "UNet2DModel", missing, "fedgen trains")
    size = body.config.sample_size
    sides = size if isinstance(size, (list, tuple)) and len(size) == 2 else [size]
    is_size = all(type(side) is int and side > 0 for side in sides)
    if body.config.in_channels != body.config.out_channels or not is_size:
        raise ValueError(
            f"{unet / CONFIG}: in_channels={body.config.in_channels}, out_channels={body.config.out_channels},"
            f" sample_size={size}; fedgen needs as many channels out as in, and a size"
        )
    classes = _read_labels(folder / LABELS)
    network = network_around(UNet, body, unet / CONFIG, num_classes=classes)
    for path in (folder / "scheduler" / SCHEDULER, folder / SCHEDULER):
        if path.is_file():
            return network, *read_schedule_file(path)
    return network, None, None


def read_schedule_file(path: Path) -> tuple[NoiseSchedule, Prediction]:
    """The noise schedule in a scheduler's file, and what the network predicts."""
    config = read_settings(path)
    missing = [key for key in ("_class_name", *_SAID) if key not in config]
    if missing:  # diffusers would take its defaults
        raise ValueError(f"{path} does not say {', '.join(missing)}, as schedulers' files do; copy the folder again")
    return read_schedule(config, path)


def read_schedule(config: Mapping[str, Any], path: Path) -> tuple[NoiseSchedule, Prediction]:
    """The noise schedule in a scheduler's config, and what the network predicts."""
    kinds, predictions = {v: k for k, v in BETAS.items()}, {v: k for k, v in PREDICTIONS.items()}
    variances = {"fixed_small": "fixed_small", "fixed_small_log": "fixed_small", "fixed_large": "fixed_large"}
    known: dict[str, Any] = {  # what fedgen has, diffusers' default first
        "beta_schedule": list(kinds),
        "prediction_type": list(predictions),
        "variance_type": [*variances, None],
        "trained_betas": [None],
        "rescale_betas_zero_snr": [False],
        "thresholding": [False],
        "clip_sample_range": [1.0],
        "clip_sample": [True, False],
    }
    for key, hint in {"num_train_timesteps": int, "beta_start": float, "beta_end": float, "clip_sample": bool}.items():
        if key in config and (wrong := fault(config[key], hint)):
            raise ValueError(f"{path}: {key} {wrong}; copy the folder again")
    found = {key: config.get(key, values[0]) for key, values in known.items()}
    for key, values in known.items():
        if found[key] not in values:
            raise ValueError(f"{path}: {key}={found[key]!r} is none that fedgen has: {', '.join(map(repr, values))}")
    try:
        schedule = NoiseSchedule(
            kind=kinds[found["beta_schedule"]],  # type: ignore[arg-type]
            timesteps=config.get("num_train_timesteps", 1000),
            beta_start=config.get("beta_start", 1e-4),
            beta_end=config.get("beta_end", 0.02),
            variance=variances[found["variance_type"] or "fixed_small"],  # type: ignore[arg-type]
            clip=found["clip_sample"],
        )
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from error
    return schedule, predictions[found["prediction_type"]]  # type: ignore[return-value]


def _read_labels(path: Path) -> int | None:
    """The number of classes that a folder of ours says its network knows; None if it says nothing."""
    if not path.is_file():
        return None
    classes = read_settings(path).get("num_classes")
    if type(classes) is not int or classes < 1:
        raise ValueError(f"{path} has num_classes={classes!r}, which is no number of classes; copy the folder again")
    return classes


def draw_timesteps(count: int, schedule_length: int, generator: torch.Generator) -> Tensor:
    """Timesteps int64 [count], one uniform in each of `count` equal parts of 0..schedule_length - 1."""
    places = (torch.arange(count) + torch.rand(count, generator=generator, dtype=torch.float64)) / count
    return (places * schedule_length).long().clamp(max=schedule_length - 1)


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
        ema_decay: decay per iteration of the weights' average, moved at round ends, that draws images; None for none.
        ema_warmup: whether that average forgets faster at first, for runs that are short against it (see `EMA`).
        flips: whether training images are mirrored at random; not for digits or letters.
        label_dropout: how often a training label is replaced by "any class", for guidance; used if there are classes.
        sampler: how images are drawn; 20 steps of DPM-Solver++ by default.
        lora: adapters on the network; they alone are then trained, sent and averaged.
        compile: whether training steps run through torch.compile.
        gradient_checkpointing: whether training computes activations twice to keep fewer of them.
        autoencoder: a frozen one, or what `LatentSpace` makes one of, in whose latents the model trains and draws.

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
        own = {"prediction": self.diffusion.prediction, "schedule": asdict(self.diffusion.schedule)}
        self._start_with(made(sampler, Sampler, "solver"), own)

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
        diffusion, length = self.diffusion, self.diffusion.schedule.timesteps
        require_times("timesteps", timesteps, lambda t: 0 <= t < length, f"below {length}")

        def errors(ask: Ask, part: Tensor, t: Tensor, noise: Tensor) -> Tensor:
            noisy = diffusion.add_noise(part, noise, t)
            return diffusion.epsilon(ask(noisy, t), noisy, t) - noise

        def spread(count: int, draws: torch.Generator) -> Tensor:
            return draw_timesteps(count, length, draws)

        options = batch_size, average, start, torch.int64
        return self._losses_of_examples(images, labels, seed, timesteps, spread, errors, *options)

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
        diffusers = need("diffusers", "diffusion", "a folder of diffusers")
        if not isinstance(network, UNet):
            raise TypeError(f"diffusers can hold a UNet, not a {type(network).__name__}; save its state_dict instead")
        normalisation = network.settings["normalisation"]
        require(
            network.patch == 1 and normalisation == "group",
            f"diffusers has no network of patch={network.patch}, normalisation={normalisation!r};"
            " share it by fedgen.hub.save_pretrained",
        )
        scheduler = make_scheduler(Sampler("ddpm"), self.diffusion.schedule, self.diffusion.prediction)
        pipeline: Any = diffusers.DDPMPipeline(unet=network.body, scheduler=scheduler)
        pipeline.save_pretrained(folder, safe_serialization=True)
        if network.num_classes is None:
            (Path(folder) / LABELS).unlink(missing_ok=True)  # of a conditional model that was in this folder before
        else:
            write_json(Path(folder) / LABELS, {"num_classes": network.num_classes})


def _take_pretrained(name: str, network: Any, schedule: Any, prediction: Any) -> tuple[Any, Any, Any]:
    """Return a folder's settings, completed by what was given; both must not say the same."""
    require(network is None, f"pretrained={name!r} brings the network; give one of the two")
    found = read_pretrained(name)
    for argument, given, brought in (("schedule", schedule, found[1]), ("prediction", prediction, found[2])):
        require(given is None or brought is None, f"pretrained={name!r} brings its {argument}; leave {argument} out")
    return found[0], found[1] or schedule, found[2] or prediction


class FewStepGenerator(Network):
    """Images [N, C, H, W] in [-1, 1] from latents [N, C H W] by steps of DDIM (Song et al. 2021, arXiv 2010.02502).

    They are those of `DDPM.sample(solver="ddim", steps=steps)`, of the model's moving average. Gradients go through all
    steps, and straight through the bounds at -1 and 1, where many pixels lie and would else have none. An image takes
    the memory of `steps` passes of the network: where that is too much, train it with `chunk` (`FineTuning`).

    Args:
        ddpm: the model, whose network is copied; the path of its checkpoint; or its description in a checkpoint.
        steps: of DDIM; a number that divides the model's timesteps.

    Raises:
        FileNotFoundError: if there is no such checkpoint.
        ValueError: for steps that do not divide the timesteps, a model of latents, or a file that is no DDPM's.
    """

    def __init__(self, ddpm: DDPM | str, steps: int = 4) -> None:
        model = _read(ddpm)
        require(model.latent_space is None, "a few-step generator gives images, and this DDPM an autoencoder's latents")
        described = {"class_path": describe(model)["class_path"], "init_args": {**model.hparams, "ema_decay": None}}
        super().__init__(ddpm=described, steps=steps)
        self.network = copy.deepcopy(model.network)  # with what of it trains
        self.network.load_state_dict(model.averaged.state_dict())
        self.diffusion = model.diffusion
        self.image_shape, self.num_classes = model.image_shape, model.num_classes
        self.latent_dim, self.steps = int(torch.Size(self.image_shape).numel()), steps
        schedule = self.diffusion.schedule
        scheduler = make_scheduler(Sampler("ddim", steps), schedule, self.diffusion.prediction)
        self._timesteps: list[int] = scheduler.timesteps.tolist()

    def forward(self, latents: Tensor, labels: Tensor | None = None) -> Tensor:
        """The images.

        Args:
            latents: standard normal.
            labels: int64 [N] for a conditional model.
        """
        predict = predictor(self.network, labels, 1.0, None)
        noisy = latents.float().unflatten(1, self.image_shape)
        signal, noise, clip = self.diffusion.signal, self.diffusion.noise, self.diffusion.schedule.clip
        for now, after in zip(self._timesteps, [*self._timesteps[1:], None]):
            timesteps = torch.full((len(noisy),), now, device=noisy.device)
            predicted = predict(noisy, timesteps[0], slice(None))
            epsilon = self.diffusion.epsilon(predicted, noisy, timesteps)
            images = (noisy - noise[now] * epsilon) / signal[now]
            images = _bounded(images) if clip else images
            noisy = images if after is None else signal[after] * images + noise[after] * epsilon
        return _bounded(noisy).to(latents.dtype)


def _read(ddpm: Any) -> DDPM:
    if isinstance(ddpm, str | Path):
        return rebuild_model(DDPM, ddpm)
    return build(ddpm, "ddpm", DDPM, "model") if isinstance(ddpm, Mapping) else ddpm


def _bounded(images: Tensor) -> Tensor:
    """Images cut to [-1, 1], with the gradient as if they were not."""
    return images + (images.clamp(-1, 1) - images).detach()
