"""Networks: pairs of a generator and a critic, a file each, and the UNet of diffusion models."""

from fedgen.models.networks.dcgan import DCGANCritic, DCGANGenerator
from fedgen.models.networks.glow import GlowNetwork
from fedgen.models.networks.network import Critic, Generator, Network
from fedgen.models.networks.resnet import ResNetCritic, ResNetGenerator
from fedgen.models.networks.small import SmallCritic, SmallGenerator
from fedgen.models.networks.unet import UNet

__all__ = [
    "Critic",
    "DCGANCritic",
    "DCGANGenerator",
    "Generator",
    "GlowNetwork",
    "Network",
    "ResNetCritic",
    "ResNetGenerator",
    "SmallCritic",
    "SmallGenerator",
    "UNet",
]
