"""The published training settings of StyleGAN2-ADA, as arguments of our networks and module.

Karras et al. 2020 (arXiv 2006.06676), appendix D; the options carry the names of the official command.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal

from fedgen.models.require import require
from fedgen.models.stylegan2.augment import AdaptiveAugment, Augment
from fedgen.models.stylegan2.discriminator import StyleGAN2Discriminator
from fedgen.models.stylegan2.generator import StyleGAN2Generator
from fedgen.models.stylegan2.stylegan2 import StyleGAN2

Name = Literal["auto", "stylegan2", "paper256", "paper512", "paper1024", "cifar"]


@dataclass(frozen=True)
class Configuration:
    """Settings of a training; images count over all GPUs.

    Attributes:
        batch: real images of an iteration.
        micro_batch: of them computed at once, on one GPU.
        kimg: thousands of real images to train for.
        group_size: of the critic's minibatch-std.
        r1_gamma: weight of the R1 penalty.
        lr: of both Adams, before the correction for lazy steps.
        ema_kimg: half-life of the weights' average.
        ema_rampup: bound on it as a share of the images shown.
        mapping_layers: of the generator.
        channel_base: feature maps times resolution.
        path_weight: weight of the path length penalty.
        style_mixing: its probability.
        architecture: of the critic.
        half_resolutions: highest resolutions in float16.
        clamp: bound on layers' results, for float16.
        frozen_layers: of the critic, from the image on.
        pipe: the augmentation's name; None for none.
        target: r that its p is adapted to; None keeps p.
        p: where it starts.
        ada_kimg: thousands of images in which p can move by 1.
    """

    batch: int
    micro_batch: int
    kimg: int
    group_size: int
    r1_gamma: float
    lr: float
    ema_kimg: float
    ema_rampup: float | None
    mapping_layers: int
    channel_base: int
    path_weight: float = 2.0
    style_mixing: float = 0.9
    architecture: Literal["resnet", "orig"] = "resnet"
    half_resolutions: int = 4
    clamp: float | None = 256.0
    frozen_layers: int = 0
    pipe: str | None = "bgc"
    target: float | None = 0.6
    p: float = 0.0
    ada_kimg: float = 500.0

    def build(
        self, resolution: int, channels: int = 3, num_classes: int | None = None, mirror: bool = False, **options: Any
    ) -> StyleGAN2:
        """The module with new networks; options go to it, e.g. generator_losses.

        Args:
            resolution: of square images, a power of two.
            channels: of images.
            num_classes: of a conditional model.
            mirror: whether real images are mirrored at random, which stands for doubling the data.
            options: further arguments of `StyleGAN2`.
        """
        shared: dict[str, Any] = {
            "image_size": resolution,
            "channels": channels,
            "num_classes": num_classes,
            "channel_base": self.channel_base,
            "half_resolutions": self.half_resolutions,
            "clamp": self.clamp,
        }
        critic = StyleGAN2Discriminator(
            **shared, architecture=self.architecture, group_size=self.group_size, frozen_layers=self.frozen_layers
        )
        augment = None
        if self.pipe is not None:
            augment = AdaptiveAugment(Augment.of_pipe(self.pipe), self.target, self.ada_kimg, self.p)
        return StyleGAN2(
            StyleGAN2Generator(**shared, mapping_layers=self.mapping_layers),
            critic,
            r1_gamma=self.r1_gamma,
            path_weight=self.path_weight,
            style_mixing=self.style_mixing,
            lr=self.lr,
            augment=augment,
            ema_kimg=self.ema_kimg,
            ema_rampup=self.ema_rampup,
            micro_batch=None if self.micro_batch >= self.batch else self.micro_batch,
            flips=mirror,
            **options,
        )


_FULL, _HALF = 32768, 16384
_PUBLISHED = {
    # batch, images at once, kimg, group, gamma, lr, half-life of the average, its ramp-up, mapping layers, channel base
    "stylegan2": Configuration(32, 4, 25000, 4, 10.0, 0.002, 10.0, None, 8, _FULL),
    "paper256": Configuration(64, 8, 25000, 8, 1.0, 0.0025, 20.0, None, 8, _HALF),
    "paper512": Configuration(64, 8, 25000, 8, 0.5, 0.0025, 20.0, None, 8, _FULL),
    "paper1024": Configuration(32, 4, 25000, 4, 2.0, 0.002, 10.0, None, 8, _FULL),
    "cifar": Configuration(64, 32, 100000, 32, 0.01, 0.0025, 500.0, 0.05, 2, _FULL, 0.0, 0.0, "orig"),
}


def configuration(
    name: Name = "auto",
    resolution: int = 256,
    gpus: int = 1,
    batch: int | None = None,
    gamma: float | None = None,
    kimg: int | None = None,
    aug: Literal["ada", "fixed", "noaug"] = "ada",
    p: float | None = None,
    target: float | None = None,
    pipe: str = "bgc",
    resume: bool = False,
    freezed: int = 0,
    fp32: bool = False,
) -> Configuration:
    """The settings that the official command derives from its options.

    Args:
        name: "auto" derives all of them from resolution and GPUs; the others are those of the papers.
        resolution: of square images.
        gpus: that share a batch.
        batch: another batch size; nothing else follows it.
        gamma: another weight of the R1 penalty.
        kimg: another length.
        aug: whether the augmentation's p is adapted, fixed at `p`, or there is none.
        p: of a fixed augmentation.
        target: of an adapted one.
        pipe: its name, e.g. "bgc".
        resume: whether training starts from trained networks: p adapts faster, and the average needs no ramp-up.
        freezed: layers of the critic that do not train.
        fp32: whether everything runs in float32.

    Raises:
        ValueError: for an unknown name, or options that exclude each other.
    """
    require(name == "auto" or name in _PUBLISHED, f"no configuration is called {name!r}: {', '.join(_PUBLISHED)}, auto")
    require(gpus >= 1 and (batch is None or batch >= gpus), f"{gpus} GPUs cannot share a batch of {batch} images")
    require((p is not None) == (aug == "fixed"), f"aug={aug!r} with p={p}: give p with aug='fixed', and only then")
    require(target is None or aug == "ada", f"target={target} needs aug='ada', got {aug!r}")
    found = _automatic(resolution, gpus) if name == "auto" else _PUBLISHED[name]
    if batch is not None:
        require(batch % gpus == 0, f"{gpus} GPUs cannot share a batch of {batch} images evenly")
        found = replace(found, batch=batch, micro_batch=batch // gpus)
    if aug == "noaug":
        found = replace(found, pipe=None, target=None)
    else:
        adapted = 0.6 if target is None else target
        found = replace(found, pipe=pipe, target=adapted if aug == "ada" else None, p=p or 0.0)
    if resume:
        found = replace(found, ada_kimg=100.0, ema_rampup=None)
    if fp32:
        found = replace(found, half_resolutions=0, clamp=None)
    return replace(
        found,
        r1_gamma=found.r1_gamma if gamma is None else gamma,
        kimg=found.kimg if kimg is None else kimg,
        frozen_layers=freezed,
    )


def _automatic(resolution: int, gpus: int) -> Configuration:
    batch = max(min(gpus * min(4096 // resolution, 32), 64), gpus)
    return Configuration(
        batch=batch,
        micro_batch=batch // gpus,
        kimg=25000,
        group_size=min(batch // gpus, 4),
        r1_gamma=0.0002 * resolution**2 / batch,
        lr=0.002 if resolution >= 1024 else 0.0025,
        ema_kimg=batch * 10 / 32,
        ema_rampup=0.05,
        mapping_layers=2,
        channel_base=_FULL if resolution >= 512 else _HALF,
    )
