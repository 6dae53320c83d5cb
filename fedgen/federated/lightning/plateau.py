"""Updates of ReduceLROnPlateau across a resume.

Lightning writes the checkpoints of an epoch's end before it updates these schedulers, whose values it does not save,
and leaves the update out when it goes on. Here a checkpoint holds the values, and the update is made up for.
"""

from collections.abc import Mapping
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities.types import LRSchedulerConfig

from fedgen.federated.lightning.lightning_internals import (
    call_module_hook,
    has_seen_all_batches,
    trained_values,
    validates_after_batch,
)
from fedgen.io.files import is_count
from fedgen.own_code import rank_zero_warn

Update = dict[str, Any]  # "scheduler": its place, "monitor": a name, "round": which, "value": a number, None if unknown


def check_plateaus(trainer: Trainer) -> None:
    """Refuses ReduceLROnPlateau with `interval="step"`, where Lightning is to move it.

    Raises:
        MisconfigurationException: naming the setting and the remedy.
    """
    for config in trainer.lr_scheduler_configs if trainer.lightning_module.automatic_optimization else ():
        if config.reduce_on_plateau and config.interval == "step":
            raise MisconfigurationException(
                f"ReduceLROnPlateau with interval='step' would move after clients' turns, by what one client logged"
                f" ({config.monitor!r}); pass interval='epoch', which counts rounds"
            )


class PlateauUpdates:
    """The updates that a checkpoint was written before."""

    def __init__(self) -> None:
        self._loaded: list[Update] = []

    def state_dict(self, trainer: Trainer) -> list[Update]:
        """Return what Lightning has yet to do with the values of the present round; plain types."""
        if self._loaded:  # of a fit that has not begun
            return self._loaded
        configs = enumerate(trainer.lr_scheduler_configs)
        return [_pending(trainer, place, config) for place, config in configs if _is_due(trainer, config)]

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes what a federation's state holds of `state_dict`; older ones hold nothing.

        Raises:
            ValueError: if it is damaged.
        """
        loaded = state.get("plateau", [])
        if not isinstance(loaded, list) or not all(map(_is_update, loaded)):
            raise ValueError("its federation state is damaged: updates of ReduceLROnPlateau are none")
        self._loaded = loaded

    def apply(self, trainer: Trainer) -> None:
        """Makes the updates that were loaded, as Lightning does, before the first round.

        Raises:
            MisconfigurationException: if there is no such scheduler.
        """
        loaded, self._loaded = self._loaded, []
        configs, progress = trainer.lr_scheduler_configs, trainer.fit_loop.epoch_loop.scheduler_progress
        for update in loaded:
            place, value = update["scheduler"], update["value"]
            if place >= len(configs) or not configs[place].reduce_on_plateau:
                raise MisconfigurationException(
                    f"the checkpoint has an update of ReduceLROnPlateau by {update['monitor']!r} in store, and the"
                    f" module's scheduler {place} is none; resume with the same schedulers"
                )
            if value is None:
                rank_zero_warn(
                    f"the checkpoint was written before {update['monitor']!r} of round {update['round']} was known:"
                    " ReduceLROnPlateau does without it; save at the ends of rounds, as RoundCheckpoint does"
                )
                continue
            progress.increment_ready()
            metric = torch.tensor(value, dtype=torch.float64)
            call_module_hook(trainer, "lr_scheduler_step", configs[place].scheduler, metric)
            progress.increment_completed()


def _is_update(value: Any) -> bool:
    return (
        isinstance(value, Mapping)
        and value.keys() == {"scheduler", "monitor", "round", "value"}
        and is_count(value["scheduler"])
        and isinstance(value["monitor"], str)
        and is_count(value["round"])
        and (value["value"] is None or type(value["value"]) is float)
    )


def _is_due(trainer: Trainer, config: LRSchedulerConfig) -> bool:
    """Whether Lightning will update a scheduler with the value of the present round, and has not yet."""
    loop = trainer.fit_loop
    epochs, round = loop.epoch_progress.current, trainer.current_epoch
    return (
        config.reduce_on_plateau
        and trainer.lightning_module.automatic_optimization
        and config.interval == "epoch"
        and (round + 1) % config.frequency == 0
        and not loop.restarting  # then it never will
        and epochs.completed < epochs.started == epochs.ready
        and has_seen_all_batches(trainer)
    )


def _pending(trainer: Trainer, place: int, config: LRSchedulerConfig) -> Update:
    assert config.monitor is not None
    value = _value_of(trainer, config.monitor)
    known = None if value is None else float(value)
    return {"scheduler": place, "monitor": config.monitor, "round": trainer.current_epoch, "value": known}


def _value_of(trainer: Trainer, monitor: str) -> Any:
    """The value that a metric has at the round's end; None if that is not known yet."""
    loop = trainer.fit_loop
    if loop.epoch_progress.current.processed > loop.epoch_progress.current.completed:  # in `on_train_epoch_end`
        return trainer.callback_metrics.get(monitor)
    trained = trained_values(trainer).metrics(on_step=False)["callback"]
    if monitor in trained:
        return trained[monitor]
    batches = loop.epoch_loop.batch_progress.current
    if batches.completed < batches.ready and validates_after_batch(trainer):  # validation is to come
        return None
    return trainer.callback_metrics.get(monitor)
