"""Parts that cells are put together from: data sets, partitions, generators and algorithms, as recipes have them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from fedgen.experiments.engine.trainings import Control, component

Part = dict[str, Any]
"""an object of a recipe: class path and arguments"""


@dataclass(frozen=True)
class DataPart:
    """One data set, and how generators of it are measured."""

    recipe: Part
    image_size: int  # side of its images in pixels
    channels: int  # 1 grey, 3 colour
    embeddings: tuple[str, ...]  # that images are scored in; those of the suites `tiny` and `small` need no download
    num_images: int  # that a generator draws, and at most as many real ones for the floor


@dataclass(frozen=True)
class Algorithm:
    """One way to train over clients, or a control."""

    # arguments of `FedAvgStrategy` that differ from averaging
    strategy: Mapping[str, Any] = field(default_factory=dict)
    control: Control | None = None  # the flag of `fedgen fit` that makes it one


DIGITS_NETWORK = "classifier-mnist5k"
PUBLISHED = ("inception-v3-compat", "efficientnet-lite0", "pixels")
"""the embeddings of the suite `full`: the published FID's, whose weights are downloaded, and two that are not"""

DATA: dict[str, DataPart] = {
    "digits": DataPart(
        component("fedgen.data.Digits"), 8, 1, ("efficientnet-lite0-32", DIGITS_NETWORK, "pixels"), num_images=890
    ),
    "mnist5k": DataPart(
        component("fedgen.data.MNIST5k", pad_to=32), 32, 1, ("efficientnet-lite0", DIGITS_NETWORK, "pixels"), 2000
    ),
    "styles": DataPart(
        component("fedgen.data.StyleShift", num_writers=50, pad_to=32, shrink=2),
        16,
        1,
        ("efficientnet-lite0-32", DIGITS_NETWORK, "pixels"),
        num_images=2000,
    ),
    "fashion": DataPart(
        component("fedgen.data.FashionMNIST", pad_to=32), 32, 1, ("efficientnet-lite0", "pixels"), num_images=1000
    ),
    "photos": DataPart(
        component("fedgen.data.PhotoPatches", size=32), 32, 3, ("efficientnet-lite0", "pixels"), num_images=800
    ),
    "cifar10": DataPart(component("fedgen.data.CIFAR10"), 32, 3, PUBLISHED, num_images=10000),
    "femnist": DataPart(component("fedgen.data.FEMNIST", pad_to=32), 32, 1, PUBLISHED, num_images=10000),
    "celeba": DataPart(
        component("fedgen.data.CelebA", size=64, identities=True, in_memory=False), 64, 3, PUBLISHED, num_images=10000
    ),
    "pathmnist": DataPart(
        component("fedgen.data.MedMNIST", name="pathmnist", pad_to=32), 32, 3, PUBLISHED, num_images=10000
    ),
    "camelyon17": DataPart(component("fedgen.data.Camelyon17", size=32), 32, 3, PUBLISHED, num_images=10000),
    "fed-isic2019": DataPart(component("fedgen.data.FedISIC2019", size=64), 64, 3, PUBLISHED, num_images=5000),
    "imagenet64": DataPart(
        component("fedgen.data.ImageNet32", size=64, classes=100), 64, 3, PUBLISHED, num_images=10000
    ),
}

PARTITIONS: dict[str, Part] = {
    "by-class": component("fedgen.clients.partitions.ByClass"),
    # of ten classes alpha = 3 is 0.3 for each
    "dirichlet": component("fedgen.clients.partitions.Dirichlet", num_clients=10, alpha=3.0),
    "natural": component("fedgen.clients.partitions.Natural"),
    # owners of fewer images are too many to score one by one, and have too few for it
    "natural-30": component("fedgen.clients.partitions.Natural", min_examples=30),
    "natural-300": component("fedgen.clients.partitions.Natural", min_examples=300),
}


