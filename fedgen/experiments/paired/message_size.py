"""The size of what a client of a finished run sends the server in a round."""

from collections.abc import Iterable

import torch
from torch import Tensor

from fedgen.evaluation.runs.checkpoint_names import LAST
from fedgen.evaluation.runs.rebuild import RECIPE, rebuild
from fedgen.experiments.engine.trainings import Training
from fedgen.federated.client_state.exchange import Exchange
from fedgen.federated.client_state.trained_parameters import trained_parameters
from fedgen.federated.federation_state import CHECKPOINT_KEY
from fedgen.io.files import read_yaml
from fedgen.io.tensor_files import tensors_in
from fedgen.models.checkpoint_file import read_checkpoint


def message_bytes(training: Training) -> dict[str, int]:
    """Bytes of "weights" (with floating buffers), averaged "optimizer states" and "control variates".

    Args:
        training: that is done, under FedAvgStrategy.
    """
    module, _ = rebuild(training.place)
    settings = read_yaml(training.place / RECIPE)["trainer"]["strategy"].get("init_args") or {}
    checkpoint = read_checkpoint(training.place / LAST)
    exchange = Exchange(module, trained_parameters(module, ()), settings.get("personal") or ())
    averaged = settings.get("optimizer_state") == "average"
    servers = getattr(module, "server_optimizers", ())
    states = [state["state"] for i, state in enumerate(checkpoint["optimizer_states"]) if averaged and i not in servers]
    variates = checkpoint[CHECKPOINT_KEY]["algorithm"].get("server", {})
    return {
        "weights": exchange.num_bytes,
        "optimizer states": _floating(tensors_in(states)),
        "control variates": _floating(tensors_in(variates)),
    }


def _floating(tensors: Iterable[Tensor]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors if torch.is_floating_point(t))
