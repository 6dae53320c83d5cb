"""Parts that cells are put together from: data sets, partitions, generators and algorithms, as recipes have them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
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


def _wgan_gp(size: int, channels: int) -> Part:
    shape = {"image_size": size, "channels": channels}
    if size < 16:
        pair = _gan_pair("Small", **shape)
        return component("fedgen.models.WGANGP", **pair, n_critic=2, lr=1e-3, betas=[0.0, 0.99], ema_decay=0.995)
    pair = _gan_pair("DCGAN", **shape, width=16)
    return component("fedgen.models.WGANGP", **pair, n_critic=2, lr=5e-4, betas=[0.0, 0.99], ema_decay=0.998)


def _stylegan2(size: int, channels: int) -> Part:
    widths = {"image_size": size, "channels": channels, "channel_base": 32 * size, "channel_max": 48}
    generator = component(
        "fedgen.models.stylegan2.StyleGAN2Generator", latent_dim=32, style_dim=32, mapping_layers=2, **widths
    )
    critic = component("fedgen.models.stylegan2.StyleGAN2Discriminator", **widths)
    return component("fedgen.models.StyleGAN2", generator=generator, critic=critic, r1_gamma=2.0, ema_kimg=5.0)


def _unet(size: int, channels: int) -> Part:
    widths = [16, 32] if size <= 16 else [16, 32, 32]
    return component(
        "fedgen.models.networks.UNet", image_size=size, channels=channels, widths=widths, layers=1, attention=[]
    )


def _ddpm(size: int, channels: int) -> Part:
    options = {"schedule": "cosine", "prediction": "v", "lr": 2e-3, "warmup": 100}
    return component("fedgen.models.DDPM", network=_unet(size, channels), **options)


_PATH = {"coupling": "optimal-transport", "times": "logit-normal"}


def _flow(size: int, channels: int) -> Part:
    options = {"lr": 2e-3, "warmup": 100, "sampler": {"solver": "heun", "steps": 10, "denoise": True}}
    return component("fedgen.models.FlowMatching", network=_unet(size, channels), **_PATH, **options)


def _wgan_gp_large(size: int, channels: int) -> Part:
    pair = _gan_pair("DCGAN", image_size=size, channels=channels, width=64)
    return component("fedgen.models.WGANGP", **pair, n_critic=5, lr=2e-4, betas=[0.0, 0.99], ema_decay=0.999)


def _stylegan2_large(size: int, channels: int) -> Part:
    widths = {"image_size": size, "channels": channels, "channel_base": 16384, "channel_max": 512}
    generator = component("fedgen.models.stylegan2.StyleGAN2Generator", mapping_layers=2, **widths)
    critic = component("fedgen.models.stylegan2.StyleGAN2Discriminator", **widths)
    return component("fedgen.models.StyleGAN2", generator=generator, critic=critic, r1_gamma=1.0, ema_kimg=20.0)


def _unet_large(size: int, channels: int) -> Part:
    """The network of Ho et al. 2020 for 32 x 32 pixels, a level more for 64 x 64."""
    widths = [128, 256, 256, 256] if size <= 32 else [128, 256, 256, 256, 256]
    return component("fedgen.models.networks.UNet", image_size=size, channels=channels, widths=widths, dropout=0.1)


def _ddpm_large(size: int, channels: int) -> Part:
    return component("fedgen.models.DDPM", network=_unet_large(size, channels), lr=2e-4, warmup=1000)


def _flow_large(size: int, channels: int) -> Part:
    options = {"lr": 2e-4, "warmup": 1000, "sampler": {"solver": "heun", "steps": 20, "denoise": True}}
    return component("fedgen.models.FlowMatching", network=_unet_large(size, channels), **_PATH, **options)


GENERATORS: dict[str, Callable[[int, int], Part]] = {
    "wgan-gp": _wgan_gp,
    "stylegan2": _stylegan2,
    "ddpm": _ddpm,
    "flow": _flow,
    "wgan-gp-large": _wgan_gp_large,
    "stylegan2-large": _stylegan2_large,
    "ddpm-large": _ddpm_large,
    "flow-large": _flow_large,
}
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
