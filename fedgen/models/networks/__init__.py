"""Networks: pairs of a generator and a critic, a file each, the UNet of diffusion models, and an autoencoder."""

from typing import TYPE_CHECKING

from fedgen.lazy import load_on_use

if TYPE_CHECKING:
    from fedgen.models.networks.autoencoder_kl import AutoencoderKL
    from fedgen.models.networks.dcgan import DCGANCritic, DCGANGenerator
    from fedgen.models.networks.glow import GlowNetwork
    from fedgen.models.networks.network import Critic, Generator, Network
    from fedgen.models.networks.resnet import ResNetCritic, ResNetGenerator
    from fedgen.models.networks.sagan import SAGANCritic, SAGANGenerator
    from fedgen.models.networks.small import SmallCritic, SmallGenerator
    from fedgen.models.networks.sngan import SNGANCritic, SNGANGenerator
    from fedgen.models.networks.unet import UNet

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
