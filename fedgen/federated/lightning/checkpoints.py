"""Lightning's checkpoints: written whole or not at all, of whole rounds alone, and read without unpickling objects."""

import copy
import io
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path, PurePath
from typing import Any, TypedDict

import torch
from lightning.fabric.plugins import TorchCheckpointIO
from lightning.fabric.utilities.apply_func import move_data_to_device
from lightning.fabric.utilities.cloud_io import get_filesystem
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities.types import LRSchedulerConfig
from torch.optim import Optimizer
from torch.serialization import get_safe_globals

from fedgen.federated.client_state.exchange import naming_difference
from fedgen.federated.client_state.optimizer_state import check_optimizer_state
from fedgen.federated.federation_state import CHECKPOINT_KEY, OLD_CLOCKS, merge_states, pack_state, unpack_state
from fedgen.federated.lightning.lightning_internals import (
    begin_next_epoch,
    call_module_hook,
    checkpoint_of,
    has_seen_all_batches,
    trained_values,
    validates_after_batch,
)
from fedgen.federated.lightning.one_or_many import RankShares
from fedgen.federated.round import Round
from fedgen.io.field_types import conforms, is_count
from fedgen.io.files import atomic_write
from fedgen.io.tensor_files import check_state, fill_empty, read_torch
from fedgen.models.round_clock import RoundClock
from fedgen.own_code import rank_zero_warn

Checkpoint = dict[str, Any]
HYPERPARAMETERS = (LightningModule.CHECKPOINT_HYPER_PARAMS_KEY, LightningDataModule.CHECKPOINT_HYPER_PARAMS_KEY)
TYPES = ("hparams_type", "datamodule_hparams_type")  # OmegaConf's class, which Lightning writes beside them
SIMULATED = {"simulated": "a simulated clock (speeds=...)", "versions": "clients under way (FedBuffStrategy)"}
ENDS = "total_steps"  # of OneCycleLR, which raises behind its last step
LENGTHS = (ENDS, "total_iters", "T_max")  # of PyTorch's schedulers


def plain(value: Any) -> Any:
    """Return a value with OmegaConf's containers, paths and dataclasses in it as dictionaries, lists and texts."""
    omegaconf: Any = sys.modules.get("omegaconf")  # if it has not been imported, there are no containers of it
    if omegaconf is not None and isinstance(value, omegaconf.Container):
        try:
            value = omegaconf.OmegaConf.to_container(value, resolve=True, enum_to_str=True)
        except omegaconf.errors.OmegaConfBaseException:  # some interpolations cannot be resolved here
            value = omegaconf.OmegaConf.to_container(value, enum_to_str=True)
    if isinstance(value, PurePath):
        return str(value)
    if is_dataclass(value) and not isinstance(value, type) and type(value) not in get_safe_globals():
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    return type(value)(map(plain, value)) if type(value) in (list, tuple) else value


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes to a temporary file in the same folder, flushes and renames; reads without unpickling.

    A run killed in the middle of writing leaves the checkpoint before it untouched. Hyperparameters of OmegaConf, paths
    and dataclasses are written as plain values.

    Examples:
        >>> import tempfile
        >>> from pathlib import Path
        >>> import torch
        >>> from fedgen.federated import AtomicCheckpointIO
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     AtomicCheckpointIO().save_checkpoint({"weight": torch.ones(2)}, Path(folder, "last.ckpt"))
        ...     AtomicCheckpointIO().load_checkpoint(Path(folder, "last.ckpt"))["weight"]
        tensor([1., 1.])
    """

    def save_checkpoint(self, checkpoint: Checkpoint, path: Any, storage_options: Any = None) -> None:
        checkpoint = {k: plain(v) if k in HYPERPARAMETERS else v for k, v in checkpoint.items() if k not in TYPES}
        # remote file systems have their own transactions; storage options are refused there, with the reason
        if "://" in str(path) or storage_options is not None:
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        with atomic_write(Path(path)) as file:
            torch.save(checkpoint, file)

    def load_checkpoint(self, path: Any, map_location: Any = "cpu", weights_only: bool | None = None) -> Checkpoint:
        """Load a checkpoint from a local file, or one that fsspec knows, without unpickling unless
        `weights_only=False`.

        Tensors go to `map_location`, a device or its name; any other value means the CPU.

        Raises:
            FileNotFoundError: if there is no such file.
            ValueError: if it is not a checkpoint, is damaged, or holds objects that would have to be unpickled.
        """
        if weights_only is False:
            return super().load_checkpoint(path, map_location=map_location, weights_only=False)
        if "://" in str(path):
            with get_filesystem(path).open(str(path), "rb") as file:
                found = read_torch(str(path), file=io.BytesIO(file.read()))
        else:
            found = read_torch(path)
        return move_data_to_device(found, map_location) if isinstance(map_location, (str, torch.device)) else found


def settle_loops(checkpoint: Checkpoint) -> Checkpoint:
    """Make the loops of a checkpoint of a round's start, in place, those of the end of the round before it."""
    progress = checkpoint["loops"]["fit_loop"]["epoch_progress"]
    for counts in (progress["total"], progress["current"]):
        counts["ready"] = counts["started"]
    return checkpoint


