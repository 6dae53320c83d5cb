"""Federated averaging as a Lightning strategy."""

from typing import TYPE_CHECKING

from fedgen.lazy import load_on_use

if TYPE_CHECKING:
    from fedgen.federated.aggregators.mean import Aggregator, Mean, QFedAvg
    from fedgen.federated.aggregators.private_mean import PrivateMean
    from fedgen.federated.aggregators.robust import CollectingAggregator, Krum, Median, NormClipping, TrimmedMean
    from fedgen.federated.algorithms.algorithm import ClientAlgorithm, Ditto, FedProx, FedRep
    from fedgen.federated.algorithms.scaffold import Scaffold
    from fedgen.federated.fedbuff import FedBuffStrategy
    from fedgen.federated.lightning.checkpoints import AtomicCheckpointIO
    from fedgen.federated.schedules import (
        Constant,
        Cooldown,
        ExponentialDecay,
        InverseLinear,
        InverseSquareRoot,
        Schedule,
        WarmUp,
    )
    from fedgen.federated.server_optimizers import FedAdagrad, FedAdam, FedAvgM, FedYogi
    from fedgen.federated.simulated_clock import ClientSpeeds
    from fedgen.federated.strategy import FedAvgStrategy
    from fedgen.federated.vectorised.vectorised_turns import VectorisedTurns

__all__ = [
    "Aggregator",
    "AtomicCheckpointIO",
    "ClientAlgorithm",
    "ClientSpeeds",
    "CollectingAggregator",
    "Constant",
    "Cooldown",
    "Ditto",
    "ExponentialDecay",
    "FedAdagrad",
    "FedAdam",
    "FedAvgM",
    "FedAvgStrategy",
    "FedBuffStrategy",
    "FedProx",
    "FedRep",
    "FedYogi",
    "InverseLinear",
    "InverseSquareRoot",
    "Krum",
    "Mean",
    "Median",
    "NormClipping",
    "PrivateMean",
    "QFedAvg",
    "Scaffold",
    "Schedule",
    "TrimmedMean",
    "VectorisedTurns",
    "WarmUp",
]

load_on_use(__name__)
