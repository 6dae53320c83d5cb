"""Generative adversarial networks as Lightning modules: one core, to which a member of the family adds its loss."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from fedgen.losses import EmbeddedLoss, FeatureLoss
from fedgen.models.adversarial import AdversarialLoss, WassersteinGP
from fedgen.models.ema import EMA
from fedgen.models.networks.network import Critic, build, describe, require_shape
from fedgen.models.round_clock import RoundClock
from fedgen.models.sampling import decode, evaluating

# Callable[[Tensor], Tensor] would say more, but makes jsonargparse look for class paths of tensors
GeneratorLoss = Callable[..., Any]


class GAN(RoundClock):
    """A generator and a critic trained against each other under manual optimisation; see `WGANGP` for the arguments.

    One `training_step` is one iteration: a critic step, and every `n_critic`-th time a generator step. Nothing is
    logged per iteration; at a round's end `critic_loss`, `critic_gap` (mean critic(real) - mean critic(fake)),
    `generator_loss` and what each `EmbeddedLoss` measured and weighed ("fid_loss/<embedding>", "fid_loss/weight"; a
    second loss of that score is "fid_loss_2") are logged as means over its iterations, over all clients' turns.

    A checkpoint holds the networks' class paths and arguments as plain types, so that
    `load_from_checkpoint(path).sample(16)` needs nothing else and unpickles nothing. Only fedgen's own networks are
    rebuilt that way; others are passed: `load_from_checkpoint(path, generator=..., critic=...)`. Generator losses are
    not rebuilt: pass them again to train on.
    """

    def __init__(
        self,
        generator: nn.Module,
        critic: nn.Module,
        loss: AdversarialLoss,
        n_critic: int,
        lr: float,
        betas: tuple[float, float],
        lr_decay_rounds: int | None = None,
        ema_decay: float | None = None,
        ema_warmup: bool = False,
        generator_losses: Sequence[GeneratorLoss] | None = None,
    ) -> None:
        super().__init__()
        _require(n_critic >= 1, f"n_critic must be at least 1, got {n_critic}")
        _require(lr > 0, f"lr must be positive, got {lr}")
        _require(lr_decay_rounds is None or lr_decay_rounds > 0, f"lr_decay_rounds must be above 0: {lr_decay_rounds}")
        _require(ema_decay is None or 0 <= ema_decay < 1, f"ema_decay must be in [0, 1), got {ema_decay}")
        self.automatic_optimization = False
        self.generator, self.critic = build(generator, "generator"), build(critic, "critic")
        _require(
            hasattr(self.generator, "latent_dim"),
            f"the generator {type(self.generator).__name__} needs an attribute latent_dim: the length of a latent",
        )
        self.latent_dim = int(self.generator.latent_dim)  # type: ignore[arg-type]
        self.generator_ema = EMA(self.generator, ema_warmup) if ema_decay is not None else None
        self.loss, self.n_critic = loss, n_critic
        self.lr, self.betas, self.lr_decay_rounds, self.ema_decay = lr, betas, lr_decay_rounds, ema_decay
        self.generator_losses = list(generator_losses or ())
        for extra in self.generator_losses:
            name = type(extra).__name__
            _require(
                not isinstance(extra, FeatureLoss),
                f"the generator loss {name} is one of features, not images; give EmbeddedLoss({name}(...), embeddings)",
            )
        # registered, so that losses that are modules follow the device and keep their state in checkpoints
        self.loss_modules = nn.ModuleList(loss for loss in self.generator_losses if isinstance(loss, nn.Module))
        self._lent: set[EmbeddedLoss] = set()  # whose references are the data's, not their maker's
        self._totals: Tensor | None = None

    @property
    def embedded_losses(self) -> list[EmbeddedLoss]:
        """Those of the generator losses that are scores of its images."""
        return [loss for loss in self.generator_losses if isinstance(loss, EmbeddedLoss)]

    @property
    def optimised_on(self) -> list[str]:
        """Embeddings that a generator loss trains on; scores under them prove little."""
        return list(dict.fromkeys(name for loss in self.embedded_losses for name in loss.names))

    # ---- before training ----

    def configure_optimizers(self) -> Any:
        """Two Adams, generator's first; with `lr_decay_rounds` a linear decay to 0 each, in rounds."""
        optimizers = [
            torch.optim.Adam(network.parameters(), lr=self.lr, betas=self.betas)
            for network in (self.generator, self.critic)
        ]
        rounds = self.lr_decay_rounds
        if rounds is None:
            return optimizers
        return optimizers, [LambdaLR(optimizer, lambda done: max(0.0, 1 - done / rounds)) for optimizer in optimizers]

    def setup(self, stage: str) -> None:
        """Gives losses without references the clients' images, after checking that networks and data fit each other.

        Fitting again gives them the images of the data at hand; references that were set before the first are kept.
        The data's shape is known here if the data module has an attribute `image_shape`, (channels, height, width);
        otherwise the first iteration tells.

        Raises:
            ValueError: if they do not fit, or a loss needs clients' images and the data module has no clients.
        """
        if stage != "fit":
            return
        self._check_networks()
        self._totals = None  # of a round that was cut short
        for loss in self.embedded_losses:
            loss.take_totals()
            if not loss.has_references or loss in self._lent:
                clients = getattr(getattr(self.trainer, "datamodule", None), "clients", None)
                _require(
                    bool(clients),
                    f"the generator loss on {', '.join(loss.names)} has no references and the data no clients to take"
                    " them from; train on a FederatedDataModule, or call loss.set_references([images, ...]) first",
                )
                images = [client.train_examples.inputs for client in clients or ()]
                loss.set_references(images, self.trainer.strategy.root_device)
                self._lent.add(loss)

    def _check_networks(self) -> None:
        with torch.no_grad(), evaluating(self):
            parameter = next(self.generator.parameters())
            images = self.generator(parameter.new_zeros(2, self.latent_dim))
            data_shape = getattr(getattr(self.trainer, "datamodule", None), "image_shape", images.shape[1:])
            require_shape(images.new_empty(1, *data_shape), images.shape[1:], "the generator")
            made = list(images.shape[1:])
            if isinstance(self.critic, Critic):
                require_shape(images, self.critic.image_shape, "the critic")
            try:
                scores = self.critic(images)
            except RuntimeError as error:
                raise ValueError(f"the critic cannot score the generator's images {made}: {error}") from error
        _require(scores.shape == (2,), f"the critic must return one score an image, [N], got {list(scores.shape)} of 2")

    # ---- training ----

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Tells the losses whose turn it is: the client under `FedAvgStrategy`, nobody's elsewhere."""
        for loss in self.embedded_losses:
            loss.start_turn(getattr(batch, "client", None))

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Tells the losses that the turn is over."""
        super().on_train_batch_end(outputs, batch, batch_idx)
        for loss in self.embedded_losses:
            loss.start_turn(None)

    def training_step(self, batch: Sequence[Tensor], batch_idx: int) -> None:
        """One iteration on (images [N, C, H, W] in [-1, 1], labels); the labels are not used.

        The generator's step comes with every n_critic-th of the client's own iterations.
        """
        real = batch[0]
        optimizers: Any = self.optimizers()
        generator_optimizer, critic_optimizer = optimizers
        with torch.no_grad():
            fake = self.generator(self._latents(real))
        require_shape(real, fake.shape[1:], "the generator")
        terms = self.loss.critic_loss(self.critic, real, fake)
        self._step(critic_optimizer, terms.loss)
        totals = self._running_totals(real.device)
        totals[:3] += torch.stack([terms.loss.detach(), terms.gap, torch.ones_like(terms.gap)])
        if (self.iteration(batch_idx) + 1) % self.n_critic == 0:
            totals[3] += self._generator_step(generator_optimizer, real)
            totals[4] += 1

    def _generator_step(self, optimizer: Any, real: Tensor) -> Tensor:
        """One step of the generator; returns its loss, that of second passes left out."""
        fake = self.generator(self._latents(real))
        adversarial = self.loss.generator_loss(self.critic, fake)
        loss, separate = adversarial, [extra for extra in self.embedded_losses if extra.separate]
        for extra in self.generator_losses:
            if isinstance(extra, EmbeddedLoss):
                loss = loss if extra.separate else loss + extra(fake, adversarial.detach())
            else:
                loss = loss + extra(fake)
        own = self._start_step(optimizer)
        self.manual_backward(loss, inputs=own)
        for extra in separate:
            latents = self._latents(real, extra.num_images)
            for part in extra.backward_parts(self.generator, latents, adversarial.detach()):
                self.manual_backward(part, inputs=own)
        optimizer.step()
        return loss.detach()

    def _latents(self, like: Tensor, count: int | None = None) -> Tensor:
        return torch.randn(count or len(like), self.latent_dim, device=like.device, dtype=like.dtype)

    def _step(self, optimizer: Any, loss: Tensor) -> None:
        """One step on the optimizer's own parameters."""
        self.manual_backward(loss, inputs=self._start_step(optimizer))
        optimizer.step()

    def _start_step(self, optimizer: Any) -> list[Tensor]:
        """The parameters that train, their gradients cleared; passed on as the only ones that gradients reach."""
        optimizer.zero_grad()
        return [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]

    def on_round_end(self, iterations: int) -> None:
        """Moves the average of the generator's weights by ema_decay ** iterations."""
        if self.generator_ema is not None and self.ema_decay is not None:
            self.generator_ema.update(self.generator, self.ema_decay**iterations)

    def on_train_epoch_end(self) -> None:
        """Logs the round's means and moves the learning rates, which mean rounds."""
        self._log_totals()
        schedulers: Any = self.lr_schedulers()
        for scheduler in schedulers if isinstance(schedulers, list) else [schedulers] if schedulers else []:
            scheduler.step()

    def _running_totals(self, device: torch.device) -> Tensor:
        """Sums of critic loss, gap, critic steps, generator loss, generator steps; kept on the device, read once."""
        if self._totals is None:
            self._totals = torch.zeros(5, device=device)
        return self._totals

    def _log_totals(self) -> None:
        totals, self._totals = self._running_totals(self.device), None
        sums = self.trainer.strategy.reduce(totals, reduce_op="sum").tolist()
        if sums[2]:
            self.log_dict({"critic_loss": sums[0] / sums[2], "critic_gap": sums[1] / sums[2]}, sync_dist=True)
        if sums[4]:
            self.log("generator_loss", sums[3] / sums[4], sync_dist=True)
        scores: Counter[str] = Counter()
        for loss in self.embedded_losses:
            scores[loss.score] += 1
            number = f"_{scores[loss.score]}" if scores[loss.score] > 1 else ""
            values, steps = loss.take_totals()
            means = {name.replace("/", f"{number}/", 1): float(value) / steps for name, value in values.items()}
            self.log_dict(means, sync_dist=True)

    # ---- after training ----

    @property
    def sampler(self) -> nn.Module:
        """The generator that images are sampled from: the moving average if there is one."""
        return self.generator if self.generator_ema is None else self.generator_ema.network

    def sample(
        self,
        num_images: int,
        generator: torch.Generator | None = None,
        labels: Tensor | None = None,
        batch_size: int = 250,
    ) -> Tensor:
        """Images float32 [num_images, C, H, W] in [-1, 1], on the module's device; the module is left as it was.

        Args:
            num_images: how many.
            generator: a CPU generator for the latents, which are drawn on the CPU whatever the device and in one go
                whatever the batch size; the global generator by default.
            labels: must be None, this model is unconditional.
            batch_size: images made at once, a bound on memory.

        Raises:
            ValueError: for labels, or for fewer than one image.
        """
        _require(labels is None, f"{type(self).__name__} is unconditional and takes no labels")
        _require(num_images >= 1, f"num_images must be at least 1, got {num_images}")
        latents = torch.randn(num_images, self.latent_dim, generator=generator)
        return decode(self.sampler, latents, batch_size)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Leaves out the saved state of generator losses that this module was built without."""
        if not self.generator_losses:
            state = checkpoint["state_dict"]
            for key in [key for key in state if key.startswith("loss_modules.")]:
                del state[key]


class WGANGP(GAN):
    """The Wasserstein GAN with gradient penalty of Gulrajani et al. 2017 (arXiv 1704.00028), with the paper's values.

    Args:
        generator: images in [-1, 1] from latents [N, generator.latent_dim]; the pairs are in `fedgen.models.networks`.
        critic: scores [N] of images; without BatchNorm, as the penalty is per image.
        penalty: the weight of the gradient penalty.
        n_critic: critic steps for one generator step, counted over the client's own iterations.
        lr: learning rate of both Adams.
        betas: their moments' decays.
        lr_decay_rounds: rounds over which the rate falls linearly to 0; constant by default.
        ema_decay: decay per iteration of a moving average of the generator's weights, from which images are then
            sampled; it moves at round ends, by ema_decay ** iterations.
        ema_warmup: whether that average forgets faster at first, for short runs (see `EMA`).
        generator_losses: extra losses of the generator: `EmbeddedLoss` (FID or MMD^2 to the clients' images), or any
            objects that turn its images [N, C, H, W] in [-1, 1] into a scalar, their weight included.

    Raises:
        ValueError: for a value out of range, or networks that do not fit each other (when `fit` starts).
    """

    def __init__(
        self,
        generator: nn.Module,
        critic: nn.Module,
        penalty: float = 10.0,
        n_critic: int = 5,
        lr: float = 2e-4,
        betas: tuple[float, float] = (0.0, 0.9),
        lr_decay_rounds: int | None = None,
        ema_decay: float | None = None,
        ema_warmup: bool = False,
        generator_losses: Sequence[GeneratorLoss] | None = None,
    ) -> None:
        optimisation: Mapping[str, Any] = {
            "n_critic": n_critic,
            "lr": lr,
            "betas": (float(betas[0]), float(betas[1])),  # Adam refuses a mixture of int and float
            "lr_decay_rounds": lr_decay_rounds,
            "ema_decay": ema_decay,
            "ema_warmup": ema_warmup,
        }
        super().__init__(generator, critic, WassersteinGP(penalty), **optimisation, generator_losses=generator_losses)
        # an explicit dictionary: Lightning's own capture would store module objects, or class paths of anybody's code
        networks = {"generator": describe(self.generator), "critic": describe(self.critic)}
        self.save_hyperparameters({**networks, "penalty": penalty, **optimisation})


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)
