"""A pretrained generator trained on scores of its images alone: no critic, batches larger than memory."""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils.parametrize import ParametrizationList

from fedgen.data.optional_attributes import optional
from fedgen.losses import AdaptiveWeight, EmbeddedLoss, ImageLosses
from fedgen.models.adversarial import check_images
from fedgen.models.checkpoint_file import read_generator
from fedgen.models.latent_generator import AtPositions, GeneratorLoss, LatentGenerator
from fedgen.models.networks.network import arguments_of, build, describe
from fedgen.models.optional_hooks import FederatedData
from fedgen.models.require import require
from fedgen.models.sampling import evaluating
from fedgen.seeds import generator as seeded
from fedgen.seeds import resolve

MOVING = (_BatchNorm, ParametrizationList)  # what a forward pass of training moves without any gradient
FROZEN = "frozen_by_fine_tuning"


class FineTuning(LatentGenerator):
    """A generator that goes on training on `generator_losses` alone, as BigGAN on FID in section 3 of arXiv 2009.14075.

    One `training_step` is one step of the generator on `batch` images; of the data only the clients' images as the
    losses' references are used. Runs under any strategy: under `FedAvgStrategy` the layers that train are averaged.
    At a round's end `generator_loss` (without those losses that make images of their own; absent if all do) and what
    each `EmbeddedLoss` measured are logged as means over its steps.

    A checkpoint holds the generator's class path and arguments, so `load_from_checkpoint(path).sample(16)` needs
    nothing else; losses are not rebuilt: pass them again to train on.

    Args:
        generator: the pretrained network, with an attribute `latent_dim` (and `num_classes`, if conditional); or the
            path of a run's checkpoint, from which it is rebuilt with `weights_only=True`: its moving average if there
            is one. Labels are drawn as often as the clients have them. What its training optimised stays marked.
        generator_losses: `EmbeddedLoss` (FID or MMD^2 to the clients' images, under one or several embeddings), or any
            objects that turn images [N, C, H, W] in [-1, 1] into a scalar, their weight included. They see the same
            images; an `EmbeddedLoss(separate=True)` has its own, of its `num_images` (`batch` by default) and `chunk`.
        batch: images of a step.
        chunk: images made and embedded at once, the gradient cached (see `fedgen.losses.embedded`): the memory of
            a small batch with the gradient of the large one, for one more forward pass. None: all at once.
        lr: learning rate of Adam.
        betas: its moments' decays.
        layers: shell patterns of the generator's parameters that train, e.g. ["body.0.*"]. The rest is frozen, running
            statistics and singular vectors included, and neither sent nor averaged. Parameters that were frozen before
            stay so, unless it was an earlier fine-tuning that froze them.
        fixed_latents: latents drawn once, from the seed, of which each step uses `batch` at random; fresh by default.
        batch_statistics: whether BatchNorm layers that train normalise by the batch (by the chunk, with `chunk`) and
            follow it, and spectral norms take a power iteration a pass. By default they keep the pretrained statistics
            and, within a round, the singular vectors: images then do not depend on each other, the generator trains as
            it is sampled from, and the cached gradient is exactly the large batch's.
        ema_decay: decay per iteration of the weights' average, moved at round ends, that draws images; None for none.
        ema_warmup: whether that average forgets faster at first (see `EMA`).
        seed: of the fixed latents; what `seed_everything` was given by default.

    Raises:
        FileNotFoundError: if there is no such checkpoint.
        ValueError: for a value out of range, a pattern that matches nothing, a file that is no generator's checkpoint,
            or a weight that adapts to a critic's loss; when `fit` starts, without losses or without references.
    """

    logged = ("generator_loss",)
    latents: Tensor | None
    labels: Tensor | None

    def __init__(
        self,
        generator: nn.Module | str,
        generator_losses: Sequence[GeneratorLoss] | None = None,
        batch: int = 100,
        chunk: int | None = None,
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.0, 0.9),
        layers: Sequence[str] = ("*",),
        fixed_latents: int | None = None,
        batch_statistics: bool = False,
        ema_decay: float | None = None,
        ema_warmup: bool = False,
        seed: int | None = None,
    ) -> None:
        settings = arguments_of(locals())
        require(batch >= 1, f"batch={batch}: a step needs at least one image")
        require(chunk is None or chunk >= 1, f"chunk={chunk}: at least one image at a time")
        require(lr > 0, f"lr must be positive, got {lr}")
        network = read_generator(generator) if isinstance(generator, str | Path) else build(generator, "generator")
        super().__init__(network, generator_losses, ema_decay, ema_warmup)
        counts = [batch, *(loss.num_images or batch for loss in self.embedded_losses if loss.separate)]
        require(
            fixed_latents is None or fixed_latents >= max(counts),
            f"fixed_latents={fixed_latents}: a step needs {max(counts)}; give at least as many, or a smaller batch",
        )
        for loss in self.embedded_losses:
            require(
                not isinstance(loss.weight, AdaptiveWeight),
                "AdaptiveWeight follows a critic's loss, and here is no critic; give the loss a number as its weight",
            )
        self.batch, self.chunk, self.lr = batch, chunk, lr
        self.betas = (float(betas[0]), float(betas[1]))  # Adam refuses a mixture of int and float
        self.layers, self.batch_statistics = list(layers), batch_statistics
        fixed = _freeze(self.generator, self.layers)
        self._fixed, self._frozen = set(fixed.values()), set(fixed)
        self.unexchanged = tuple(f"generator.{name}." for name in fixed)
        self.seed = resolve(seed)
        latents = None
        if fixed_latents is not None:
            latents = torch.randn(fixed_latents, self.latent_dim, generator=seeded(self.seed, "fixed latents"))
        self.register_buffer("latents", latents, persistent=False)
        self.register_buffer("labels", None, persistent=False)  # of fixed latents: the data tell how often each occurs
        del settings["generator_losses"]
        settings |= {"betas": self.betas, "layers": self.layers, "seed": self.seed}
        self.save_hyperparameters(settings | {"generator": describe(self.generator)})
        self.train()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam on the layers that train."""
        trained = [parameter for parameter in self.generator.parameters() if parameter.requires_grad]
        return torch.optim.Adam(trained, lr=self.lr, betas=self.betas)

    def setup(self, stage: str) -> None:
        """Checks losses and the data's shape, and gives losses without references the clients' images."""
        if stage != "fit":
            return
        require(bool(self.generator_losses), "FineTuning has no generator_losses, and nothing else to train on")
        with evaluating(self):
            check_images(self.generator, None, optional(self.data, FederatedData, "image_shape"))
        self.start_losses()
        if self.latents is not None and self.label_frequencies is not None:
            draws = seeded(self.seed, "labels of fixed latents")
            self.labels = self.label_frequencies.draw(len(self.latents), draws).to(self.latents.device)

    def train(self, mode: bool = True) -> "FineTuning":
        """Itself in training mode, but for what keeps its running statistics."""
        super().train(mode)
        for module in self.generator.modules():
            if module in self._fixed or (isinstance(module, MOVING) and not self.batch_statistics):
                module.eval()
        return self

    def training_step(self, batch: Any, batch_idx: int) -> None:
        """One step of the generator; the batch itself is not used."""
        optimizer: Any = self.optimizers()
        own = self.start_step(optimizer)
        shared = [loss for loss in self.generator_losses if not (isinstance(loss, EmbeddedLoss) and loss.separate)]
        if shared:
            parts = ImageLosses(shared).backward_parts(
                *self.draw(self.batch), self.chunk, lambda total: self.means.add({"generator_loss": total})
            )
            for part in parts:
                self.manual_backward(part, inputs=own)
        self.backward_separate_losses(self.batch, None, own)
        optimizer.step()

    def draw(self, count: int) -> tuple[nn.Module, Tensor]:
        """The generator as a function of one input an image, and a step's inputs: some of the fixed ones, or new."""
        if self.latents is None:
            return super().draw(count)
        fixed = len(self.latents)
        positions = torch.randperm(fixed)[:count] if count < fixed else torch.arange(fixed)
        positions = positions.to(self.latents.device)
        if self.labels is None:
            return self.generator, self.latents[positions]
        return AtPositions(self.generator, self.latents, self.labels), positions


