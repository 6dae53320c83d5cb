"""Generative models: Lightning modules with `sample()`, a language model, and a sampler of stored images."""

from typing import TYPE_CHECKING

from fedgen.lazy import load_on_use

if TYPE_CHECKING:
    from fedgen.models.autoencoders.latent_space import LatentSpace
    from fedgen.models.autoencoders.vae import VAE
    from fedgen.models.character_transformer import CharacterTransformer
    from fedgen.models.diffusion.ddpm import DDPM
    from fedgen.models.diffusion.diffusion_sampling import Sampler
    from fedgen.models.diffusion.diffusion_schedule import NoiseSchedule
    from fedgen.models.diffusion.edm import EDM
    from fedgen.models.diffusion.edm_sampling import EDMSampler
    from fedgen.models.diffusion.few_steps import FewStepGenerator
    from fedgen.models.diffusion.flow_matching import FlowMatching
    from fedgen.models.diffusion.flow_sampling import FlowSampler
    from fedgen.models.ema import EMA
    from fedgen.models.empirical import EmpiricalGenerator
    from fedgen.models.fine_tuning.distributed_fine_tuning import DistributedFineTuning, LocalSteps
    from fedgen.models.fine_tuning.fine_tuning import FineTuning
    from fedgen.models.fine_tuning.lora import LoRA
    from fedgen.models.flow import Glow
    from fedgen.models.gan.adversarial import AdversarialLoss, Hinge, NonSaturating, WassersteinGP
    from fedgen.models.gan.gan import GAN
    from fedgen.models.gan.wgan_gp import WGANGP
    from fedgen.models.rounds.round_clock import RoundClock
    from fedgen.models.stylegan2 import StyleGAN2
    from fedgen.models.text.prompt_unet import PromptUNet

__all__ = [
    "DDPM",
    "EDM",
    "EMA",
    "GAN",
    "VAE",
    "WGANGP",
    "AdversarialLoss",
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
