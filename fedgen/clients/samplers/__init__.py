"""Samplers of cohorts: who may be drawn for a round, and with which probability."""

from typing import TYPE_CHECKING

from fedgen.lazy import load_on_use

if TYPE_CHECKING:
    from fedgen.clients.samplers.availability import AvailabilitySampler
    from fedgen.clients.samplers.sampler import CohortSampler, UniformSampler
    from fedgen.clients.samplers.shifts import Shifts
    from fedgen.clients.samplers.size_sampler import SizeSampler

__all__ = ["AvailabilitySampler", "CohortSampler", "Shifts", "SizeSampler", "UniformSampler"]

load_on_use(__name__)
