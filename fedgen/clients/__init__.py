"""Owners of data: partitions, cohorts, turns and the data module."""

from typing import TYPE_CHECKING

from fedgen.lazy import load_on_use

if TYPE_CHECKING:
    from fedgen.clients.client import Client, ThreeWaySplit
    from fedgen.clients.data_module import FederatedDataModule
    from fedgen.clients.samplers.sampler import sample_cohort
    from fedgen.clients.turn import Turn

__all__ = ["Client", "FederatedDataModule", "ThreeWaySplit", "Turn", "sample_cohort"]

load_on_use(__name__)
