"""Generative models: Lightning modules with `sample()`, and a sampler of stored images."""

from fedgen.models.ema import EMA
from fedgen.models.empirical import EmpiricalGenerator
from fedgen.models.gan import GAN, WGANGP
from fedgen.models.round_clock import RoundClock

__all__ = ["EMA", "GAN", "WGANGP", "EmpiricalGenerator", "RoundClock"]
