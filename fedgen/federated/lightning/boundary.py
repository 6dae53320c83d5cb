"""The beginnings and ends of rounds in Lightning's loops, and rounds cut short."""

from typing import TYPE_CHECKING, Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

from fedgen.federated.left_out import report_of, tell
from fedgen.federated.lightning.lightning_internals import hold_checkpoint, will_skip
from fedgen.models.optional_hooks import scaler_of
from fedgen.own_code import rank_zero_warn

if TYPE_CHECKING:
    from fedgen.federated.strategy import FedAvgStrategy


class RoundBoundary(Callback):
    """Drops a round that Lightning cut short, passes optimizer steps on to the client algorithm, lets simulated time
    pass, logs schedules, tells what the first round found, and at the end who was left out and who was remarked on.

    The strategy puts it first among the trainer's callbacks.
    """

    def __init__(self, strategy: "FedAvgStrategy") -> None:
        self._strategy = strategy

    @classmethod
    def attach(cls, trainer: Trainer, strategy: "FedAvgStrategy") -> None:
        """Makes this the trainer's first callback, once."""
        others = [callback for callback in trainer.callbacks if not isinstance(callback, cls)]
        trainer.callbacks = [cls(strategy), *others]

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._strategy.tell_state()
        self._strategy.checkpoints.keep_last_round()

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Any) -> None:
        skipped = will_skip(scaler_of(trainer), optimizer)
        if self._strategy.in_turns and not skipped:  # the server may take steps of its own after them
            self._strategy.client_algorithm.before_step(optimizer)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.is_last_batch:
            self._drop_if_cut(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._drop_if_cut(trainer)
        if not self._strategy.in_round:
            self._strategy.end_simulated_round()
        for name, value in self._strategy.metrics.items():
            pl_module.log(name, value)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._strategy.tell_state()
        tell(report_of(trainer))

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        if self._strategy.in_round:  # which the strategy drops next
            _hold_checkpoints(trainer)
        if not self._strategy.is_of_clients(exception):  # which says of itself that all clients met it
            tell(report_of(trainer))

    def _drop_if_cut(self, trainer: Trainer) -> None:
        if self._strategy.in_turns:
            self._strategy.drop_round()
            _hold_checkpoints(trainer)
            rank_zero_warn("a round was cut short before its last client's turn and is dropped")


def _hold_checkpoints(trainer: Trainer) -> None:
    """Lets no ModelCheckpoint save at the present step: it would remove an older file for one never written."""
    for callback in trainer.checkpoint_callbacks:
        if isinstance(callback, ModelCheckpoint):
            hold_checkpoint(callback, trainer.global_step)
