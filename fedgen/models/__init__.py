"""Generative models: Lightning modules with `sample()`, a language model, and a sampler of stored images."""

from typing import TYPE_CHECKING

from fedgen.lazy import load_on_use

if TYPE_CHECKING:
    from fedgen.models.adversarial import AdversarialLoss, Hinge, NonSaturating, WassersteinGP
    from fedgen.models.autoencoders import VAE, LatentSpace
    from fedgen.models.character_models import CharacterLSTM, CharacterTransformer
    from fedgen.models.diffusion.ddpm import DDPM, FewStepGenerator
    from fedgen.models.diffusion.diffusion_process import NoiseSchedule, Sampler
    from fedgen.models.diffusion.edm import EDM, EDMSampler
    from fedgen.models.diffusion.flow_matching import FlowMatching
    from fedgen.models.diffusion.flow_ode import FlowSampler
    from fedgen.models.diffusion.lora import LoRA
    from fedgen.models.distributed_fine_tuning import DistributedFineTuning, LocalSteps
    from fedgen.models.ema import EMA
    from fedgen.models.empirical import EmpiricalGenerator
    from fedgen.models.fine_tuning import FineTuning
    from fedgen.models.gan import GAN, WGANGP
    from fedgen.models.glow import Glow
    from fedgen.models.networks.diffusers_networks import PromptUNet
    from fedgen.models.round_clock import RoundClock
    from fedgen.models.stylegan2 import StyleGAN2

__all__ = [
    "DDPM",
    "EDM",
    "EMA",
    "GAN",
    "VAE",
    "WGANGP",
    "AdversarialLoss",
    "CharacterLSTM",
    "CharacterTransformer",
    "DistributedFineTuning",
    "EDMSampler",
    "EmpiricalGenerator",
    "FewStepGenerator",
    "FineTuning",
    "FlowMatching",
    "FlowSampler",
    "Glow",
    "Hinge",
    "LatentSpace",
    "LoRA",
    "LocalSteps",
    "NoiseSchedule",
    "NonSaturating",
    "PromptUNet",
    "RoundClock",
    "Sampler",
    "StyleGAN2",
    "WassersteinGP",
]

load_on_use(__name__)
