"""Checkpoints of whole rounds: the last one to resume from, and every evaluated one to select from."""

import os
import shutil
import time
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

from fedgen.data.optional_attributes import optional
from fedgen.evaluation.names import LAST, checkpoint_name, list_checkpoints
from fedgen.evaluation.runs.scores_file import SCORES_FILE, read_records
from fedgen.federated.left_out import Entry, report_of, write_left_out
from fedgen.federated.state_table import rows_so_far, write_state
from fedgen.io.files import remove_unfinished, require_writable, sync_folder
from fedgen.models.optional_hooks import TurnTakingStrategy


class RoundCheckpoint(ModelCheckpoint):
    """`last.ckpt` of the newest round, and `round=00012.ckpt` of every round that was evaluated.

    Both are the same bytes on disk (a hard link, or a copy where links are not possible), appear whole or not at all,
    and load with `weights_only=True`. `trainer.fit(ckpt_path="last")` resumes from `last.ckpt`. Rounds that were cut
    short are not saved. Training from round 0 in a folder that holds a run is refused. Works under any strategy, where
    a round is an epoch. Clients that were left out of rounds, and remarks on others, are in `left_out.jsonl` beside
    them, if there were any. After the first round and when training ends `state.txt` lists what happens to the module's
    state in clients' turns (`FedAvgStrategy.state_table`).

    Args:
        dirpath: the folder; the trainer's `default_root_dir` by default.
        every_n_rounds: which rounds are kept if there is no `FederatedEvaluation` to evaluate some; the last round is
            always kept.
        saving_share: largest share of training time for saving `last.ckpt`, above 0 and at most 1. A round that ends
            too soon after a save is not saved, unless it is kept or the last: a killed run trains it again, to the same
            bits. 1 saves each round; so does a deployment, whose clients can go back by one round at most.

    Raises:
        ValueError: for numbers out of range.
        PermissionError: if the folder cannot be written, before training starts.
        FileExistsError: if the folder holds a run and training would begin at round 0, likewise.

    Examples:
        >>> from fedgen import RoundCheckpoint
        >>> callback = RoundCheckpoint("checkpoints/mine", every_n_rounds=50)  # Trainer(callbacks=[callback])
        >>> callback.every_n_rounds
        50
    """

    def __init__(self, dirpath: str | Path | None = None, every_n_rounds: int = 10, saving_share: float = 0.05) -> None:
        if every_n_rounds < 1:
            raise ValueError(f"every_n_rounds={every_n_rounds}: keep a checkpoint every 1 or more rounds")
        if not 0 < saving_share <= 1:
            raise ValueError(f"saving_share={saving_share}: a share of the time above 0, and at most 1 for each round")
        # save_top_k=0: what is kept is decided here, and nothing is ever removed
        super().__init__(dirpath=dirpath, save_top_k=0, save_last=True, enable_version_counter=False)
        self.every_n_rounds, self.saving_share = every_n_rounds, saving_share
        self._given = self.dirpath
        self._saved_round: int | None = None
        self._next_save = 0.0  # on the clock of `time.monotonic`
        self._left_out: list[Entry] | None = None  # what is in the file

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self.dirpath = str(self._folder(trainer))
        super().setup(trainer, pl_module, stage)
        if stage == "fit":
            require_writable(self.dirpath)
            # Last of all, so that what it saves holds the state of this round's EarlyStopping and ModelCheckpoints.
            trainer.callbacks = [callback for callback in trainer.callbacks if callback is not self] + [self]

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Refuses to replace a run, and clears up after kills."""
        if trainer.fast_dev_run:
            return
        refuse_restart(trainer, self._folder(trainer))
        if trainer.is_global_zero:
            remove_unfinished(self._folder(trainer))
            for path in self._folder(trainer).glob(".*.ckpt.partial"):
                path.unlink(missing_ok=True)
            self._left_out = None  # what an earlier run wrote, or this one in rounds that it trains again
            self._write_left_out(trainer)

    def _write_left_out(self, trainer: Trainer) -> None:
        entries = report_of(trainer)
        if entries != self._left_out:
            write_left_out(self._folder(trainer), entries)
            self._left_out = entries

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.fast_dev_run or optional(trainer.strategy, TurnTakingStrategy, "in_round"):
            return
        folder, round = self._folder(trainer), trainer.current_epoch
        if not trainer.strategy.reduce_boolean_decision(self._is_due(trainer, round), all=False):
            return
        began = time.monotonic()
        partial = folder / f".{LAST}.partial"
        self.last_model_path = self.best_model_path = str(folder / LAST)
        first, self._saved_round = self._saved_round is None, round
        trainer.save_checkpoint(partial, weights_only=False)
        if trainer.is_global_zero:
            self._write_left_out(trainer)
            if first:
                write_state(folder, rows_so_far(trainer.strategy))
            _sync(partial)
            if self._is_kept(trainer, round):  # before `last.ckpt`: a resumed run never lacks an evaluated checkpoint
                link_checkpoint(partial, folder / checkpoint_name(round))
            os.replace(partial, folder / LAST)
            sync_folder(folder)
            for logger in trainer.loggers:
                logger.after_save_checkpoint(self)
        trainer.strategy.barrier()
        ended = time.monotonic()
        self._next_save = ended + (ended - began) * (1 / self.saving_share - 1)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keeps the last round too, if it was evaluated only now."""
        folder, round, evaluated = self._folder(trainer), self._saved_round, _evaluated(trainer)
        if trainer.is_global_zero and round is not None and (folder / LAST).exists():
            self._write_left_out(trainer)
            write_state(folder, rows_so_far(trainer.strategy))
            path = folder / checkpoint_name(round)
            if not path.exists() and (evaluated is None or round in evaluated):
                link_checkpoint(folder / LAST, path)

    def _wait(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: checkpoints hold whole rounds, once evaluated, and `last.ckpt` is there when training fails."""

    on_train_batch_end = on_validation_end = on_exception = _wait

    def state_dict(self) -> dict[str, Any]:
        return {}  # the files speak for themselves

    def load_state_dict(self, state_dict: dict[str, Any]) -> None: ...

    def _find_last_checkpoints(self, trainer: Trainer) -> set[str]:
        path = self._folder(trainer) / LAST
        return {str(path)} if path.exists() else set()

    def _folder(self, trainer: Trainer) -> Path:
        return Path(self._given or trainer.default_root_dir)

    def _is_due(self, trainer: Trainer, round: int) -> bool:
        """Whether a round is to be saved: for what it is, because training ends, or because there is time for it."""
        ends = trainer.should_stop or round + 1 == trainer.max_epochs
        ends = ends or (trainer.max_steps != -1 and trainer.global_step >= trainer.max_steps)
        return ends or self._saved_round is None or self._is_kept(trainer, round) or time.monotonic() >= self._next_save

    def _is_kept(self, trainer: Trainer, round: int) -> bool:
        if (evaluated := _evaluated(trainer)) is not None:
            return round in evaluated
        return (round + 1) % self.every_n_rounds == 0 or round + 1 == trainer.max_epochs


def refuse_restart(trainer: Trainer, folder: Path) -> None:
    """Refuses to begin at round 0 in a folder that holds rounds of a run, which would be replaced."""
    if trainer.fast_dev_run or trainer.ckpt_path or trainer.current_epoch:
        return
    keepers = [one for one in trainer.callbacks if isinstance(one, RoundCheckpoint)]
    rounds = {*list_checkpoints(folder)} | {
        one.round for one in read_records(folder / SCORES_FILE) if one.is_model and one.round not in (None, -1)
    }
    held = (folder / LAST).exists() or bool(rounds - ({0} if keepers else set()))
    if not trainer.strategy.broadcast(held):  # only the first process may see the files
        return
    go_on = 'trainer.fit(..., ckpt_path="last") resumes from its newest checkpoint'
    known = [one for one in trainer.callbacks if isinstance(one, ModelCheckpoint)]  # where Lightning looks for "last"
    if not any(one._find_last_checkpoints(trainer) for one in known):
        go_on = f'its callbacks find no {LAST} to go on from, but trainer.fit(..., ckpt_path="PATH") takes a checkpoint'
    raise FileExistsError(
        f"{folder} holds a run, whose scores and checkpoints fitting from round 0 would replace; {go_on}; to begin anew"
        " choose another folder, or remove this one"
    )


def _evaluated(trainer: Trainer) -> set[int | None] | None:
    """The rounds that callbacks evaluated last; None where no callback evaluates."""
    return {one.evaluated_round for one in trainer.callbacks if hasattr(one, "evaluated_round")} or None


def _sync(path: Path) -> None:
    with open(path, "rb+") as file:
        os.fsync(file.fileno())


def link_checkpoint(source: Path, target: Path) -> None:
    """Makes `target` the same file as `source`, or a copy of it, whole or not at all."""
    partial = target.with_name(f".{target.name}.partial")
    partial.unlink(missing_ok=True)
    try:
        os.link(source, partial)
    except OSError:
        shutil.copyfile(source, partial)
        _sync(partial)
    os.replace(partial, target)
    partial.unlink(missing_ok=True)  # a rename onto another name of the same file leaves both
