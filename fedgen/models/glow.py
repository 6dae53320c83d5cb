"""Glow (Kingma & Dhariwal 2018, arXiv 1807.03039): an invertible network, and its training.

The network is normflows' multi-scale flow of Glow blocks: actnorm, invertible 1 x 1 convolution (LU), affine coupling.
"""

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from fedgen.data.optional_attributes import optional
from fedgen.extras import need
from fedgen.images import from_uint8
from fedgen.models.latent_generator import GeneratorLoss, LatentGenerator
from fedgen.models.networks.network import Network, arguments_of, build, describe, require_shape
from fedgen.models.optional_hooks import FederatedData, data_module_of
from fedgen.models.require import require
from fedgen.models.sampling import decode, require_batch_size
from fedgen.statistics import Gaussian, pool, summarize

POINTS = 2000  # at least, that actnorms start from


class GlowNetwork(Network):
    """Images [N, C, H, W] in [-1, 1] from latents [N, latent_dim] (standard normal), and their likelihood.

    Images have 2^bits grey levels each. The flow itself maps points, one in each level's bin: level l of a pixel lies
    at (l + u) / 2^bits - 1/2 with u in [0, 1).

    A scale folds each 2 x 2 pixels into channels, passes them through `depth` Glow blocks and sets half of the channels
    aside as latents, but for the last scale. As in the paper, except that the prior is a standard normal at every
    scale: there it has learned means and deviations, which depend on the rest of the latents at all but one scale.

    Autocast is switched off inside: half precision rounds points to about the width of a bin of 8 bits.

    Args:
        image_size: height and width, a multiple of 2^levels.
        channels: of the image.
        levels: scales.
        depth: blocks of each scale.
        width: channels inside each coupling's network.
        bits: of a grey level; 8 for all images, fewer for those with fewer levels.

    Raises:
        ModuleNotFoundError: without normflows, naming the extra that brings it.
        ValueError: for sizes that do not fit each other.
    """

    initialised: Tensor

    def __init__(
        self, image_size: int = 8, channels: int = 1, levels: int = 2, depth: int = 6, width: int = 64, bits: int = 8
    ) -> None:
        super().__init__(**arguments_of(locals()))
        if levels < 1 or image_size % 2**levels:
            raise ValueError(f"image_size={image_size} must be a multiple of 2^levels, and levels={levels} at least 1")
        sizes = f"{channels}, {depth}, {width}"
        require(min(channels, depth, width) >= 1, f"channels, depth and width must be at least 1, got {sizes}")
        require(1 <= bits <= 8, f"bits={bits}: a grey level has 1 to 8")
        self.image_shape = (channels, image_size, image_size)
        self.latent_dim, self.bits, self.patch = math.prod(self.image_shape), bits, 2**levels
        self.flow = _multiscale(self.image_shape, levels, depth, width)
        self._norms = _fix_constants(self.flow)
        self.register_buffer("initialised", torch.zeros((), dtype=torch.bool))  # of every client the server's

    def forward(self, latents: Tensor) -> Tensor:
        """Images [N, C, H, W] in [-1, 1], each pixel one of the 2^bits levels; the gradient is that of the points.

        Args:
            latents: [N, latent_dim], a standard normal times a temperature.
        """
        shapes = [base.shape for base in self.flow.q0]
        parts = latents.split([math.prod(shape) for shape in shapes], dim=1)
        with _exactly(latents):
            points, _ = self.flow.forward_and_log_det([part.view(-1, *shape) for part, shape in zip(parts, shapes)])
        top = 2**self.bits - 1
        levels = ((points.detach() + 0.5) * 2**self.bits).floor().clamp(0, top)
        smooth = 2 * points
        return smooth + (2 * levels / top - 1 - smooth.detach())

    def points(self, images: Tensor) -> Tensor:
        """Points [N, C, H, W] in [-1/2, 1/2) of images in [-1, 1], each at random in its level's bin.

        The noise comes from torch's global generator, on the images' device.
        """
        levels = self._levels(images)
        return (levels + torch.rand_like(levels)) / 2**self.bits - 0.5

    def _levels(self, images: Tensor) -> Tensor:
        top = 2**self.bits - 1
        return ((images + 1) * (top / 2)).round().clamp(0, top)

    def bits_per_dim(self, points: Tensor) -> Tensor:
        """Minus the base-2 logarithm of the points' density in units of a bin, over C H W: [N].

        With points drawn uniformly in the bins its mean is an upper bound on the bits that the image's levels cost.
        """
        with _exactly(points):
            return -self.flow.log_prob(points, None) / (self.latent_dim * math.log(2)) + self.bits

    # ---- before training ----

    @torch.no_grad()
    def initialise(self, points: Tensor) -> None:
        """Sets every actnorm so that what it gives has mean 0 and deviation 1 in each channel over these points.

        Args:
            points: [N, C, h, w]; h and w may be any multiple of `patch`.
        """
        for norm in self._norms:
            norm.data_dep_init_done.fill_(False)
        flags = [norm.data_dep_init_done for norm in self._norms]
        with _exactly(points):
            self.flow.inverse_and_log_det(points)
        for norm, flag in zip(self._norms, flags):  # normflows puts new tensors in their place
            norm.data_dep_init_done = flag.fill_(True)
        self.initialised.fill_(True)

    def patches(self, images: Tensor) -> Tensor:
        """Pieces [n, C * patch * patch] of images [N, C, H, W] in [-1, 1], as points in the middle of their bins."""
        middles = (self._levels(images) + 0.5) / 2**self.bits - 0.5
        side = self.patch
        pieces = middles.unfold(2, side, side).unfold(3, side, side)  # [N, C, H / side, W / side, side, side]
        return pieces.permute(0, 2, 3, 1, 4, 5).flatten(0, 2).flatten(1)

    def initialise_from(self, patches: Gaussian) -> None:
        """`initialise` from the mean and covariance of `patches` alone, with the same result as from the images."""
        # couplings start as the identity times a constant: a new flow is affine in each piece of 2^levels x 2^levels
        # pixels. 2 D points have mean and covariance: mean +- each axis, sqrt(D) deviations long; again and again, as
        # actnorms divide by n - 1
        noise = 1 / (12 * 4**self.bits)  # variance of a place in a bin
        size = patches.dim
        values, axes = torch.linalg.eigh(patches.covariance(0) + noise * torch.eye(size, dtype=torch.float64))
        steps = (axes * (values * size).sqrt()).T
        points = (patches.mean + torch.cat([steps, -steps])).repeat(-(-POINTS // (2 * size)), 1)
        own = next(self.parameters())
        self.initialise(points.to(own).view(-1, self.image_shape[0], self.patch, self.patch))


def _exactly(given: Tensor) -> AbstractContextManager[Any]:
    """Computes in the weights' precision what is computed of a tensor inside."""
    return torch.autocast(given.device.type, enabled=False)


def _multiscale(image_shape: tuple[int, int, int], levels: int, depth: int, width: int) -> Any:
    """normflows' multi-scale flow; its lists begin with the coarsest scale."""
    flows = require_normflows()
    channels, size, _ = image_shape
    bases, blocks, merges = [], [], []
    for i in range(levels):
        own = channels * 2 ** (levels + 1 - i)  # of the blocks of this scale
        with warnings.catch_warnings():
            # normflows factorises its random rotation by a call that torch has renamed; the result is the same
            warnings.filterwarnings("ignore", r"torch\.lu is deprecated", UserWarning)
            own_blocks = [flows.flows.GlowBlock(own, width, scale_map="sigmoid_inv") for _ in range(depth)]
        blocks.append([*own_blocks, flows.flows.Squeeze()])
        if i:
            merges.append(flows.flows.Merge())
            own //= 2
        side = size // 2 ** (levels - i)
        bases.append(flows.distributions.DiagGaussian((own, side, side), trainable=False))
    return flows.MultiscaleFlow(bases, blocks, merges, class_cond=False)


def require_normflows() -> Any:
    """The package; ModuleNotFoundError without it, naming the extra that brings it."""
    return need("normflows", "flows", "Glow")


def _fix_constants(flow: nn.Module) -> list[Any]:
    """The flow's actnorms; turns constants, which normflows keeps as floating buffers, into what they are."""
    # federated averaging takes floating buffers for running statistics: permutations, signs and the prior become frozen
    # parameters, and the actnorms' flags booleans, set so that the batch of whoever comes first does not decide
    for module in flow.modules():
        for name, buffer in list(module.named_buffers(recurse=False)):
            if name == "data_dep_init_done":
                setattr(module, name, torch.ones((), dtype=torch.bool))
            else:
                del module._buffers[name]
                module.register_parameter(name, nn.Parameter(buffer, requires_grad=False))
    return [module for module in flow.modules() if hasattr(module, "data_dep_init_done")]


def pooled_patches(network: GlowNetwork, clients: Iterable[Tensor]) -> Gaussian:
    """Mean and covariance of all clients' patches; each client sends those of its own."""
    return pool(summarize(network.patches(images)) for images in clients)


class Glow(LatentGenerator):
    """Glow (Kingma & Dhariwal 2018, arXiv 1807.03039) trained on the likelihood of the clients' images.

    The loss of an iteration is the images' bits per dimension (dequantised by uniform noise from torch's global
    generator) plus the `generator_losses` of as many samples: FID beside the likelihood is Fig. 7 of FastFID
    (arXiv 2009.14075). At a round's end `bits_per_dim` and what each `EmbeddedLoss` measured are logged.

    Actnorms start from data: when fitting starts, from the pooled mean and covariance of the clients' patches (16
    pixels with two scales), which decide as the images would and are summed like FID's moments. Without clients
    the first batch decides, as in the paper. After that they are averaged like other weights.

    A checkpoint holds the network's arguments as plain types, so `load_from_checkpoint(path).sample(16)` needs nothing
    else. Generator losses are not rebuilt: pass them again to train on.

    Args:
        generator: the flow, a `GlowNetwork`.
        lr: learning rate of Adam.
        betas: its moments' decays.
        warmup_rounds: rounds over which the rate rises linearly to `lr`.
        clip: the largest norm of the gradient, likelihood and losses together; None for no bound.
        temperature: of samples, also of those that losses see: the deviation of the latents.
        ema_decay: decay per iteration of the weights' average, moved at round ends, that draws images; None for none.
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
        settings = arguments_of(locals())
        require(lr > 0, f"lr must be positive, got {lr}")
        require(warmup_rounds >= 0, f"warmup_rounds must not be negative, got {warmup_rounds}")
        require(clip is None or clip > 0, f"clip must be positive, got {clip}")
        _require_temperature(temperature)
        network = build(generator, "generator")
        require(isinstance(network, GlowNetwork), f"Glow trains a GlowNetwork, got {type(network).__name__}")
        super().__init__(network, generator_losses, ema_decay, ema_warmup)
        self.lr, self.betas = lr, (float(betas[0]), float(betas[1]))  # Adam refuses a mixture of int and float
        self.warmup_rounds, self.clip, self.temperature = warmup_rounds, clip, temperature
        del settings["generator_losses"]
        self.save_hyperparameters(settings | {"generator": describe(network), "betas": self.betas})

    @property
    def flow(self) -> GlowNetwork:
        """The network that trains."""
        assert isinstance(self.generator, GlowNetwork)
        return self.generator

    # ---- before training ----

    def configure_optimizers(self) -> Any:
        """Adam; with `warmup_rounds` a linear rise of its rate, in rounds."""
        trained = [parameter for parameter in self.flow.parameters() if parameter.requires_grad]
        optimizer = torch.optim.Adam(trained, lr=self.lr, betas=self.betas)
        if not self.warmup_rounds:
            return optimizer
        return [optimizer], [LambdaLR(optimizer, lambda done: min(1.0, (done + 1) / self.warmup_rounds))]

    def setup(self, stage: str) -> None:
        """Checks the data's shape, starts actnorms from the clients' moments and gives losses the clients' images.

        Raises:
            ValueError: for images of another shape, weights in half precision, or losses without references.
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
            self.flow.initialise_from(pooled_patches(self.flow, images))
            self._start_average()
        self.start_losses()

    def _start_average(self) -> None:
        if self.generator_ema is not None:
            self.generator_ema.network.load_state_dict(self.flow.state_dict())

    # ---- training ----

    def training_step(self, batch: Sequence[Tensor], batch_idx: int) -> None:
        """One iteration on (images [N, C, H, W] in [-1, 1], labels); the labels are not used."""
        real = batch[0]
        require_shape(real, self.flow.image_shape, "the flow")
        points = self.flow.points(real)
        if not self.flow.initialised:
            self.flow.initialise(points)
            self._start_average()
        optimizer: Any = self.optimizers()
        own = self.start_step(optimizer)
        bits = self.flow.bits_per_dim(points).mean()
        joint = torch.zeros((), device=real.device)
        if not all(loss in self.embedded_losses and loss.separate for loss in self.generator_losses):
            joint = self.add_joint_losses(joint, self.flow(self.draw_latents(len(real))), bits.detach())
        self.manual_backward(bits + joint, inputs=own)
        self.backward_separate_losses(len(real), bits.detach(), own)
        optimizer.step()
        self.means.add({"bits_per_dim": bits})

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        """Bounds the gradient; here, where a grad scaler has taken its factor off again."""
        if self.clip is not None:
            self.clip_gradients(optimizer, self.clip, "norm")

    def draw_latents(self, count: int) -> Tensor:
        """Draw latents as a standard normal times the temperature."""
        return super().draw_latents(count) * self.temperature

    def on_train_epoch_end(self) -> None:
        """Logs the round's means and moves the learning rate, which means rounds."""
        super().on_train_epoch_end()
        self.step_schedulers()

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
        temperature = self.temperature if temperature is None else temperature
        _require_temperature(temperature)
        latents, _ = self.latents_and_labels(num_images, generator, labels)
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


def _require_temperature(temperature: float) -> None:
    require(temperature > 0, f"temperature must be positive, got {temperature}")
