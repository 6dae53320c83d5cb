"""The federation's part in Lightning's checkpoints, which hold whole rounds alone."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from lightning.fabric.utilities.apply_func import move_data_to_device
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch.optim import Optimizer

from fedgen.federated.client_state.exchange import naming_difference
from fedgen.federated.client_state.optimizer_state import check_optimizer_state
from fedgen.federated.federation_state import CHECKPOINT_KEY, OLD_CLOCKS, merge_states, pack_state, unpack_state
from fedgen.federated.lightning.checks import PlateauUpdates
from fedgen.federated.lightning.lightning_internals import begin_next_epoch, checkpoint_of
from fedgen.federated.lightning.one_or_many import RankShares
from fedgen.federated.round import Round
from fedgen.federated.trainer_patches import TurnClock
from fedgen.io.files import is_count
from fedgen.io.tensor_files import check_state, fill_empty
from fedgen.models.rounds.round_clock import RoundClock
from fedgen.own_code import rank_zero_warn

Checkpoint = dict[str, Any]
ENDS = "total_steps"  # of OneCycleLR, which raises behind its last step
SIMULATED = {"simulated": "a simulated clock (speeds=...)", "versions": "clients under way (FedBuffStrategy)"}
LENGTHS = (ENDS, "total_iters", "T_max")  # of PyTorch's schedulers


HYPERPARAMETERS = (LightningModule.CHECKPOINT_HYPER_PARAMS_KEY, LightningDataModule.CHECKPOINT_HYPER_PARAMS_KEY)


class LastRound:
    """Keeps, while a round trains, a copy of the checkpoint of its start."""

    def __init__(self) -> None:
        self._kept: Checkpoint | None = None

    def keep(self, trainer: Trainer, complete: Callable[[Checkpoint], Checkpoint]) -> None:
        """Takes the checkpoint at a round's start; each rank its own."""
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
    """Makes the loops of a checkpoint of a round's start, in place, those of the end of the round before it."""
    progress = checkpoint["loops"]["fit_loop"]["epoch_progress"]
    for counts in (progress["total"], progress["current"]):
        counts["ready"] = counts["started"]
    return checkpoint


def leave_ended_round(trainer: Trainer) -> None:
    """Lets training that goes on from the end of a round begin with the next one; once its loops are restored."""
    loop, epochs = trainer.fit_loop, trainer.fit_loop.epoch_progress.current
    if loop.restarting and epochs.ready == epochs.started == epochs.processed:
        begin_next_epoch(trainer)


class RoundCheckpoints:
    """The part of a checkpoint that holds a federation's rounds."""

    def __init__(
        self,
        trainer: Trainer,
        round: Round,
        clock: TurnClock,
        shares: RankShares,
        counts_rounds: bool,
        simulated: Mapping[str, Any],
    ) -> None:
        self._simulated = simulated
        self._trainer, self._round, self._clock, self._shares = trainer, round, clock, shares
        self._counts_rounds = counts_rounds
        self.plateaus, self._last_round = PlateauUpdates(), LastRound()

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

    # ---- writing ----

    def to_write(self, checkpoint: Checkpoint, path: Any) -> Checkpoint | None:
        """Return what is to be written for a checkpoint of Lightning's; None, with a warning, within a round."""
        if (kept := self._last_round.instead_of(checkpoint, self._trainer)) is not None:
            return kept
        if self._round.is_open and self._trainer.training:
            rank_zero_warn(f"{path} is not written: checkpoints hold whole rounds, and this one is not finished")
            return None
        return self._complete(checkpoint)

    def keep_last_round(self) -> None:
        """Keep, before a round, what `OnExceptionCheckpoint` is to write if the round is interrupted."""
        self._last_round.keep(self._trainer, self._complete)

    def _complete(self, checkpoint: Checkpoint) -> Checkpoint:
        """Add the federation's state to a checkpoint, if it is not one of weights alone."""
        if "optimizer_states" in checkpoint:
            state, ranks = pack_state(self._round.memory, self.parts), self._shares.ranks
            if ranks.size > 1:
                state = merge_states(ranks.gather(move_data_to_device(state, "cpu")), self._shares.owners)
            checkpoint[CHECKPOINT_KEY] = {**state, "plateau": self.plateaus.state_dict(self._trainer)}
        return settle_loops(checkpoint)

    # ---- reading ----

    def load(self, checkpoint: Mapping[str, Any]) -> None:
        """Take the federation's state of a checkpoint whose weights and optimizers have been loaded."""
        leave_ended_round(self._trainer)
        if CHECKPOINT_KEY not in checkpoint:  # of ordinary training: the federation starts from its weights
            self._round.model.aggregator.load_state_dict({})
            return
        state = checkpoint[CHECKPOINT_KEY]
        if isinstance(state, Mapping):
            state = {
                "aggregator": None,
                "exchange": {"moving": []},
                "compression": {"clients": {}},
                **state,
            }  # older checkpoints have none
            check_simulated(state, self._simulated)
            if state.get("version") == OLD_CLOCKS:
                state = self._with_clock(state)
        if self._round.model.trains_others:  # since the setup: callbacks go on where layers had thawed
            self._round.model.renew()
        unpack_state(state, self._round.memory, self.parts, self._round.exchange)
        self.plateaus.load_state_dict(state)

    def _with_clock(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return the state of a checkpoint from before `global_step` was one client's count, which it is made here."""
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
    """Refuse to go on with or without a simulated clock, or clients under way, where the checkpoint was otherwise."""
    for name, what in SIMULATED.items():
        if (name in state) != (name in parts):
            how = f"holds {what}, and here is none" if name in state else f"lacks {what}"
            raise MisconfigurationException(
                f"the checkpoint {how}; resume with the strategy and the speeds that it was written with, or begin"
                " another run from its weights"
            )


@contextmanager
def naming_checkpoint(trainer: Trainer) -> Iterator[None]:
    """Say in errors which checkpoint they are about."""
    try:
        yield
    except (ValueError, MisconfigurationException) as error:
        raise MisconfigurationException(f"{trainer.ckpt_path}: {error}") from error


@contextmanager
def checked_weights(module: Any, checkpoint: Mapping[str, Any]) -> Iterator[None]:
    """Refuse a checkpoint that does not hold a module's weights; errors of the block name where the two differ."""
    state = checkpoint.get("state_dict")
    if not isinstance(state, Mapping) or not all(isinstance(name, str) for name in state):
        raise ValueError("it holds no model: its state_dict is none")
    fill_empty(module, state)
    with naming_difference(module.state_dict(), state):
        check_state(module, state)
        yield


def check_optimizers(optimizers: list[Optimizer], checkpoint: Mapping[str, Any]) -> None:
    """Refuse a checkpoint that does not hold the states of these optimizers."""
    states, own = checkpoint["optimizer_states"], len(optimizers)
    found = len(states) if isinstance(states, list) else 0
    if found != own:
        raise ValueError(f"it holds the states of {found} optimizers and the model has {own}")
    for optimizer, state in zip(optimizers, states):
        check_optimizer_state(optimizer, state)


def check_schedule_lengths(schedulers: Sequence[Any], checkpoint: Mapping[str, Any]) -> None:
    """Refuse to extend a run under a schedule that ends with the shorter one; warn where its length stays behind."""
    states = checkpoint.get("lr_schedulers")
    for scheduler, state in zip(schedulers, states if isinstance(states, list) else ()):
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
