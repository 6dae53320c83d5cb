"""Samplers of cohorts: the clients that may be drawn for a round, and their probabilities."""

from typing import TYPE_CHECKING

from fedgen.lazy import load_on_use

if TYPE_CHECKING:
    from fedgen.clients.samplers.sampler import AvailabilitySampler, CohortSampler, Shifts, SizeSampler, UniformSampler

__all__ = ["AvailabilitySampler", "CohortSampler", "Shifts", "SizeSampler", "UniformSampler"]

load_on_use(__name__)
