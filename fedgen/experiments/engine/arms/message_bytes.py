"""Bytes that a client sends in a round of a training that is over, by what they are for."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from fedgen.class_paths import import_by_path
from fedgen.evaluation.names import LAST
from fedgen.evaluation.runs.rebuild import RECIPE, rebuild
from fedgen.experiments.engine.trainings import Training
from fedgen.federated.algorithms.algorithm import ClientAlgorithm
from fedgen.federated.client_state.exchange import Exchange
from fedgen.federated.compression import Compressor
from fedgen.federated.federation_state import CHECKPOINT_KEY
from fedgen.federated.server_model import compressed_bytes, trained_parameters
from fedgen.io.files import read_yaml
from fedgen.io.tensor_files import tensors_in
from fedgen.models.checkpoint_file import read_checkpoint


def message_bytes(training: Training) -> dict[str, int]:
    """Bytes of "weights" (with buffers that turns change), averaged "optimizer states" and "control variates".

    Where the recipe compresses updates, trained parameters count as compressed. Control variates stand for all that the
    recipe's client algorithm sends beside the model (`ClientAlgorithm.num_bytes`).

    Args:
        training: that is done, under FedAvgStrategy.
    """
    module, _ = rebuild(training.place)
    settings = read_yaml(training.place / RECIPE)["trainer"]["strategy"].get("init_args") or {}
    checkpoint = read_checkpoint(training.place / LAST)
    state = checkpoint[CHECKPOINT_KEY]
    moving = state.get("exchange", {}).get("moving", ())
    exchange = Exchange(module, trained_parameters(module, ()), settings.get("personal") or (), moving=moving)
    compressor: Compressor | None = _part(settings, "compression")
    if compressor is not None:
        exchange.compressed = compressed_bytes(compressor, exchange.trainable)
    algorithm: ClientAlgorithm = _part(settings, "client_algorithm") or ClientAlgorithm()
    averaged = settings.get("optimizer_state") == "average"
    servers = getattr(module, "server_optimizers", ())
    states = [state["state"] for i, state in enumerate(checkpoint["optimizer_states"]) if averaged and i not in servers]
    return {
        "weights": exchange.num_bytes,
        "optimizer states": _floating(tensors_in(states)),
        "control variates": algorithm.num_bytes(exchange.trainable),
    }


def _part(settings: Mapping[str, Any], name: str) -> Any:
    """An object of a strategy's settings; None if there is none."""
    given = settings.get(name)
    return import_by_path(given["class_path"])(**(given.get("init_args") or {})) if given else None


def _floating(tensors: Iterable[Tensor]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors if torch.is_floating_point(t))
