"""Generative models: Lightning modules with `sample()`, a language model, and a sampler of stored images."""

from typing import TYPE_CHECKING

from fedgen.lazy import load_on_use

if TYPE_CHECKING:
    from fedgen.models.adversarial import AdversarialLoss, Hinge, NonSaturating, WassersteinGP
    from fedgen.models.character_transformer import CharacterTransformer
    from fedgen.models.ddpm import DDPM
    from fedgen.models.diffusion_sampling import Sampler
    from fedgen.models.diffusion_schedule import NoiseSchedule
    from fedgen.models.distributed_fine_tuning import DistributedFineTuning, LocalSteps
    from fedgen.models.ema import EMA
    from fedgen.models.empirical import EmpiricalGenerator
    from fedgen.models.few_steps import FewStepGenerator
    from fedgen.models.fine_tuning import FineTuning
    from fedgen.models.flow import Glow
    from fedgen.models.gan import GAN
    from fedgen.models.lora import LoRA
    from fedgen.models.round_clock import RoundClock
    from fedgen.models.stylegan2 import StyleGAN2
    from fedgen.models.wgan_gp import WGANGP

__all__ = [
    "DDPM",
    "EMA",
    "GAN",
    "WGANGP",
    "AdversarialLoss",
    "CharacterTransformer",
    "DistributedFineTuning",
    "EmpiricalGenerator",
    "FewStepGenerator",
    "FineTuning",
    "Glow",
    "Hinge",
    "LoRA",
    "LocalSteps",
    "NoiseSchedule",
    "NonSaturating",
    "RoundClock",
    "Sampler",
    "StyleGAN2",
    "WassersteinGP",
]

load_on_use(__name__)
