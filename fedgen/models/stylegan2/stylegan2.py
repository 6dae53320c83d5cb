"""StyleGAN2 and StyleGAN2-ADA as a Lightning module (arXiv 1912.04958 and 2006.06676), with the published training."""

from collections.abc import Mapping, Sequence
from itertools import repeat
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fedgen.data.optional_attributes import optional
from fedgen.models.adversarial import CriticLosses, check_images
from fedgen.models.checkpoint_file import read_checkpoint, rebuild_model
from fedgen.models.ema import EMA
from fedgen.models.latent_generator import GeneratorLoss, LatentGenerator
from fedgen.models.networks.network import build, describe, require_shape
from fedgen.models.optional_hooks import FederatedData, scaler_of
from fedgen.models.require import require
from fedgen.models.sampling import evaluating, require_batch_size
from fedgen.models.stylegan2.augment import AdaptiveAugment
from fedgen.models.stylegan2.discriminator import StyleGAN2Discriminator
from fedgen.models.stylegan2.generator import StyleGAN2Generator
from fedgen.models.stylegan2.network_file import NetworkFile, take_weights
from fedgen.models.stylegan2.training_steps import (
    PATH_DECAY,
    PATH_SHARE,
    TrainingClock,
    check_batches,
    draw_noise,
    draw_styles,
    ema_decay,
    ema_decay_over,
    lazy_adam,
    micro_batches,
    micro_sizes,
    path_lengths,
    r1_penalty,
)


