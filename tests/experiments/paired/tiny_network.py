"""A StyleGAN2 with its critic, tiny and of random weights."""

from pathlib import Path

import torch

from fedgen.models import StyleGAN2
from fedgen.models.stylegan2 import StyleGAN2Discriminator, StyleGAN2Generator

SHARED = {"image_size": 8, "channels": 1, "channel_base": 64}


def write_network(path="tiny.safetensors"):
    """Write the networks' file."""
    torch.manual_seed(0)
    generator = StyleGAN2Generator(**SHARED, latent_dim=8, style_dim=8, mapping_layers=2)
    with torch.no_grad():
        generator.mapping.w_avg.copy_(generator.styles(torch.randn(1000, 8))[:, 0].mean(dim=0))
    StyleGAN2(generator, StyleGAN2Discriminator(**SHARED)).to_file(path)
    return Path(path)
