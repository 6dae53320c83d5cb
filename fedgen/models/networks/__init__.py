"""Networks: pairs of a generator and a critic, the UNet of diffusion models, and an autoencoder."""

from typing import TYPE_CHECKING

from fedgen.lazy import load_on_use

if TYPE_CHECKING:
    from fedgen.models.glow import GlowNetwork
    from fedgen.models.networks.dcgan import DCGANCritic, DCGANGenerator, SmallCritic, SmallGenerator
    from fedgen.models.networks.diffusers_networks import AutoencoderKL, UNet
    from fedgen.models.networks.network import Critic, Generator, Network
    from fedgen.models.networks.resnets import (
        ResNetCritic,
        ResNetGenerator,
        SAGANCritic,
        SAGANGenerator,
        SNGANCritic,
        SNGANGenerator,
    )

__all__ = [
    "AutoencoderKL",
    "Critic",
    "DCGANCritic",
    "DCGANGenerator",
    "Generator",
    "GlowNetwork",
    "Network",
    "ResNetCritic",
    "ResNetGenerator",
    "SAGANCritic",
    "SAGANGenerator",
    "SNGANCritic",
    "SNGANGenerator",
    "SmallCritic",
    "SmallGenerator",
    "UNet",
]

load_on_use(__name__)
