"""A StyleGAN2 of random weights that makes images in a moment."""

from pathlib import Path

import torch

from fedgen.models.stylegan2 import StyleGAN2Generator
from fedgen.models.stylegan2.network_file import NetworkFile

TINY = {"image_size": 8, "channels": 1, "latent_dim": 8, "style_dim": 8, "mapping_layers": 2, "channel_base": 64}


def network(seed=0, mean=True, **options):
    """A network whose noise is seen and whose mean of styles is that of its styles, or zeros."""
    torch.manual_seed(seed)
    made = StyleGAN2Generator(**(TINY | options)).eval()
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if name.endswith("noise_strength"):
                parameter.fill_(0.2)
        if mean:
            made.mapping.w_avg.copy_(made.styles(torch.randn(1000, 8))[:, 0].mean(dim=0))
    return made


def write_network(path: Path, **options) -> None:
    """Write a file of the network as the average of weights."""
    NetworkFile(generator_ema=network(**options)).write(path)