def _gan_pair(kind: str, **options: Any) -> dict[str, Part]:
    names = ("generator", "critic")
    return {name: component(f"fedgen.models.networks.{kind}{name.title()}", **options) for name in names}


def _wgan_gp(size: int, channels: int, large: bool = False) -> Part:
    kind, width = ("DCGAN", {"width": 64 if large else 16}) if large or size >= 16 else ("Small", {})
    n_critic, lr, decay = (5, 2e-4, 0.999) if large else (2, 5e-4, 0.998) if width else (2, 1e-3, 0.995)
    pair = _gan_pair(kind, image_size=size, channels=channels, **width)
    return component("fedgen.models.WGANGP", **pair, n_critic=n_critic, lr=lr, betas=[0.0, 0.99], ema_decay=decay)


def _stylegan2(size: int, channels: int, large: bool = False) -> Part:
    base, most, latents = (16384, 512, {}) if large else (32 * size, 48, {"latent_dim": 32, "style_dim": 32})
    widths = {"image_size": size, "channels": channels, "channel_base": base, "channel_max": most}
    generator = component("fedgen.models.stylegan2.StyleGAN2Generator", mapping_layers=2, **latents, **widths)
    critic = component("fedgen.models.stylegan2.StyleGAN2Discriminator", **widths)
    gamma, kimg = (1.0, 20.0) if large else (2.0, 5.0)
    return component("fedgen.models.StyleGAN2", generator=generator, critic=critic, r1_gamma=gamma, ema_kimg=kimg)


def _unet(size: int, channels: int, large: bool) -> Part:
    """A small network, or that of Ho et al. 2020 for 32 x 32 pixels, a level more for 64 x 64."""
    own = {"widths": [16, 32] if size <= 16 else [16, 32, 32], "layers": 1, "attention": []}
    if large:
        own = {"widths": [128, *[256] * (3 if size <= 32 else 4)], "dropout": 0.1}
    return component("fedgen.models.networks.UNet", image_size=size, channels=channels, **own)


def _ddpm(size: int, channels: int, large: bool = False) -> Part:
    options = {"schedule": "cosine", "prediction": "v", "lr": 2e-3, "warmup": 100}
    network = _unet(size, channels, large)
    return component("fedgen.models.DDPM", network=network, **({"lr": 2e-4, "warmup": 1000} if large else options))


def _flow(size: int, channels: int, large: bool = False) -> Part:
    lr, warmup, steps = (2e-4, 1000, 20) if large else (2e-3, 100, 10)
    options = {"coupling": "optimal-transport", "times": "logit-normal", "lr": lr, "warmup": warmup}
    sampler = {"solver": "heun", "steps": steps, "denoise": True}
    return component("fedgen.models.FlowMatching", network=_unet(size, channels, large), **options, sampler=sampler)


_FAMILIES = {"wgan-gp": _wgan_gp, "stylegan2": _stylegan2, "ddpm": _ddpm, "flow": _flow}
_LARGE = {f"{name}-large": partial(family, large=True) for name, family in _FAMILIES.items()}
GENERATORS: dict[str, Callable[[int, int], Part]] = {**_FAMILIES, **_LARGE}
"""the model of each family, by side and channels of the images"""

AVERAGING = "fedavg"
ALGORITHMS: dict[str, Algorithm] = {
    AVERAGING: Algorithm(),
    "fedavgm": Algorithm({"server_optimizer": component("fedgen.federated.FedAvgM", lr=0.1)}),
    "fedadam": Algorithm({"server_optimizer": component("fedgen.federated.FedAdam", lr=0.005, convention="reddi")}),
    "fedprox": Algorithm({"client_algorithm": component("fedgen.federated.FedProx", mu=0.1)}),
    "scaffold": Algorithm({"client_algorithm": component("fedgen.federated.Scaffold")}),
    "local": Algorithm(control="local_only"),
    "centralised": Algorithm(control="centralised"),
}
