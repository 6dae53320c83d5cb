"""The checkpoint of the last whole round, for callbacks that write one when training is interrupted."""

import copy
from collections.abc import Callable
from typing import Any

from lightning.fabric.utilities.apply_func import move_data_to_device
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import OnExceptionCheckpoint

from fedgen.federated.lightning.lightning_internals import begin_next_epoch, checkpoint_of

Checkpoint = dict[str, Any]
HYPERPARAMETERS = (LightningModule.CHECKPOINT_HYPER_PARAMS_KEY, LightningDataModule.CHECKPOINT_HYPER_PARAMS_KEY)


class LastRound:
    """Keeps, while a round trains, a copy of the checkpoint of its start; in memory, and only for those who ask for it.

    That is where an `OnExceptionCheckpoint` is among the callbacks: a round that is interrupted, or whose validation or
    evaluation is, is trained again from its start, to the same bits.
    """

    def __init__(self) -> None:
        self._kept: Checkpoint | None = None

    def keep(self, trainer: Trainer, complete: Callable[[Checkpoint], Checkpoint]) -> None:
        """Takes the checkpoint at a round's start; each rank its own."""
        if any(isinstance(callback, OnExceptionCheckpoint) for callback in trainer.callbacks):
            checkpoint = complete(checkpoint_of(trainer))
            # not copied: training leaves them as they are
            objects = {key: checkpoint.pop(key) for key in HYPERPARAMETERS if key in checkpoint}
            self._kept = {**copy.deepcopy(move_data_to_device(checkpoint, "cpu")), **objects}

    def instead_of(self, checkpoint: Checkpoint, trainer: Trainer) -> Checkpoint | None:
        """Return what is written for a checkpoint of an exception; None for the checkpoint itself."""
        epochs = trainer.fit_loop.epoch_progress.current
        is_over = epochs.completed == epochs.ready
        is_whole = "optimizer_states" in checkpoint  # and not weights alone
        return self._kept if trainer.interrupted and is_whole and not is_over else None


def settle_loops(checkpoint: Checkpoint) -> Checkpoint:
    """Makes the loops of a checkpoint of a round's start, in place, those of the end of the round before it.

    Lightning takes the round that has been made ready for one that was trained, and would leave it out.
    """
    progress = checkpoint["loops"]["fit_loop"]["epoch_progress"]
    for counts in (progress["total"], progress["current"]):
        counts["ready"] = counts["started"]
    return checkpoint


def leave_ended_round(trainer: Trainer) -> None:
    """Lets training that goes on from the end of a round begin with the next one; once its loops are restored.

    Under `max_steps` Lightning takes every checkpoint for one of the middle of an epoch: it would call the hooks of the
    round's end a second time and count the round twice, so that one too few is trained.
    """
    loop, epochs = trainer.fit_loop, trainer.fit_loop.epoch_progress.current
    if loop.restarting and epochs.ready == epochs.started == epochs.processed:
        begin_next_epoch(trainer)
