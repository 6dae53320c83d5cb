"""The base of models that draw images from noise by a network of noisy images and times."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

import torch
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from torch import Tensor, nn

from fedgen.data.optional_attributes import optional
from fedgen.io.files import in_bytes
from fedgen.models.autoencoders import made_space
from fedgen.models.diffusion.diffusion_process import Predict, predictor
from fedgen.models.diffusion.lora import LoRA, adapted, add_adapters, read_adapters
from fedgen.models.ema import EMA
from fedgen.models.label_frequencies import LabelFrequencies, sampling_labels
from fedgen.models.networks.network import arguments_of, build, describe, require_shape
from fedgen.models.optional_hooks import (
    Drawn,
    FederatedData,
    FunctionalStep,
    ImageNetwork,
    TurnTakingStrategy,
    data_module_of,
)
from fedgen.models.require import require
from fedgen.models.round_clock import RoundClock, RoundMeans
from fedgen.models.sampling import batches_of, evaluating, require_batch_size
from fedgen.seeds import generator as seeded

T = TypeVar("T")
Ask = Callable[[Tensor, Tensor], Tensor]  # a network's predictions of noisy images [n, ...] at times [n]
Errors = Callable[[Ask, Tensor, Tensor, Tensor], Tensor]  # [n, ...] of it, images [n, ...], times [n], noise [n, ...]


class Denoiser(RoundClock):
    """A network of (noisy images, times) with all that `DDPM`, `FlowMatching` and `EDM` share."""

    sampler: Any  # options for drawing: `guidance`, and `changed(solver, steps, guidance)`

    # The models name these arguments again. As `**options` they would be missing from the signatures, the reference
    # and type checks; as an unpacked TypedDict, from the defaults and help of recipes as well.
    def __init__(
        self,
        network: nn.Module,
        lr: float,
        warmup: int,
        ema_decay: float | None,
        ema_warmup: bool,
        flips: bool,
        label_dropout: float,
        lora: LoRA | None,
        compile: bool,
        gradient_checkpointing: bool,
        autoencoder: nn.Module | str | None,
    ) -> None:
        settings = arguments_of(locals())
        super().__init__()
        require(lr > 0, f"lr={lr}: the learning rate is positive")
        require(warmup >= 0, f"warmup={warmup}: count iterations from 0")
        require(ema_decay is None or 0 <= ema_decay < 1, f"ema_decay={ema_decay}: the decay lies in [0, 1)")
        require(0 <= label_dropout <= 1, f"label_dropout={label_dropout}: a probability lies in [0, 1]")
        self.network = build(network, "network")
        # of what the network gets: images, or their latents
        if (shape := optional(self.network, ImageNetwork, "image_shape")) is None:
            name = type(self.network).__name__
            raise ValueError(f"the network {name} needs an attribute image_shape: (channels, height, width)")
        self.latent_shape, self.num_classes = tuple(shape), optional(self.network, ImageNetwork, "num_classes")
        self.null_label = bool(optional(self.network, ImageNetwork, "null_label"))
        self.latent_space = None if autoencoder is None else made_space(autoencoder)
        space = self.latent_space
        self.image_shape = self.latent_shape if space is None else space.image_shape_of(self.latent_shape)
        require(
            not flips or len(self.image_shape) == 3,
            f"flips=True mirrors images, and the network's inputs are {list(self.image_shape)}; leave flips out",
        )
        self.lora = None if lora is None else made(lora, LoRA)
        if self.lora is not None:
            add_adapters(adapted(self.network), self.lora)
        if gradient_checkpointing:
            if (save := optional(self.network, ImageNetwork, "save_memory")) is None:
                name = type(self.network).__name__
                raise ValueError(f"gradient_checkpointing needs a network with save_memory(), as UNet has; got {name}")
            save()
        self.network_ema = EMA(self.network, ema_warmup) if ema_decay is not None else None
        self.label_frequencies = LabelFrequencies(self.num_classes) if self.num_classes is not None else None
        self.lr, self.warmup, self.ema_decay, self.flips = lr, warmup, ema_decay, flips
        self.label_dropout, self.compiles = label_dropout, compile
        self._predict: Callable[..., Tensor] | None = None  # the compiled network, while training
        described = {"network": describe(self.network), "autoencoder": None if space is None else describe(space)}
        self._training_settings: dict[str, Any] = settings | described
        self._training_settings["lora"] = None if self.lora is None else asdict(self.lora)

    def _start_with(self, sampler: Any, own: Mapping[str, Any]) -> None:
        """Takes the sampler and saves all arguments as plain types: Lightning's capture would store objects."""
        self._check_sampler(sampler)
        self.sampler = sampler
        self.save_hyperparameters({**self._training_settings, **own, "sampler": asdict(sampler)})

    # ---- what a model says ----

    @abstractmethod
    def _drawn(self, images: Tensor, batch: Sequence[Tensor]) -> dict[str, Tensor]:
        """Draw for training images or latents [N, ...] in full precision; what `_loss` takes, "images" among it."""

    @abstractmethod
    def _loss(self, batch: Sequence[Tensor], drawn: Drawn) -> Tensor:
        """The loss of a batch for which `_drawn` drew; without draws."""

    @abstractmethod
    def _draw(
        self, predict: Predict, latents: Tensor, sampler: Any, batch_size: int, generator: torch.Generator | None
    ) -> Tensor:
        """Images [N, ...] of noise [N, ...], standard normal on the network's device; of an autoencoder the latents."""

    @abstractmethod
    def _told(self, sampler: Any) -> dict[str, Any]:
        """The options that images depend on as plain types, without guidance."""

    def _check_sampler(self, sampler: Any) -> None:
        """Raises ValueError for options that the model cannot draw by."""
        require(
            sampler.guidance == 1 or self.null_label,
            f"guidance={sampler.guidance} mixes the predictions for a class and for any: it needs a network with"
            " num_classes and null_label",
        )

    # ---- what of it stays with the server and each client ----

    def on_fit_start(self) -> None:
        """Says how little of the network its adapters are."""
        super().on_fit_start()
        if self.lora is not None:
            sizes = [(p.numel() * p.element_size(), p.requires_grad) for p in self.network.parameters()]
            trained, whole = sum(size for size, trains in sizes if trains), sum(size for size, _ in sizes)
            rank_zero_info(f"adapters alone train: {in_bytes(trained)} of the network's {in_bytes(whole)}")

    def load_adapters(self, folder: Any) -> None:
        """Takes the adapters that `DDPM.save_pretrained(folder, merge=False)` or peft wrote, the average too.

        Raises:
            ValueError: if the model has no adapters, or others.
        """
        if self.lora is None:
            name = type(self).__name__
            raise ValueError(f"this model has no adapters; build it with {name}(..., lora=LoRA(rank=...))")
        read_adapters(adapted(self.network), self.lora, folder)
        if self.network_ema is not None:
            read_adapters(adapted(self.network_ema.network), self.lora, folder)

    @property
    def server_only(self) -> tuple[str, ...]:
        """Clients elsewhere have the autoencoder themselves, and no turn looks at the moving average."""
        return ("latent_space.", "network_ema.")

    @property
    def fingerprints(self) -> dict[str, str]:
        """The autoencoder's, which must be theirs."""
        return {} if self.latent_space is None else {"autoencoder": self.latent_space.fingerprint()}

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
        if (shape := optional(data, FederatedData, "image_shape")) is not None:
            self._require_images(torch.empty(1, *shape))
        if self.label_frequencies is not None:
            self.label_frequencies.fit(data)
        self._predict = torch.compile(self.network.forward) if self.compiles else None

    def teardown(self, stage: str) -> None:
        """Lets go of the compiled network."""
        self._predict = None

    # ---- training ----

    def training_step(self, batch: Sequence[Tensor], batch_idx: int) -> Tensor:
        """The loss of (images [N, C, H, W] in [-1, 1], labels int64 [N])."""
        drawn = self._draw_step(batch)
        if self.warmup:  # the optimizer, inside whose step this runs, reads it afterwards
            for group in self.trainer.optimizers[0].param_groups:
                group["lr"] = self._rate(self.iteration(batch_idx))
        loss = self._loss(batch, drawn)
        self.means.add({"loss": loss})
        return loss

    def functional_steps(self, iteration: int) -> Sequence[FunctionalStep]:
        """The one step of an iteration, as functions of a batch."""
        return [
            FunctionalStep("step", 0, self._draw_step, self._noted_loss, self._rate(iteration) if self.warmup else None)
        ]

    @property
    def no_functional_steps(self) -> str | None:
        """Reason for which a step cannot be taken for many clients at once: None if it can."""
        if self.compiles:
            return "compiled networks train one client at a time (compile=True)"
        if self._training_settings["gradient_checkpointing"]:
            return "activations are computed twice (gradient_checkpointing=True)"
        return None

    def _noted_loss(self, batch: Sequence[Tensor], drawn: Drawn) -> tuple[Tensor, dict[str, Tensor]]:
        loss = self._loss(batch, drawn)
        return loss, {"loss": loss}

    def _draw_step(self, batch: Sequence[Tensor]) -> dict[str, Tensor]:
        """All that is drawn for a batch, by torch's global generator."""
        images = full_precision(batch[0])  # under "bf16-true" images come in half precision, and so would their noise
        self._require_images(images)
        if self.flips:
            images = torch.where(torch.rand(len(images), 1, 1, 1, device=images.device) < 0.5, images.flip(3), images)
        if self.latent_space is not None:
            images = self.latent_space.encode(images)
        drawn = self._drawn(images, batch)
        if self.label_frequencies is None:
            return drawn
        return drawn | {"labels": self.label_frequencies.labels_of(batch, self.label_dropout if self.null_label else 0)}

    def _predicted(self, noisy: Tensor, times: Tensor, batch: Sequence[Tensor], drawn: Drawn) -> Tensor:
        """The network's predictions [N, ...] in full precision of noisy images at times [N], in that of the batch."""
        predict, labels = self._predict or self.network, [drawn["labels"]] if "labels" in drawn else []
        return full_precision(predict(noisy.to(batch[0].dtype), times, *labels))

    def _rate(self, iteration: int) -> float:
        """The learning rate of a client's iteration, counted from 0 since training began, by the schedule's factor."""
        factor = optional(self.trainer.strategy, TurnTakingStrategy, "client_lr_factor")
        return factor * self.lr * min(1.0, (iteration + 1) / self.warmup)

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
        found = self._told(self.sampler)
        return found if self.num_classes is None else found | {"guidance": self.sampler.guidance}

    @sampling.setter
    def sampling(self, settings: Mapping[str, Any]) -> None:
        sampler = self.sampler.changed(**settings)
        self._check_sampler(sampler)
        self.sampler = sampler

    def sample(
        self,
        num_images: int,
        generator: torch.Generator | None = None,
        labels: Tensor | None = None,
        batch_size: int = 250,
        solver: Any = None,
        steps: int | None = None,
        guidance: float | None = None,
    ) -> Tensor:
        """Images float32 [num_images, C, H, W] in [-1, 1], on the module's device; the module is left as it was.

        Args:
            num_images: how many; all of them are held at once, a few times over.
            generator: a CPU generator: for the noise to start from, in one go; for labels; for the noise of steps that
                draw some. The global generator by default.
            labels: int64 [num_images] for a conditional model; drawn by the training data's frequencies by default.
            batch_size: images that the network gets at once, a bound on memory; does not change them.
            solver: another than the model's, one of its sampler's names.
            steps: another number of steps.
            guidance: another scale of classifier-free guidance.

        Raises:
            ValueError: for labels that do not fit, fewer than one image, or guidance without "any class".
        """
        require(num_images >= 1, f"num_images={num_images}: draw at least one image")
        sampler = self.sampler.changed(solver, steps, guidance)
        self._check_sampler(sampler)
        network = self.averaged
        noise = torch.randn(num_images, *self.latent_shape, generator=generator).to(self.device)
        labels = sampling_labels(self.label_frequencies, labels, num_images, generator, type(self).__name__)
        predict = predictor(network, labels, sampler.guidance, self.num_classes)
        with evaluating(network):
            found = self._draw(predict, noise, sampler, batch_size, generator)
        return found if self.latent_space is None else self.latent_space.decode(found)

    def _bounded(self, found: Tensor) -> Tensor:
        """Drawn images [N, ...], cut to [-1, 1] if it is images; points and latents have any range."""
        return found.clamp(-1, 1) if self.latent_space is None and len(self.image_shape) == 3 else found

    def _encoded(self, images: Tensor, batch_size: int) -> Tensor:
        """Images [N, ...] as the network is asked about them, of an autoencoder the modes of their latents."""
        space = self.latent_space
        if space is None:
            return images
        require_batch_size(batch_size)
        return torch.cat([space.encode(part.to(self.device), draw=False) for part in images.split(batch_size)])

    @torch.no_grad()
    def _losses_of_examples(
        self,
        images: Tensor,
        labels: Tensor | None,
        seed: int,
        times: int | Sequence[float],
        spread: Callable[[int, torch.Generator], Tensor],
        errors: Errors,
        batch_size: int,
        average: bool,
        start: int,
        dtype: torch.dtype = torch.float32,
    ) -> Tensor:
        """The mean square of each image's errors, float32 [N] on the CPU, at times that `spread` draws, or these."""
        # image i's times and noise follow from (seed, start + i): data sets are compared at common random numbers
        network, encoded = self._asked(images, labels, average), self._encoded(images, batch_size)
        parameter, losses = next(network.parameters()), []

        def draw(place: int) -> tuple[Tensor, Tensor]:
            draws = seeded(seed, "example losses", start + place)
            at = spread(times, draws) if isinstance(times, int) else torch.tensor(list(times), dtype=dtype)
            return at, torch.randn(len(at), *encoded.shape[1:], generator=draws)

        with evaluating(network):
            for batch in batches_of(len(images), batch_size):
                part = encoded[batch].to(parameter.device).float()
                drawn = [draw(place) for place in range(batch.start, batch.start + len(part))]
                at, noise = (torch.stack(one).to(part.device).unbind(1) for one in zip(*drawn))
                of = () if labels is None else (labels[batch].to(parameter.device),)

                def ask(noisy: Tensor, t: Tensor, of: tuple[Tensor, ...] = of) -> Tensor:
                    return network(noisy.to(parameter), t, *of).float()

                found = [errors(ask, part, t, e).square().flatten(1).mean(1) for t, e in zip(at, noise)]
                losses.append(torch.stack(found).mean(0).cpu())
        return torch.cat(losses)

    def _require_images(self, images: Tensor) -> None:
        owner = "the network" if self.latent_space is None else "the network with its autoencoder"
        require_shape(images, self.image_shape, owner)

    def _asked(self, images: Tensor, labels: Tensor | None, average: bool = True) -> nn.Module:
        """The network that is asked about images and their labels ("any class" without), once these fit it."""
        self._require_images(images)
        if self.label_frequencies is None:
            require(labels is None, f"{type(self).__name__} is unconditional and takes no labels")
        elif labels is not None:
            self.label_frequencies.check(labels, len(images))
        else:
            require(self.null_label, "this model knows no 'any class': give the images' labels")
        return self.averaged if average else self.network


def full_precision(tensor: Tensor) -> Tensor:
    """The tensor in float32, or in its own precision where that is higher."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def require_times(name: str, given: int | Sequence[float], fits: Callable[[float], bool], which: str) -> None:
    """Raises ValueError for times of losses that are fewer than one, or do not fit."""
    fine = given >= 1 if isinstance(given, int) else len(given) >= 1 and all(map(fits, given))
    require(fine, f"{name}={given}: give how many, from 1, or some {which}")


def made(given: Any, kind: type[T], first: str = "") -> T:
    """The settings object of a kind, from itself, its fields as a checkpoint holds them, its first field or None."""
    if given is None:
        return kind()
    if isinstance(given, Mapping):
        return kind(**given)
    result = kind(**{first: given}) if isinstance(given, str) and first else given
    require(isinstance(result, kind), f"{result!r} is no {kind.__name__}; give {kind.__name__}(...)")
    return result
