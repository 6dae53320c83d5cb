"""Pairs of networks: a generator and a critic a file."""

from fedgen.models.networks.dcgan import DCGANCritic, DCGANGenerator
from fedgen.models.networks.network import Critic, Generator, Network
from fedgen.models.networks.resnet import ResNetCritic, ResNetGenerator
from fedgen.models.networks.small import SmallCritic, SmallGenerator

__all__ = [
    "Critic",
    "DCGANCritic",
    "DCGANGenerator",
    "Generator",
    "Network",
    "ResNetCritic",
    "ResNetGenerator",
    "SmallCritic",
    "SmallGenerator",
]
