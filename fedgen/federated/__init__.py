"""Federated averaging as a Lightning strategy."""

from typing import TYPE_CHECKING

from fedgen.lazy import load_on_use

if TYPE_CHECKING:
    from fedgen.federated.aggregators import Aggregator, Mean
    from fedgen.federated.algorithm import ClientAlgorithm
    from fedgen.federated.checkpoint_io import AtomicCheckpointIO
    from fedgen.federated.private_mean import PrivateMean
    from fedgen.federated.prox import FedProx
    from fedgen.federated.robust import Krum, Median, NormClipping, TrimmedMean
    from fedgen.federated.scaffold import Scaffold
    from fedgen.federated.schedules import (
        Constant,
        ExponentialDecay,
        InverseLinear,
        InverseSquareRoot,
        Schedule,
        WarmUp,
    )
    from fedgen.federated.server_optimizers import FedAdagrad, FedAdam, FedAvgM, FedYogi
    from fedgen.federated.strategy import FedAvgStrategy

__all__ = [
    "Aggregator",
    "AtomicCheckpointIO",
    "ClientAlgorithm",
    "Constant",
    "ExponentialDecay",
    "FedAdagrad",
    "FedAdam",
    "FedAvgM",
    "FedAvgStrategy",
    "FedProx",
    "FedYogi",
    "InverseLinear",
    "InverseSquareRoot",
    "Krum",
    "Mean",
    "Median",
    "NormClipping",
    "PrivateMean",
    "Scaffold",
    "Schedule",
    "TrimmedMean",
    "WarmUp",
]

load_on_use(__name__)
