"""Denoising diffusion (Ho et al. 2020, arXiv 2006.11239) as a Lightning module."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import torch
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from torch import Tensor, nn

from fedgen.io.files import in_bytes
from fedgen.models.diffusion.diffusion_losses import epsilon_losses
from fedgen.models.diffusion.diffusion_sampling import Sampler, Solver, denoise, make_scheduler, predictor
from fedgen.models.diffusion.diffusion_schedule import Diffusion, Kind, NoiseSchedule, Prediction
from fedgen.models.diffusion.pretrained import read_pretrained, write_pretrained
from fedgen.models.ema import EMA
from fedgen.models.fine_tuning.lora import LoRA, add_adapters, merge_adapters, read_adapters, write_adapters
from fedgen.models.label_frequencies import LabelFrequencies
from fedgen.models.networks.network import build, describe, require_shape
from fedgen.models.optional_hooks import data_module_of, of_data, of_network
from fedgen.models.require import require
from fedgen.models.round_clock import RoundClock
from fedgen.models.round_means import RoundMeans
from fedgen.models.sampling import evaluating

T = TypeVar("T")


class DDPM(RoundClock):
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
    ) -> None:
        super().__init__()
        _check_ranges(lr, warmup, ema_decay, label_dropout)
        if pretrained is not None:
            network, schedule, prediction = _take_pretrained(pretrained, network, schedule, prediction)
        if network is None:
            raise ValueError("DDPM needs a network, or the name of a pretrained one")
        self.network = build(network, "network")
        self.image_shape, self.num_classes, self.null_label = _shape_and_labels(self.network)
        self.diffusion = Diffusion(_made(schedule, NoiseSchedule, "kind"), prediction or "epsilon")
        self.sampler = _made(sampler, Sampler, "solver")
        self.lora = None if lora is None else _made(lora, LoRA)
        self._check_sampler(self.sampler)
        if self.lora is not None:
            add_adapters(_adapted(self.network), self.lora)
        if gradient_checkpointing:
            _save_memory(self.network)
        self.network_ema = EMA(self.network, ema_warmup) if ema_decay is not None else None
        self.label_frequencies = LabelFrequencies(self.num_classes) if self.num_classes is not None else None
        self.lr, self.warmup, self.ema_decay, self.flips = lr, warmup, ema_decay, flips
        self.label_dropout, self.compiles = label_dropout, compile
        self._predict: Callable[..., Tensor] | None = None  # the compiled network, while training
        settings: dict[str, Any] = {
            "prediction": self.diffusion.prediction,
            "lr": lr,
            "warmup": warmup,
            "ema_decay": ema_decay,
            "ema_warmup": ema_warmup,
            "flips": flips,
            "label_dropout": label_dropout,
            "compile": compile,
            "gradient_checkpointing": gradient_checkpointing,
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

    # ---- before training ----

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam on what trains."""
        trained = [parameter for parameter in self.network.parameters() if parameter.requires_grad]
        # one kernel for all parameters; mixed precision clips gradients outside of the optimizer, which refuses it
        mixed = "mixed" in str(self.trainer.precision)
        return torch.optim.Adam(trained, lr=self.lr, fused=not mixed)

    def setup(self, stage: str) -> None:
        """Checks the network against the data, and counts the data's labels.

        Raises:
            ValueError: if images have another shape, or labels are missing or too many.
        """
        if stage != "fit":
            return
        self.means = RoundMeans("loss")  # without those of a round that was cut short
        data = data_module_of(self.trainer)
        if (shape := of_data(data).image_shape) is not None:
            require_shape(torch.empty(1, *shape), self.image_shape, "the network")
        if self.label_frequencies is not None:
            self.label_frequencies.fit(data)
        self._predict = torch.compile(self.network.forward) if self.compiles else None

    def on_fit_start(self) -> None:
        """Says how little of the network its adapters are."""
        super().on_fit_start()
        if self.lora is not None:
            sizes = [(p.numel() * p.element_size(), p.requires_grad) for p in self.network.parameters()]
            trained, whole = sum(size for size, trains in sizes if trains), sum(size for size, _ in sizes)
            rank_zero_info(f"adapters alone train: {in_bytes(trained)} of the network's {in_bytes(whole)}")

    def teardown(self, stage: str) -> None:
        """Lets go of the compiled network."""
        self._predict = None

    # ---- training ----

    def training_step(self, batch: Sequence[Tensor], batch_idx: int) -> Tensor:
        """The loss (Ho et al. 2020, Eq. 14) of (images [N, C, H, W] in [-1, 1], labels int64 [N])."""
        # under "bf16-true" images come in half precision, and so would their noise
        images = batch[0].to(torch.promote_types(batch[0].dtype, torch.float32))
        require_shape(images, self.image_shape, "the network")
        self._set_rate(batch_idx)
        if self.flips:
            images = torch.where(torch.rand(len(images), 1, 1, 1, device=images.device) < 0.5, images.flip(3), images)
        timesteps = torch.randint(self.diffusion.schedule.timesteps, (len(images),), device=images.device)
        noise = torch.randn_like(images)
        noisy = self.diffusion.add_noise(images, noise, timesteps)
        predict = self._predict or self.network
        predicted = predict(noisy.to(batch[0].dtype), timesteps, *self._training_labels(batch))
        target = self.diffusion.target(images, noise, timesteps)
        loss = nn.functional.mse_loss(predicted.float(), target.float())
        self.means.add({"loss": loss})
        return loss

    def _training_labels(self, batch: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The labels of a conditional network, some of them replaced by "any class"."""
        if self.label_frequencies is None:
            return ()
        labels = self.label_frequencies.labels_of(batch)
        if self.num_classes is not None and self.null_label and self.label_dropout:
            dropped = torch.rand(len(labels), device=labels.device) < self.label_dropout
            labels = labels.masked_fill(dropped, self.num_classes)
        return (labels,)

    def _set_rate(self, batch_idx: int) -> None:
        """The learning rate of this iteration: the optimizer, inside whose step this runs, reads it afterwards."""
        if self.warmup:
            rate = self.lr * min(1.0, (self.iteration(batch_idx) + 1) / self.warmup)
            for group in self.trainer.optimizers[0].param_groups:
                group["lr"] = rate

    def on_round_end(self, iterations: int) -> None:
        """Moves the average of the network's weights by ema_decay ** iterations."""
        if self.network_ema is not None and self.ema_decay is not None:
            self.network_ema.update(self.network, self.ema_decay**iterations)

    def on_train_epoch_end(self) -> None:
        """Logs the round's mean loss."""
        self.log_means()

    # ---- after training ----

    @property
    def averaged(self) -> nn.Module:
        """The network that images are drawn with: the moving average if there is one."""
        return self.network if self.network_ema is None else self.network_ema.network

    @property
    def sampling(self) -> dict[str, Any]:
        """The way in which `sample` draws images unless told otherwise, as plain types; stored with every score.

        Assigning a dictionary changes the settings that it names; another solver brings its own number of steps.
        """
        steps = self.sampler.num_steps(self.diffusion.schedule.timesteps)
        found: dict[str, Any] = {"solver": self.sampler.solver, "steps": steps}
        return found if self.num_classes is None else found | {"guidance": self.sampler.guidance}

    @sampling.setter
    def sampling(self, settings: Mapping[str, Any]) -> None:
        sampler = self.sampler.changed(settings.get("solver"), settings.get("steps"), settings.get("guidance"))
        self._check_sampler(sampler)
        self.sampler = sampler

    def sample(
        self,
        num_images: int,
        generator: torch.Generator | None = None,
        labels: Tensor | None = None,
        batch_size: int = 250,
        solver: Solver | None = None,
        steps: int | None = None,
        guidance: float | None = None,
    ) -> Tensor:
        """Images float32 [num_images, C, H, W] in [-1, 1], on the module's device; the module is left as it was.

        Args:
            num_images: how many; all of them are held at once, a few times over.
            generator: a CPU generator: for the latents, in one go; for labels; for the noise of ancestral steps. The
                global generator by default.
            labels: int64 [num_images] for a conditional model; drawn by the training data's frequencies by default.
            batch_size: images that the network gets at once, a bound on memory; does not change them.
            solver: another than the model's; see `Sampler`.
            steps: another number of steps.
            guidance: another scale of classifier-free guidance.

        Raises:
            ValueError: for labels that do not fit, fewer than one image, or guidance without "any class".
        """
        require(num_images >= 1, f"num_images={num_images}: draw at least one image")
        sampler = self.sampler.changed(solver, steps, guidance)
        self._check_sampler(sampler)
        network = self.averaged
        latents = torch.randn(num_images, *self.image_shape, generator=generator).to(self.device)
        labels = self._sampling_labels(num_images, labels, generator)
        scheduler = make_scheduler(sampler, self.diffusion.schedule, self.diffusion.prediction)
        predict = predictor(network, labels, sampler.guidance, self.num_classes)
        with evaluating(network):
            return denoise(predict, latents, scheduler, batch_size, generator)

    def _sampling_labels(self, count: int, labels: Tensor | None, generator: torch.Generator | None) -> Tensor | None:
        if self.label_frequencies is None:
            require(labels is None, f"this {type(self).__name__} is unconditional and takes no labels")
            return None
        return (
            self.label_frequencies.draw(count, generator)
            if labels is None
            else self.label_frequencies.check(labels, count)
        )

    def _check_sampler(self, sampler: Sampler) -> None:
        sampler.num_steps(self.diffusion.schedule.timesteps)
        require(
            sampler.guidance == 1 or self.null_label,
            f"guidance={sampler.guidance} mixes the predictions for a class and for any: it needs a network with"
            " num_classes and null_label",
        )

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
        require_shape(images, self.image_shape, "the network")
        require(
            (timesteps >= 1) if isinstance(timesteps, int) else len(timesteps) > 0 and self._has(timesteps),
            f"timesteps={timesteps}: give how many, from 1, or some below {self.diffusion.schedule.timesteps}",
        )
        if self.label_frequencies is None:
            require(labels is None, f"this {type(self).__name__} is unconditional and takes no labels")
        elif labels is not None:
            self.label_frequencies.check(labels, len(images))
        else:
            require(self.null_label, "this model knows no 'any class': give the images' labels")
        network = self.averaged if average else self.network
        with evaluating(network):
            return epsilon_losses(network, self.diffusion, images, labels, seed, timesteps, batch_size, start)

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
        """
        network = self.averaged if average else self.network
        if self.lora is not None:
            if not merge:
                return write_adapters(_adapted(network), self.lora, folder)
            network = merge_adapters(network)
        write_pretrained(folder, network, self.diffusion.schedule, self.diffusion.prediction)

    def load_adapters(self, folder: str | Path) -> None:
        """Takes the adapters that `save_pretrained(folder, merge=False)` or peft wrote, the average too.

        Raises:
            ValueError: if the model has no adapters, or others.
        """
        if self.lora is None:
            raise ValueError("this model has no adapters; build it with DDPM(..., lora=LoRA(rank=...))")
        read_adapters(_adapted(self.network), self.lora, folder)
        if self.network_ema is not None:
            read_adapters(_adapted(self.network_ema.network), self.lora, folder)


def _check_ranges(lr: float, warmup: int, ema_decay: float | None, label_dropout: float) -> None:
    require(lr > 0, f"lr={lr}: the learning rate is positive")
    require(warmup >= 0, f"warmup={warmup}: count iterations from 0")
    require(ema_decay is None or 0 <= ema_decay < 1, f"ema_decay={ema_decay}: the decay lies in [0, 1)")
    require(0 <= label_dropout <= 1, f"label_dropout={label_dropout}: a probability lies in [0, 1]")


def _take_pretrained(name: str, network: Any, schedule: Any, prediction: Any) -> tuple[Any, Any, Any]:
    """Return a folder's settings, completed by what was given; both must not say the same."""
    require(network is None, f"pretrained={name!r} brings the network; give one of the two")
    found = read_pretrained(name)
    for argument, given, brought in (("schedule", schedule, found[1]), ("prediction", prediction, found[2])):
        require(given is None or brought is None, f"pretrained={name!r} brings its {argument}; leave {argument} out")
    return found[0], found[1] or schedule, found[2] or prediction


def _shape_and_labels(network: nn.Module) -> tuple[tuple[int, ...], int | None, bool]:
    """Return what a network says of itself: image shape, classes, and whether it knows "any class"."""
    own, name = of_network(network), type(network).__name__
    shape = own.image_shape
    require(shape is not None, f"the network {name} needs an attribute image_shape: (channels, height, width)")
    assert shape is not None
    return tuple(shape), own.num_classes, bool(own.null_label)


def _adapted(network: nn.Module) -> nn.Module:
    """The part of a network that adapters belong to: a UNet's own of diffusers, so that they fit its folders."""
    body = of_network(network).body
    return network if body is None else body


def _save_memory(network: nn.Module) -> None:
    save = of_network(network).save_memory
    require(
        save is not None,
        f"gradient_checkpointing needs a network with save_memory(), as UNet has; got {type(network).__name__}",
    )
    assert save is not None
    save()


def _made(given: Any, kind: type[T], first: str = "") -> T:
    """The settings object of a kind, from itself, its fields as a checkpoint holds them, its first field or None."""
    if given is None:
        return kind()
    if isinstance(given, Mapping):
        return kind(**given)
    made = kind(**{first: given}) if isinstance(given, str) and first else given
    require(isinstance(made, kind), f"{made!r} is no {kind.__name__}; give {kind.__name__}(...)")
    return made
