"""StyleGAN2 and its adaptive discriminator augmentation, from the formulas, in plain PyTorch."""

from typing import TYPE_CHECKING

from fedgen.lazy import load_on_use

if TYPE_CHECKING:
    from fedgen.models.stylegan2.augment import AdaptiveAugment, Augment
    from fedgen.models.stylegan2.configurations import Configuration, configuration
    from fedgen.models.stylegan2.discriminator import StyleGAN2Discriminator
    from fedgen.models.stylegan2.generator import StyleGAN2Generator
    from fedgen.models.stylegan2.stylegan2 import StyleGAN2

__all__ = [
    "AdaptiveAugment",
    "Augment",
    "Configuration",
    "StyleGAN2",
    "StyleGAN2Discriminator",
    "StyleGAN2Generator",
    "configuration",
]

load_on_use(__name__)
