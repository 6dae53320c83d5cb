"""Where rounds begin and end in Lightning's loops: checks before training, and what happens to a round cut short."""

from typing import TYPE_CHECKING, Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint, StochasticWeightAveraging, WeightAveraging
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning.pytorch.utilities.rank_zero import rank_zero_warn

from fedgen.clients.turn import Turn

if TYPE_CHECKING:
    from fedgen.federated.strategy import FedAvgStrategy


def check_settings(interval: int, cohort_size: int | None, client_weights: str, optimizer_state: str) -> None:
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


def check_devices(num_nodes: int, num_processes: int) -> None:
    """Refuses more than one device.

    Raises:
        MisconfigurationException: with the numbers.
    """
    if num_processes * num_nodes != 1:
        raise MisconfigurationException(
            f"FedAvgStrategy simulates all clients in one process, but the Trainer asks for"
            f" {num_nodes} node(s) x {num_processes} device(s); pass Trainer(devices=1, num_nodes=1)"
        )


def check_turn(batch: Any) -> None:
    """Refuses a batch that is no client's turn.

    Raises:
        MisconfigurationException: naming what it is.
    """
    if not isinstance(batch, Turn):
        raise MisconfigurationException(
            f"FedAvgStrategy got a batch of type {type(batch).__name__}; train with a FederatedDataModule, whose"
            " loader hands it one client's turn at a time"
        )


def check_trainer(trainer: Trainer) -> None:
    """Refuses Trainer settings that would cut a round.

    Raises:
        MisconfigurationException: naming the setting and the remedy.
    """
    if trainer.accumulate_grad_batches != 1:
        raise MisconfigurationException(
            f"accumulate_grad_batches={trainer.accumulate_grad_batches}: one Lightning batch is a client's whole turn,"
            " so gradients would add up over clients; use a larger batch_size in the data module instead"
        )
    # a float is a fraction of the round; an integer (1 too) or a time means after so many turns or seconds
    interval = getattr(trainer, "_val_check_time_interval", None) or trainer.val_check_interval
    if not (isinstance(interval, float) and interval == 1.0):
        raise MisconfigurationException(
            f"val_check_interval={interval!r}: validation inside a round would see a client's model;"
            " use check_val_every_n_epoch, which counts rounds"
        )
    for callback in trainer.checkpoint_callbacks:
        if isinstance(callback, ModelCheckpoint) and (callback._every_n_train_steps or callback._train_time_interval):
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
    module, data = trainer.lightning_module, getattr(trainer, "datamodule", None)
    if any(owner is not None and is_overridden("on_before_batch_transfer", owner) for owner in (module, data)):
        raise MisconfigurationException(
            "on_before_batch_transfer would receive a client's turn, not a batch; override on_after_batch_transfer"
        )
    # A turn is long: without this, no turn of a small federation would ever be logged.
    trainer.log_every_n_steps = 1


def _averages_steps(callback: Callback) -> bool:
    """Whether a weight average would be updated after steps, sooner or later."""
    late = 10**9 * getattr(callback, "update_every_n_steps", 1)
    return isinstance(callback, WeightAveraging) and callback.should_update(step_idx=late)


class RoundBoundary(Callback):
    """Drops a round that Lightning cut short, passes optimizer steps on to the client algorithm, logs schedules.

    The strategy puts it first among the trainer's callbacks.
    """

    def __init__(self, strategy: "FedAvgStrategy") -> None:
        self._strategy = strategy

    @classmethod
    def attach(cls, trainer: Trainer, strategy: "FedAvgStrategy") -> None:
        """Makes this the trainer's first callback, once."""
        others = [callback for callback in trainer.callbacks if not isinstance(callback, cls)]
        trainer.callbacks = [cls(strategy), *others]

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Any) -> None:
        # the server may take steps of its own after the turns
        if self._strategy.in_turns and not _will_be_skipped(
            getattr(trainer.precision_plugin, "scaler", None), optimizer
        ):
            self._strategy.client_algorithm.before_step(optimizer)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.is_last_batch:
            self._drop_if_cut(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._drop_if_cut(trainer)
        for name, factor in self._strategy.factors.items():
            pl_module.log(name, factor)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        if self._strategy.in_round:  # which the strategy drops next
            _hold_checkpoints(trainer)

    def _drop_if_cut(self, trainer: Trainer) -> None:
        if self._strategy.in_turns:
            self._strategy.drop_round()
            _hold_checkpoints(trainer)
            rank_zero_warn("a round was cut short before its last client's turn and is dropped")


def _will_be_skipped(scaler: Any, optimizer: Any) -> bool:
    """Whether an fp16 grad scaler will skip an optimizer's step, for gradients that overflowed."""
    found = getattr(scaler, "_per_optimizer_states", {}).get(id(optimizer), {}).get("found_inf_per_device", {})
    return any(bool(overflow) for overflow in found.values())


def _hold_checkpoints(trainer: Trainer) -> None:
    """Lets no ModelCheckpoint save at the present step: it would remove an older file for one never written."""
    for callback in trainer.checkpoint_callbacks:
        if isinstance(callback, ModelCheckpoint):
            callback._last_global_step_saved = trainer.global_step