class StyleGAN2(CriticLosses, LatentGenerator):
    """StyleGAN2 with its training: non-saturating loss, lazy R1 and path length, style mixing, ADA, EMA by images.

    One `training_step` is one iteration on a batch of real images: a generator step; every `path_interval`-th iteration
    one on path lengths; a critic step; every `r1_interval`-th one on the R1 penalty. Each draws latents and labels of
    its own. Steps of a network share one Adam, whose rate and decays make up for the additional ones. It runs under any
    strategy; only `FedAvgStrategy` moves the average of weights at round ends instead of at every iteration, by the
    same product of decays. Images that a client was shown are the clock.

    At a round's (or epoch's) end means are logged: `generator_loss`, `critic_loss`, `r1_penalty`, `path_length`,
    `path_penalty`, `real_signs` (r of ADA), `augment_p`, and `kimg`, thousands of real images shown.

    A checkpoint has everything that training goes on with: weights, their average, optimizers, images shown, mean path
    length, p and what it is adapted by. `load_from_checkpoint(path).sample(16)` needs nothing else.

    Args:
        generator: the network, `StyleGAN2Generator`; that of `weights` by default.
        critic: the discriminator, `StyleGAN2Discriminator`, of the same image size and classes; likewise.
        r1_gamma: weight of the R1 penalty, whose loss is gamma / 2 times it.
        path_weight: weight of the path length penalty; 0 leaves it out.
        style_mixing: probability that an image's styles from a random layer on are those of a second latent.
        lr: learning rate of both Adams, before the correction for lazy steps.
        critic_lr: another one for the critic.
        betas: decays of their moments, before it.
        path_interval: iterations from one step on path lengths to the next.
        r1_interval: iterations from one step on the R1 penalty to the next.
        augment: what the critic's images are augmented by: an `AdaptiveAugment`, or None for nothing.
        ada_interval: iterations from one adaptation of its p to the next.
        ema_kimg: half-life of the moving average of the generator's weights, in thousands of images.
        ema_rampup: bound on that half-life as a share of the images shown; None for none.
        flips: whether real images are mirrored at random.
        micro_batch: images of a batch that are computed at once; gradients are summed over them. None: the batch.
        truncation: of sampled images' styles (see `StyleGAN2Generator.styles`).
        noise: of sampled images: "random" (drawn from `sample`'s generator), "const" or "none".
        generator_losses: extra losses of the generator: `EmbeddedLoss` (FID or MMD^2 to the clients' images), or any
            objects that turn its images [N, C, H, W] in [-1, 1] into a scalar, their weight included.
        compile: whether steps without penalties, which are differentiated once, run through `torch.compile`.
        weights: path of a file of networks (see `to_file` and `fedgen convert`) to start from: their weights, and the
            average that they have. Networks that are given must have the settings of the file's.

    Raises:
        FileNotFoundError: if there is no file of weights.
        ValueError: for a value out of range, or networks that do not fit each other (some of it only when `fit`
            starts: the data's shape, and batches that do not divide into the critic's groups).

    Examples:
        >>> import torch
        >>> from fedgen import StyleGAN2
        >>> from fedgen.models.stylegan2 import StyleGAN2Discriminator, StyleGAN2Generator
        >>> sizes = {"image_size": 8, "channels": 1, "channel_base": 32, "channel_max": 8}
        >>> generator = StyleGAN2Generator(latent_dim=4, style_dim=4, mapping_layers=1, **sizes)
        >>> StyleGAN2(generator, StyleGAN2Discriminator(**sizes)).sample(2, torch.Generator().manual_seed(0)).shape
        torch.Size([2, 1, 8, 8])
    """

    logged = (
        "generator_loss",
        "path_length",
        "path_penalty",
        "critic_loss",
        "r1_penalty",
        "real_signs",
        "augment_p",
        "kimg",
    )

    own_turn_state = ("_shown_before",)

    def __init__(
        self,
        generator: StyleGAN2Generator | None = None,
        critic: StyleGAN2Discriminator | None = None,
        r1_gamma: float = 10.0,
        path_weight: float = 2.0,
        style_mixing: float = 0.9,
        lr: float = 0.0025,
        critic_lr: float | None = None,
        betas: tuple[float, float] = (0.0, 0.99),
        path_interval: int = 4,
        r1_interval: int = 16,
        augment: AdaptiveAugment | None = None,
        ada_interval: int = 4,
        ema_kimg: float = 10.0,
        ema_rampup: float | None = 0.05,
        flips: bool = False,
        micro_batch: int | None = None,
        truncation: float = 1.0,
        noise: str = "random",
        generator_losses: Sequence[GeneratorLoss] | None = None,
        compile: bool = False,
        weights: str | Path | None = None,
    ) -> None:
        require(lr > 0 and (critic_lr is None or critic_lr > 0), f"rates must be above 0, got {lr=}, {critic_lr=}")
        require(min(r1_gamma, path_weight) >= 0, f"penalties have weights from 0: {r1_gamma=}, {path_weight=}")
        require(0 <= style_mixing <= 1, f"style_mixing={style_mixing}: a probability lies in [0, 1]")
        require(
            min(path_interval, r1_interval, ada_interval) >= 1,
            f"intervals count iterations from 1: {path_interval=}, {r1_interval=}, {ada_interval=}",
        )
        require(ema_kimg > 0, f"ema_kimg={ema_kimg}: a half-life is above 0")
        require(ema_rampup is None or ema_rampup > 0, f"ema_rampup={ema_rampup}: a share above 0, or None for none")
        require(micro_batch is None or micro_batch >= 1, f"micro_batch={micro_batch}: at least one image at once")
        network, critic, average = build(generator, "generator"), build(critic, "critic"), None
        if weights is not None:
            network, critic, average = take_weights(weights, network, critic)
        require(
            network is not None and critic is not None, "give a generator and a critic, or weights to take them from"
        )
        require(
            isinstance(network, StyleGAN2Generator),
            f"StyleGAN2 trains a StyleGAN2Generator, got {type(network).__name__}; GAN trains other networks",
        )
        super().__init__(network, generator_losses, None, False)
        self.generator: StyleGAN2Generator = network
        assert critic is not None
        self.critic: StyleGAN2Discriminator = critic
        self.augment: AdaptiveAugment | None = build(augment, "augment", AdaptiveAugment, "augmentation")
        self.generator_ema = EMA(self.generator)
        if average is not None:
            self.generator_ema.network.load_state_dict(average.state_dict())
        self.clock = TrainingClock()
        self.r1_gamma, self.path_weight, self.style_mixing = r1_gamma, path_weight, style_mixing
        self.lr, self.critic_lr, self.betas = lr, critic_lr, (float(betas[0]), float(betas[1]))
        self.path_interval, self.r1_interval, self.ada_interval = path_interval, r1_interval, ada_interval
        self.ema_kimg, self.ema_rampup, self.flips = ema_kimg, ema_rampup, flips
        self.micro_batch, self.compiles = micro_batch, compile
        self._sampling: dict[str, Any] = {"truncation": truncation, "noise": noise}
        self.sampling = self._sampling
        # in the place of the generator's "synthesize" and of the "critic", in steps without penalty
        self._compiled: dict[str, Any] = {}
        self._shown_before = [0.0]
        self.save_hyperparameters(self._settings())

    def _settings(self) -> dict[str, Any]:
        """The constructor's arguments as plain types, as checkpoints hold them."""
        names = ("r1_gamma", "path_weight", "style_mixing", "lr", "critic_lr", "betas", "path_interval", "r1_interval")
        more = ("ada_interval", "ema_kimg", "ema_rampup", "flips", "micro_batch")
        return {
            "generator": describe(self.generator),
            "critic": describe(self.critic),
            "augment": None if self.augment is None else describe(self.augment),
            **{name: getattr(self, name) for name in names + more},
            **self._sampling,
            "compile": self.compiles,
        }

    # ---- files ----

    @classmethod
    def from_file(cls, path: str | Path, **options: Any) -> "StyleGAN2":
        """The model of a file of networks: their weights and settings, and the settings it was trained with.

        Args:
            path: what `to_file` or `fedgen convert` wrote, .safetensors.
            options: arguments of the constructor in place of the file's.

        Raises:
            FileNotFoundError: if there is no such file.
            ValueError: if it is damaged, or has no critic and none is given.
        """
        return cls(**(NetworkFile.read(path).training | options | {"weights": path}))

    def to_file(self, path: str | Path, half: bool = False, record: Mapping[str, Any] | None = None) -> None:
        """Writes generator, its average and critic with their settings to a safetensors file.

        Args:
            path: where to.
            half: whether weights are rounded to float16, for half the size.
            record: what else to say of the weights, plain types.
        """
        self.as_file(record).write(path, half)

    def as_file(self, record: Mapping[str, Any] | None = None) -> NetworkFile:
        """Generator, its average and critic (themselves, no copies), with the settings of their training."""
        kept = {k: v for k, v in self._settings().items() if k not in ("generator", "critic", "compile", "micro_batch")}
        average = self.averaged
        assert isinstance(average, StyleGAN2Generator)
        return NetworkFile(self.generator, average, self.critic, kept, dict(record or {}))

    # ---- before training ----

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        """Two Adams, generator's first, corrected for the additional steps of lazy regularisation."""
        critic_lr = self.critic_lr or self.lr
        return [
            lazy_adam(self.generator, self.lr, self.betas, self.path_interval),
            lazy_adam(self.critic, critic_lr, self.betas, self.r1_interval),
        ]

    def setup(self, stage: str) -> None:
        """Checks that networks and data fit each other, and gives losses without references the clients' images.

        Raises:
            ValueError: if they do not.
        """
        if stage != "fit":
            return
        with evaluating(self):
            check_images(self.generator, self.critic, optional(self.data, FederatedData, "image_shape"))
        check_batches(self.data, self.critic.group_size, self.micro_batch)
        self.start_losses()
        if self.compiles:
            self._compiled = {
                "synthesize": torch.compile(self.generator.synthesize),
                "critic": torch.compile(self.critic.forward),
            }

    def teardown(self, stage: str) -> None:
        """Lets go of the compiled networks."""
        self._compiled = {}

    # ---- training ----

    def on_turn_start(self, turn: Any) -> None:
        """Records how many images were shown before each turn of the round; the losses learn whose turn it is."""
        if turn is None or turn.is_first or self.trainer.strategy.local_only:
            self._shown_before = []
        self._shown_before.append(float(self.clock.images))  # not the same for all where they start at other rounds
        super().on_turn_start(turn)

    def training_step(self, batch: Sequence[Tensor], batch_idx: int) -> None:
        """One iteration on (images [N, C, H, W] in [-1, 1], labels int64 [N], unused by unconditional models)."""
        real = batch[0]
        require_shape(real, self.generator.image_shape, "the generator")
        labels = None if self.label_frequencies is None else self.label_frequencies.labels_of(batch)
        if self.flips:
            real = torch.where(torch.rand(len(real), 1, 1, 1, device=real.device) < 0.5, real.flip(3), real)
        iteration = self.iteration(batch_idx)
        optimizers: Any = self.optimizers()
        self.train_generator(optimizers[0], len(real))
        if self.path_weight and iteration % self.path_interval == 0:
            self.regularise_paths(optimizers[0], len(real))
        self.train_critic(optimizers[1], real, labels)
        if self.r1_gamma and iteration % self.r1_interval == 0:
            self.penalise_slopes(optimizers[1], real, labels)
        if not self._strategy_calls():
            self._average(ema_decay(len(real), float(self.clock.images), self.ema_kimg, self.ema_rampup))
        self.clock.images += len(real)
        if self.augment is not None and (iteration + 1) % self.ada_interval == 0:
            r = self.augment.update(len(real) * self.ada_interval)
            self.means.add({"real_signs": r, "augment_p": self.augment.p})

    # ---- optimizer steps, whose gradients are summed over micro-batches, each on latents and labels of its own ----

    def train_generator(self, optimizer: Any, count: int) -> None:
        """A step of the generator against the critic and by its extra losses, on `count` images."""
        own = self.start_step(optimizer)
        for n in micro_sizes(count, self.micro_batch):
            labels = self.draw_labels(n)
            fake = self._synthesize(draw_styles(self.generator, n, labels, self.style_mixing))
            adversarial = F.softplus(-self._logits(fake, labels)).mean()
            loss = self.add_joint_losses(adversarial, fake, adversarial.detach())
            self.manual_backward(loss, inputs=own)
            self.means.add({"generator_loss": loss})
        self.backward_separate_losses(count, adversarial.detach(), own)
        self.end_step(optimizer, own)

    def regularise_paths(self, optimizer: Any, count: int) -> None:
        """A step of the generator on path lengths of a share of `count` images, for all iterations since the last."""
        own = self.start_step(optimizer)
        for n in micro_sizes(count, self.micro_batch):
            share = max(n // PATH_SHARE, 1)
            styles = draw_styles(self.generator, share, self.draw_labels(share), self.style_mixing)
            lengths = path_lengths(self.generator.synthesize(styles), styles)
            mean = self.clock.path_length.to(lengths).lerp(lengths.mean(), PATH_DECAY)
            self.clock.path_length.copy_(mean.detach())
            penalty = (lengths - mean).square().mean()
            self.manual_backward(penalty * self.path_weight * self.path_interval, inputs=own)
            self.means.add({"path_length": lengths.mean(), "path_penalty": penalty})
        self.end_step(optimizer, own)

    def train_critic(self, optimizer: Any, real: Tensor, labels: Tensor | None) -> None:
        """A step of the critic on real images [N, C, H, W], with labels int64 [N], and as many generated ones."""
        own = self.start_step(optimizer)
        for images, given in micro_batches(real, labels, self.micro_batch):
            drawn = self.draw_labels(len(images))
            with torch.no_grad():
                fake = self._synthesize(draw_styles(self.generator, len(images), drawn, self.style_mixing))
            on_fake = F.softplus(self._logits(fake, drawn)).mean()
            self.manual_backward(on_fake, inputs=own)
            logits = self._logits(images, given)
            on_real = F.softplus(-logits).mean()
            self.manual_backward(on_real, inputs=own)
            if self.augment is not None:
                self.augment.observe(logits)
            self.means.add({"critic_loss": on_fake + on_real})
        self.end_step(optimizer, own)

    def penalise_slopes(self, optimizer: Any, real: Tensor, labels: Tensor | None) -> None:
        """A step of the critic on the R1 penalty at real images, for all iterations since the last."""
        own = self.start_step(optimizer)
        for images, given in micro_batches(real, labels, self.micro_batch):
            points = images.detach().requires_grad_()
            logits = self.critic(self._augmented(points), given)
            penalty = r1_penalty(logits, points).mean()
            self.manual_backward(penalty * (self.r1_gamma / 2 * self.r1_interval), inputs=own)
            if self.augment is not None:
                self.augment.observe(logits)
            self.means.add({"r1_penalty": penalty})
        self.end_step(optimizer, own)

    def end_step(self, optimizer: Any, own: list[Tensor]) -> None:
        """Steps by gradients without NaN and infinity, as published; a gradient scaler has its own way with those."""
        if scaler_of(self.trainer) is None:
            for parameter in own:
                if parameter.grad is not None:
                    torch.nan_to_num(parameter.grad, nan=0.0, posinf=1e5, neginf=-1e5, out=parameter.grad)
        optimizer.step()

    def _synthesize(self, styles: Tensor) -> Tensor:
        return self._compiled.get("synthesize", self.generator.synthesize)(styles)

    def _logits(self, images: Tensor, labels: Tensor | None) -> Tensor:
        return self._compiled.get("critic", self.critic)(self._augmented(images), labels)

    def _augmented(self, images: Tensor) -> Tensor:
        return images if self.augment is None else self.augment(images)

    # ---- rounds ----

    def on_round_end(self, iterations: int) -> None:
        """Under `FedAvgStrategy` moves the average of weights by the decays of the round's iterations."""
        if self._strategy_calls():
            before, after = sum(self._shown_before) / len(self._shown_before), float(self.clock.images)
            self._average(ema_decay_over(before, after, iterations, self.ema_kimg, self.ema_rampup))

    def _average(self, decay: float) -> None:
        assert self.generator_ema is not None
        self.generator_ema.update(self.generator, decay)

    def take_means(self) -> dict[str, float]:
        """The round's means, and the clock."""
        self.means.add({"kimg": self.clock.images / 1000})
        return super().take_means()

    # ---- after training ----

    @property
    def sampling(self) -> dict[str, Any]:
        """The way in which `sample` makes images unless told otherwise, as plain types; stored with every score.

        Assigning a dictionary changes the settings that it names.
        """
        return dict(self._sampling)

    @sampling.setter
    def sampling(self, settings: Mapping[str, Any]) -> None:
        unknown = set(settings) - set(self._sampling)
        require(not unknown, f"StyleGAN2 samples by truncation and noise, and not by {', '.join(sorted(unknown))}")
        changed = {**self._sampling, **settings}
        noise = changed["noise"]
        require(noise in ("random", "const", "none"), f"noise={noise!r}: choose 'random', 'const' or 'none'")
        self._sampling = changed

    @torch.no_grad()
    def sample(
        self,
        num_images: int,
        generator: torch.Generator | None = None,
        labels: Tensor | None = None,
        batch_size: int = 250,
        truncation: float | None = None,
        noise: str | None = None,
    ) -> Tensor:
        """Images float32 [num_images, C, H, W], cut to [-1, 1], on the module's device; the module is left as it was.

        Args:
            num_images: how many.
            generator: a CPU generator (the global one by default): for latents, in one go; labels; noise, by image.
            labels: of a conditional model's images, int64 [num_images]; by default drawn as the training data's.
            batch_size: images made at once, a bound on memory; does not change them.
            truncation: another than the model's.
            noise: another than the model's.

        Raises:
            ValueError: for labels that cannot be, or for fewer than one image.
        """
        require_batch_size(batch_size)
        latents, labels = self.latents_and_labels(num_images, generator, labels)
        pull = self._sampling["truncation"] if truncation is None else truncation
        kind = self._sampling["noise"] if noise is None else noise
        network: Any = self.averaged
        device = next(network.parameters()).device

        def images(latents: Tensor, labels: Tensor | None) -> Tensor:
            drawn = draw_noise(network, len(latents), generator).to(device) if kind == "random" else kind
            given = None if labels is None else labels.to(device)
            found: Tensor = network(latents.to(device), given, pull, noise=drawn)
            return found.float().clamp(-1, 1)

        with evaluating(network):
            parts = zip(latents.split(batch_size), repeat(None) if labels is None else labels.split(batch_size))
            return torch.cat([images(*part) for part in parts])


def read_trained_networks(path: str | Path) -> NetworkFile:
    """Generator, average and critic of a run's checkpoint, with settings, rounds and thousands of images shown."""
    checkpoint = read_checkpoint(path)
    description = checkpoint.get("hyper_parameters", {}).get("generator")
    require(
        isinstance(description, Mapping) and str(description.get("class_path")).endswith(".StyleGAN2Generator"),
        f"{path} is no checkpoint of a StyleGAN2: it describes no generator of it",
    )
    require("epoch" in checkpoint, f"{path} is damaged: it does not say how many rounds it has behind it")
    model = rebuild_model(StyleGAN2, path)
    return model.as_file({"source": Path(path).name, "rounds": checkpoint["epoch"] + 1, "kimg": model.clock.kimg})
