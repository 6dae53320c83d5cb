"""Clients' models in an evaluation: their mixture where they train alone, and those with tensors that they keep."""

from collections.abc import Mapping
from functools import partial

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch import Tensor

from fedgen.data.optional_attributes import optional
from fedgen.evaluation import Evaluator, mixture
from fedgen.evaluation.image_sampling import Sample, inside
from fedgen.evaluation.names import LOCAL_NOTE
from fedgen.evaluation.own_models import OwnModels
from fedgen.evaluation.panels import Panel
from fedgen.evaluation.runs.evaluate_run import refuse_mixture
from fedgen.federated import FedAvgStrategy
from fedgen.models.optional_hooks import TurnTakingStrategy


def sampler_in(trainer: Trainer, evaluator: Evaluator, module: LightningModule) -> tuple[Sample, str]:
    """Return the model's sampler, or that of the mixture of the clients' models, and a note that says so."""
    sample, strategy = evaluator.sampler_of(module), trainer.strategy
    if not optional(strategy, TurnTakingStrategy, "local_only"):
        return sample, ""
    if trainer.world_size > 1:
        raise MisconfigurationException(
            f"clients that train alone are on {trainer.world_size} processes, and their mixture is sampled in one:"
            " pass Trainer(devices=1, num_nodes=1)"
        )
    refuse_mixture(evaluator)
    weights = evaluator.client_weights()
    samplers = [inside(partial(strategy.client_model, k), sample) for k in range(len(weights))]
    return mixture(samplers, weights), LOCAL_NOTE


def personal_panels(trainer: Trainer, models: OwnModels, module: LightningModule, remote: str) -> list[Panel]:
    """The embeddings whose scores depend on tensors that clients keep, where something is exchanged beside them."""
    strategy = trainer.strategy
    if not isinstance(strategy, FedAvgStrategy) or strategy.local_only or not strategy.own_tensors:
        return []
    found = models.hanging_on(module, strategy.own_tensors)
    models.refuse(found)
    if found and remote:
        names = ", ".join(list(strategy.own_tensors)[:3])
        raise MisconfigurationException(
            f"scores depend on tensors that clients keep to themselves ({names}, ...), which {remote}, or leave"
            " these scores out"
        )
    return found


def personal_tensors(
    trainer: Trainer, models: OwnModels, module: LightningModule, remote: str
) -> Mapping[int, Mapping[str, Tensor]]:
    """Return the tensors that clients keep, where something is exchanged beside them; see `personal_panels`."""
    strategy = trainer.strategy
    if not isinstance(strategy, FedAvgStrategy) or strategy.local_only:
        return {}
    if remote:
        personal_panels(trainer, models, module, remote)  # nothing depends on them by now either
        return {}
    return strategy.personal_tensors