def _freeze(generator: nn.Module, patterns: Sequence[str]) -> dict[str, nn.Module]:
    """Freezes what no pattern matches, for the next fine-tuning to thaw; returns by name what does not train."""
    parameters = dict(generator.named_parameters())
    unmatched = [pattern for pattern in patterns if not any(fnmatchcase(name, pattern) for name in parameters)]
    require(not unmatched, f"layers {unmatched} match no parameter of the generator; it has {', '.join(parameters)}")
    require(
        any(p.requires_grad for p in parameters.values()),
        "all parameters of the generator are frozen, as a moving average's are; thaw them first (requires_grad_()), or"
        " give the path of the run's checkpoint, whose average then trains",
    )
    free = {name for name, p in parameters.items() if p.requires_grad} | vars(generator).get(FROZEN, set())
    chosen = {name for name in free if any(fnmatchcase(name, pattern) for pattern in patterns)}
    require(bool(chosen), f"layers {list(patterns)} leave nothing to train")
    for name in free:
        parameters[name].requires_grad_(name in chosen)
    vars(generator)[FROZEN] = free - chosen
    own = {name: list(module.parameters()) for name, module in generator.named_modules()}
    fixed = {name for name, found in own.items() if found and not any(p.requires_grad for p in found)}
    return {name: module for name, module in generator.named_modules() if name in fixed}