class RoundCheckpoints:
    """The part of a checkpoint that holds a federation's rounds."""

    def __init__(self, round: Round, shares: RankShares, counts_rounds: bool, simulated: Mapping[str, Any]) -> None:
        self._round, self._clock, self._trainer = round, round.clock, round.clock.trainer
        self._shares, self._counts_rounds, self._simulated = shares, counts_rounds, simulated
        self._due_updates: list[_Update] = []  # of ReduceLROnPlateau, which a loaded checkpoint was written before
        self._start_of_round: Checkpoint | None = None

    @property
    def parts(self) -> dict[str, Any]:
        """The parts of the federation that are packed beside the clients' memory, by name."""
        round = self._round
        return {
            "local": round.local,
            "server_optimizer": round.model.update,
            "algorithm": round.algorithm,
            "aggregator": round.model.aggregator,
            "clock": self._clock,
            "outside": round.outside,
            "exchange": round.exchange,
            "compression": round.compressed,
            **self._simulated,
        }

    def to_write(self, checkpoint: Checkpoint, path: Any) -> Checkpoint | None:
        """Return what is to be written for a checkpoint of Lightning's; None, with a warning, within a round."""
        trainer, epochs = self._trainer, self._trainer.fit_loop.epoch_progress.current
        is_cut = trainer.interrupted and epochs.completed != epochs.ready
        if is_cut and "optimizer_states" in checkpoint and self._start_of_round is not None:
            return self._start_of_round
        if self._round.is_open and trainer.training:
            rank_zero_warn(f"{path} is not written: checkpoints hold whole rounds, and this one is not finished")
            return None
        return self._complete(checkpoint)

    def keep_last_round(self) -> None:
        """Keep, before a round, what `OnExceptionCheckpoint` is to write if the round is interrupted."""
        checkpoint = self._complete(checkpoint_of(self._trainer))
        # not copied: training leaves them as they are
        objects = {key: checkpoint.pop(key) for key in HYPERPARAMETERS if key in checkpoint}
        self._start_of_round = {**copy.deepcopy(move_data_to_device(checkpoint, "cpu")), **objects}

    def _complete(self, checkpoint: Checkpoint) -> Checkpoint:
        """Add the federation's state to a checkpoint, if it is not one of weights alone."""
        if "optimizer_states" in checkpoint:
            state, ranks = pack_state(self._round.memory, self.parts), self._shares.ranks
            if ranks.size > 1:
                state = merge_states(ranks.gather(move_data_to_device(state, "cpu")), self._shares.owners)
            checkpoint[CHECKPOINT_KEY] = {**state, "plateau": self._due_updates or due_updates(self._trainer)}
        return settle_loops(checkpoint)

    def load(self, checkpoint: Mapping[str, Any]) -> None:
        """Take the federation's state of a checkpoint whose weights and optimizers have been loaded."""
        loop, epochs = self._trainer.fit_loop, self._trainer.fit_loop.epoch_progress.current
        if loop.restarting and epochs.ready == epochs.started == epochs.processed:  # saved at the end of a round
            begin_next_epoch(self._trainer)
        if CHECKPOINT_KEY not in checkpoint:  # of ordinary training: the federation starts from its weights
            self._round.model.aggregator.load_state_dict({})
            return
        state = checkpoint[CHECKPOINT_KEY]
        if isinstance(state, Mapping):
            older: dict[str, Any] = {"aggregator": None, "exchange": {"moving": []}, "compression": {"clients": {}}}
            state = {**older, **state}
            check_simulated(state, self._simulated)
            if state.get("version") == OLD_CLOCKS:
                state = self._with_clock(state)
        if self._round.model.trains_others:  # since the setup: callbacks go on where layers had thawed
            self._round.model.renew()
        unpack_state(state, self._round.memory, self.parts, self._round.exchange)
        updates = state.get("plateau", [])  # older ones have none
        if not conforms(updates, list[_Update]):
            raise ValueError("its federation state is damaged: updates of ReduceLROnPlateau have another form")
        self._due_updates = updates

    def update_plateaus(self) -> None:
        """Make the updates of ReduceLROnPlateau that were loaded, as Lightning does, before the first round."""
        trainer, due, self._due_updates = self._trainer, self._due_updates, []
        configs, progress = trainer.lr_scheduler_configs, trainer.fit_loop.epoch_loop.scheduler_progress
        for update in due:
            place, value = update["scheduler"], update["value"]
            if place >= len(configs) or not configs[place].reduce_on_plateau:
                raise MisconfigurationException(
                    f"the checkpoint has an update of ReduceLROnPlateau by {update['monitor']!r} in store, and the"
                    f" module's scheduler {place} is of another class; resume with the same schedulers"
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

    def _with_clock(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return the state of a checkpoint from before `global_step` was one client's count, and set that count."""
        if self._counts_rounds and not isinstance(self._trainer.lightning_module, RoundClock):
            raise MisconfigurationException(
                "it was written before version 0.2, when batch_idx counted a client's iterations over all rounds and"
                " global_step the steps of all clients; pass FedAvgStrategy(batch_idx='client') to go on with the old"
                " batch_idx (global_step becomes one client's count), or begin another run from its weights"
            )
        total, iterations = self._clock.steps, sum(state["iterations"].values())
        rounds = self._trainer.fit_loop.epoch_progress.current.processed
        if iterations:
            self._clock.set_steps(round(total * rounds * self._clock.interval / iterations))
        return {**state, "clock": {"total_steps": total}, "outside": {"values": {}, "personal": {}}}


def check_simulated(state: Mapping[str, Any], parts: Mapping[str, Any]) -> None:
    """Refuse a checkpoint with a simulated clock or clients under way where this run has none, and the reverse."""
    for name, what in SIMULATED.items():
        if (name in state) != (name in parts):
            how = f"holds {what}, and here is none" if name in state else f"lacks {what}"
            raise MisconfigurationException(
                f"the checkpoint {how}; resume with the strategy and the speeds that it was written with, or begin"
                " another run from its weights"
            )


@contextmanager
def naming_checkpoint(trainer: Trainer) -> Iterator[None]:
    try:
        yield
    except (ValueError, MisconfigurationException) as error:
        raise MisconfigurationException(f"{trainer.ckpt_path}: {error}") from error


@contextmanager
def checked_weights(module: Any, checkpoint: Mapping[str, Any]) -> Iterator[None]:
    """Refuse a checkpoint that does not hold a module's weights; errors of the block name where the two differ."""
    state = checkpoint.get("state_dict")
    if not isinstance(state, Mapping) or not all(isinstance(name, str) for name in state):
        raise ValueError("it holds no model: its state_dict is not a mapping of names")
    fill_empty(module, state)
    with naming_difference(module.state_dict(), state):
        check_state(module, state)
        yield


def check_optimizers(optimizers: list[Optimizer], schedulers: Sequence[Any], checkpoint: Mapping[str, Any]) -> None:
    """Refuse states of other optimizers, and a longer run than a schedule was made for; warn of other lengths."""
    states, own = checkpoint["optimizer_states"], len(optimizers)
    found = len(states) if isinstance(states, list) else 0
    if found != own:
        raise ValueError(f"it holds the states of {found} optimizers and the model has {own}")
    for optimizer, state in zip(optimizers, states):
        check_optimizer_state(optimizer, state)
    schedules = checkpoint.get("lr_schedulers")
    for scheduler, state in zip(schedulers, schedules if isinstance(schedules, list) else ()):
        for name in LENGTHS:
            made: Any = getattr(scheduler, name, None)
            kept: Any = state.get(name) if isinstance(state, Mapping) else None
            if not (is_count(made) and is_count(kept)) or made == kept:
                continue
            both = f"its {type(scheduler).__name__} has {name}={kept} and the model's now {made}"
            if name == ENDS and made > kept:
                raise ValueError(
                    f"{both}: the learning rates so far were planned for the shorter run, which cannot be extended;"
                    " begin another run, from this checkpoint's weights if you like"
                )
            rank_zero_warn(f"{both}: training goes on with the checkpoint's {kept}")


class _Update(TypedDict):
    """An update of ReduceLROnPlateau that is due; its value is None if it was not known yet."""

    scheduler: int
    monitor: str
    round: int
    value: float | None


def due_updates(trainer: Trainer) -> list[_Update]:
    """Return the updates of ReduceLROnPlateau that Lightning has yet to make with values of the present round."""
    return [
        _Update(
            scheduler=place, monitor=str(c.monitor), round=trainer.current_epoch, value=_value_of(trainer, c.monitor)
        )
        for place, c in enumerate(trainer.lr_scheduler_configs)
        if _is_due(trainer, c)
    ]


def _is_due(trainer: Trainer, config: LRSchedulerConfig) -> bool:
    """Return True if Lightning has yet to update a scheduler with the value of the present round."""
    loop, epochs = trainer.fit_loop, trainer.fit_loop.epoch_progress.current
    return (
        config.reduce_on_plateau
        and trainer.lightning_module.automatic_optimization
        and config.interval == "epoch"
        and (trainer.current_epoch + 1) % config.frequency == 0
        and not loop.restarting  # then it never will
        and epochs.completed < epochs.started == epochs.ready
        and has_seen_all_batches(trainer)
    )


def _value_of(trainer: Trainer, monitor: str | None) -> float | None:
    """Return the value of a metric at the round's end; None if it is not known yet."""
    loop, epochs = trainer.fit_loop, trainer.fit_loop.epoch_progress.current
    value = None
    if epochs.processed <= epochs.completed:  # not in `on_train_epoch_end`
        value = trained_values(trainer).metrics(on_step=False)["callback"].get(monitor)
        batches = loop.epoch_loop.batch_progress.current
        if value is None and batches.completed < batches.ready and validates_after_batch(trainer):
            return None  # validation is to come
    value = trainer.callback_metrics.get(monitor) if value is None else value
    return None if value is None else float(value)
