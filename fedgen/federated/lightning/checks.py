"""Settings, Trainers and batches that federated averaging refuses or warns of."""

from typing import Any

from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import (
    BatchSizeFinder,
    LearningRateFinder,
    ModelCheckpoint,
    StochasticWeightAveraging,
    WeightAveraging,
)
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities.model_helpers import is_overridden

from fedgen.federated.algorithms.algorithm import ClientAlgorithm
from fedgen.federated.lightning.lightning_internals import saves_within_epochs, validation_interval
from fedgen.federated.schedules import Schedule
from fedgen.models.optional_hooks import data_module_of
from fedgen.own_code import rank_zero_warn


def check_settings(
    interval: int, cohort_size: int | None, client_weights: str, optimizer_state: str, batch_idx: str = "round"
) -> None:
    """Refuses settings of the strategy that are out of range.

    Raises:
        ValueError: naming the setting.
    """
    if interval < 1:
        raise ValueError(f"communication_interval={interval}: a turn has at least one iteration")
    if cohort_size is not None and cohort_size < 1:
        raise ValueError(f"cohort_size={cohort_size}: a round has at least one client")
    if client_weights not in ("examples", "uniform"):
        raise ValueError(f"client_weights={client_weights!r}: choose 'examples' or 'uniform'")
    if optimizer_state not in ("reset", "keep", "average"):
        raise ValueError(f"optimizer_state={optimizer_state!r}: choose 'reset', 'keep' or 'average'")
    if batch_idx not in ("round", "client"):
        raise ValueError(f"batch_idx={batch_idx!r}: choose 'round' or 'client'")


def refuse_batch(batch: Any) -> None:
    """Refuses a batch that is no client's turn.

    Raises:
        MisconfigurationException: naming what it is.
    """
    raise MisconfigurationException(
        f"FedAvgStrategy got a batch of type {type(batch).__name__}; train with a FederatedDataModule, whose"
        " loader hands it one client's turn at a time"
    )


def warn_unseen_steps(algorithm: ClientAlgorithm, schedule: Schedule | None) -> None:
    """Warns, if something was to act on the steps of a turn, that none of them came by."""
    if schedule is not None or type(algorithm) is not ClientAlgorithm:
        rank_zero_warn(
            "a client took no optimizer step through Lightning in its turn, so the client algorithm and schedule did"
            " not act on it; under manual optimisation step what `self.optimizers()` gives, not the raw optimizers"
        )


def warn_of_exchange_in_turn() -> None:
    """Warns of values that processes would exchange in the middle of turns, which differ between them."""
    rank_zero_warn(
        "self.log(..., sync_dist=True) in a training_step, or another reduction in it: clients' turns differ between"
        " processes, so within a turn nothing is exchanged; logged values are brought together at the round's end",
        category=ExchangeInTurnWarning,
    )


class ExchangeInTurnWarning(UserWarning):
    """A module asked processes to exchange values within clients' turns."""


def warn_of_remainder(interval: int, iterations: int) -> None:
    """Warns that gradients which a module accumulates by hand were left at a turn's end."""
    rank_zero_warn(
        f"the module accumulates gradients by hand, and those of the last {iterations} of {interval} iterations were"
        " dropped at a turn's end without a step; step where self.trainer.is_last_batch is true, too, or let"
        " communication_interval be a multiple"
    )


def check_trainer(trainer: Trainer) -> None:
    """Refuses Trainer settings that would cut a round.

    Raises:
        MisconfigurationException: naming the setting and the remedy.
    """
    # a float is a fraction of the round; an integer (1 too) or a time means after so many turns or seconds
    interval = validation_interval(trainer)
    if not (isinstance(interval, float) and interval == 1.0):
        raise MisconfigurationException(
            f"val_check_interval={interval!r}: validation inside a round would see a client's model;"
            " use check_val_every_n_epoch, which counts rounds"
        )
    for callback in trainer.checkpoint_callbacks:
        if isinstance(callback, ModelCheckpoint) and saves_within_epochs(callback):
            raise MisconfigurationException(
                "ModelCheckpoint(every_n_train_steps=... or train_time_interval=...) would save inside a round; use"
                " every_n_epochs, which counts rounds"
            )
    for callback in trainer.callbacks:
        if isinstance(callback, StochasticWeightAveraging) or _averages_steps(callback):
            raise MisconfigurationException(
                f"{type(callback).__name__} would average clients' models in the middle of a round; use"
                " EMAWeightAveraging(update_every_n_steps=0, update_starting_at_epoch=0), which averages the server's"
            )
    module, data = trainer.lightning_module, data_module_of(trainer)
    if any(owner is not None and is_overridden("on_before_batch_transfer", owner) for owner in (module, data)):
        raise MisconfigurationException(
            "on_before_batch_transfer would receive a client's turn, not a batch; override on_after_batch_transfer"
        )
    # A turn is long: without this, no turn of a small federation would ever be logged.
    trainer.log_every_n_steps = 1


def check_finders(trainer: Trainer) -> None:
    """Refuses what tries a value a batch, `Tuner.lr_find` among it: a batch is a client's whole turn.

    Raises:
        MisconfigurationException: naming the callback and the remedy.
    """
    called = {
        LearningRateFinder: ("LearningRateFinder (Tuner.lr_find)", "lr_find", "learning rate"),
        BatchSizeFinder: ("BatchSizeFinder (Tuner.scale_batch_size)", "scale_batch_size", "batch size"),
    }
    for callback in trainer.callbacks:
        for kind, (name, method, what) in called.items():
            if isinstance(callback, kind):
                raise MisconfigurationException(
                    f"{name} tries another {what} in each batch, and under FedAvgStrategy that is a client's"
                    f" whole turn; look for it without the strategy, Tuner(Trainer()).{method}(module, datamodule=data)"
                    " on the same data module, which then pools the clients, and train federated with what it finds"
                )


def _averages_steps(callback: Callback) -> bool:
    """Whether a weight average would be updated after steps, sooner or later."""
    # Lightning's EMAWeightAveraging updates at such steps alone; 0 for none
    late = 10**9 * getattr(callback, "update_every_n_steps", 1)
    return isinstance(callback, WeightAveraging) and callback.should_update(step_idx=late)
