"""Normalising flows as Lightning modules: generators with a likelihood, and with scores of their samples as losses."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from fedgen.data.optional_attributes import optional
from fedgen.images import from_uint8
from fedgen.models.latent_generator import GeneratorLoss, LatentGenerator
from fedgen.models.networks.glow import GlowNetwork, pooled_patches
from fedgen.models.networks.network import build, describe, require_shape
from fedgen.models.optional_hooks import FederatedData, data_module_of
from fedgen.models.require import require
from fedgen.models.sampling import decode, require_batch_size


class Glow(LatentGenerator):
    """Glow (Kingma & Dhariwal 2018, arXiv 1807.03039) trained on the likelihood of the clients' images.

    The loss of an iteration is the images' bits per dimension (dequantised by uniform noise from torch's global
    generator) plus the `generator_losses` of as many samples: FID beside the likelihood is Fig. 7 of FastFID
    (arXiv 2009.14075). At a round's end `bits_per_dim` and what each `EmbeddedLoss` measured are logged.

    Actnorms start from data, and each client starting from its own would make the average of their first turns one of
    unlike networks. When fitting starts, all therefore start from the pooled mean and covariance of the clients'
    patches (16 pixels each with two scales), which decides the same as the images would and can be summed like FID's
    moments. Without clients the first batch decides, as in the paper. After that they are averaged like other weights.

    A checkpoint holds the network's arguments as plain types, so `load_from_checkpoint(path).sample(16)` needs nothing
    else. Generator losses are not rebuilt: pass them again to train on.

    Args:
        generator: the flow, a `GlowNetwork`.
        lr: learning rate of Adam.
        betas: its moments' decays.
        warmup_rounds: rounds over which the rate rises linearly to `lr`.
        clip: the largest norm of the gradient, likelihood and losses together; None for no bound.
        temperature: of samples, also of those that losses see: the deviation of the latents.
        ema_decay: decay per iteration of a moving average of the weights, from which images are then sampled; it moves
            at round ends, by ema_decay ** iterations.
        ema_warmup: whether that average forgets faster at first (see `EMA`).
        generator_losses: losses of samples: `EmbeddedLoss` (FID or MMD^2 to the clients' images), for whose adaptive
            weight the bits per dimension take the adversarial loss's place, or any objects that turn images
            [N, C, H, W] in [-1, 1] into a scalar, their weight included.

    Raises:
        ValueError: for a value out of range; for images of another shape (when `fit` starts).
    """

    logged = ("bits_per_dim",)

    def __init__(
        self,
        generator: GlowNetwork | Mapping[str, Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        warmup_rounds: int = 0,
        clip: float | None = 50.0,
        temperature: float = 1.0,
        ema_decay: float | None = None,
        ema_warmup: bool = False,
        generator_losses: Sequence[GeneratorLoss] | None = None,
    ) -> None:
        require(lr > 0, f"lr must be positive, got {lr}")
        require(warmup_rounds >= 0, f"warmup_rounds must not be negative, got {warmup_rounds}")
        require(clip is None or clip > 0, f"clip must be positive, got {clip}")
        _require_temperature(temperature)
        network = build(generator, "generator")
        require(isinstance(network, GlowNetwork), f"Glow trains a GlowNetwork, got {type(network).__name__}")
        super().__init__(network, generator_losses, ema_decay, ema_warmup)
        self.lr, self.betas = lr, (float(betas[0]), float(betas[1]))  # Adam refuses a mixture of int and float
        self.warmup_rounds, self.clip, self.temperature = warmup_rounds, clip, temperature
        self.save_hyperparameters(
            {
                "generator": describe(network),
                "lr": lr,
                "betas": self.betas,
                "warmup_rounds": warmup_rounds,
                "clip": clip,
                "temperature": temperature,
                "ema_decay": ema_decay,
                "ema_warmup": ema_warmup,
            }
        )

    @property
    def flow(self) -> GlowNetwork:
        """The network that trains."""
        assert isinstance(self.generator, GlowNetwork)
        return self.generator

    # ---- before training ----

    def configure_optimizers(self) -> Any:
        """Adam; with `warmup_rounds` a linear rise of its rate, in rounds."""
        optimizer = torch.optim.Adam(_trained(self.flow), lr=self.lr, betas=self.betas)
        if not self.warmup_rounds:
            return optimizer
        return [optimizer], [LambdaLR(optimizer, lambda done: min(1.0, (done + 1) / self.warmup_rounds))]

    def setup(self, stage: str) -> None:
        """Checks the data's shape, starts actnorms from the clients' moments and gives losses the clients' images.

        Raises:
            ValueError: for images of another shape, weights in half precision, or a loss without references where the
                data has no clients.
        """
        if stage != "fit":
            return
        precision = str(self.trainer.precision)
        require(
            not precision.endswith("16-true"),
            f"precision={precision} would round points to the width of a grey level's bin, and the likelihood too;"
            " use 32-true, or bf16-mixed or 16-mixed, in which the embeddings of losses are in half precision",
        )
        data = data_module_of(self.trainer)
        shape = optional(data, FederatedData, "image_shape") or self.flow.image_shape
        require_shape(torch.empty(1, *shape), self.flow.image_shape, "the flow")
        clients = optional(data, FederatedData, "clients")
        if clients and not self.flow.initialised:
            images = (from_uint8(client.train_examples.inputs[:]) for client in clients)
            self._start_from(lambda: self.flow.initialise_from(pooled_patches(self.flow, images)))
        self.start_losses()

    def _start_from(self, initialise: Any) -> None:
        initialise()
        if self.generator_ema is not None:
            self.generator_ema.network.load_state_dict(self.flow.state_dict())

    # ---- training ----

    def training_step(self, batch: Sequence[Tensor], batch_idx: int) -> None:
        """One iteration on (images [N, C, H, W] in [-1, 1], labels); the labels are not used."""
        real = batch[0]
        require_shape(real, self.flow.image_shape, "the flow")
        points = self.flow.points(real)
        if not self.flow.initialised:
            self._start_from(lambda: self.flow.initialise(points))
        optimizer: Any = self.optimizers()
        optimizer.zero_grad()
        bits = self.flow.bits_per_dim(points).mean()
        self.manual_backward(bits + self._joint_losses(real, bits.detach()))
        for extra in self.embedded_losses:
            if extra.separate:
                latents = self._latents(real, extra.num_images)
                for part in extra.backward_parts(self.flow, latents, bits.detach()):
                    self.manual_backward(part)
        optimizer.step()
        self.means.add({"bits_per_dim": bits})

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        """Bounds the gradient; here, where a grad scaler has taken its factor off again."""
        if self.clip is not None:
            self.clip_gradients(optimizer, self.clip, "norm")

    def _joint_losses(self, real: Tensor, bits: Tensor) -> Tensor:
        """The sum of the losses that share one batch of samples; 0 without making any if there are none."""
        joint = [loss for loss in self.generator_losses if loss not in self.embedded_losses or not loss.separate]
        total = torch.zeros((), device=real.device)
        if joint:
            fake = self.flow(self._latents(real))
            for loss in joint:
                total = total + (loss(fake, bits) if loss in self.embedded_losses else loss(fake))
        return total

    def _latents(self, like: Tensor, count: int | None = None) -> Tensor:
        shape = (count or len(like), self.latent_dim)
        return torch.randn(shape, device=like.device, dtype=like.dtype) * self.temperature

    def on_train_epoch_end(self) -> None:
        """Logs the round's means and moves the learning rate, which means rounds."""
        self.log_means()
        scheduler: Any = self.lr_schedulers()
        if scheduler is not None:
            scheduler.step()

    # ---- after training ----

    def sample(
        self,
        num_images: int,
        generator: torch.Generator | None = None,
        labels: Tensor | None = None,
        batch_size: int = 250,
        temperature: float | None = None,
    ) -> Tensor:
        """Images float32 [num_images, C, H, W] in [-1, 1], on the module's device; the module is left as it was.

        Args:
            num_images: how many.
            generator: a CPU generator for the latents, which are drawn on the CPU whatever the device and in one go
                whatever the batch size; the global generator by default.
            labels: must be None, this model is unconditional.
            batch_size: images made at once, a bound on memory.
            temperature: the deviation of the latents; the module's by default.

        Raises:
            ValueError: for labels, fewer than one image, or a temperature that is not positive.
        """
        require(labels is None, f"{type(self).__name__} is unconditional and takes no labels")
        require(num_images >= 1, f"num_images must be at least 1, got {num_images}")
        temperature = self.temperature if temperature is None else temperature
        _require_temperature(temperature)
        latents = torch.randn(num_images, self.latent_dim, generator=generator)
        return decode(self.averaged, latents * temperature, batch_size)

    @torch.no_grad()
    def bits_per_dim(self, images: Tensor, batch_size: int = 250) -> Tensor:
        """Bits per dimension [N] of images [N, C, H, W] in [-1, 1], each with one draw of dequantisation noise.

        In bits of the network's grey levels (2^`bits` of them), by the network that images are sampled from.
        """
        require_batch_size(batch_size)
        network: Any = self.averaged
        own = next(network.parameters())
        parts = (network.points(part.to(own)) for part in images.split(batch_size))
        return torch.cat([network.bits_per_dim(part) for part in parts])


def _trained(network: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in network.parameters() if parameter.requires_grad]


def _require_temperature(temperature: float) -> None:
    require(temperature > 0, f"temperature must be positive, got {temperature}")
