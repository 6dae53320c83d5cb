"""Generative models: Lightning modules with `sample()`, and a sampler of stored images."""

from fedgen.models.ddpm import DDPM
from fedgen.models.ema import EMA
from fedgen.models.empirical import EmpiricalGenerator
from fedgen.models.fine_tuning import FineTuning
from fedgen.models.flow import Glow
from fedgen.models.gan import GAN, WGANGP
from fedgen.models.round_clock import RoundClock

__all__ = ["DDPM", "EMA", "GAN", "WGANGP", "EmpiricalGenerator", "FineTuning", "Glow", "RoundClock"]
