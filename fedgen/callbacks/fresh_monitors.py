"""Stock ModelCheckpoint and EarlyStopping that see evaluated rounds only.

Lightning runs them after every epoch and every validation, and they read whatever value was logged last: between two
evaluations a checkpoint would be kept for another model's score, and patience would count epochs. While training lasts,
the two hooks of those that monitor a score are therefore put off until the round's score is there.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint, EarlyStopping
from lightning.pytorch.trainer.states import TrainerFn

from fedgen.data.optional_attributes import optional
from fedgen.evaluation.presets import PRESETS
from fedgen.evaluation.record_names import AGGREGATES, POWER
from fedgen.scores.definition import definitions

EPOCH_END, VALIDATION_END = "on_train_epoch_end", "on_validation_end"
AGGREGATE_LIKE = "|".join([*AGGREGATES, f"{POWER}.+"])
SCORE_LIKE = re.compile(rf"(.*/)?((fid|kid)_\w+|({'|'.join([*definitions(), *PRESETS])})_({AGGREGATE_LIKE}))")


class Monitoring:
    """A callback that acts on the best value of a column, as Lightning's ModelCheckpoint and EarlyStopping.

    Attributes:
        monitor: the column; None if it watches none.
        mode: whether "min" or "max" is best; None if it does not say.
    """

    monitor: str | None = None
    mode: str | None = None


class _Gate:
    """One hook of one callback: passed on at evaluated rounds, dropped at others; untouched outside `fit`."""

    def __init__(self, callback: Callback, hook: str, is_fresh: Callable[[Trainer], bool]) -> None:
        self.callback, self.hook, self.is_fresh = callback, hook, is_fresh

    def __call__(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn != TrainerFn.FITTING:
            self._call(self.hook, trainer, pl_module)
        elif self.hook == EPOCH_END and self.is_fresh(trainer):
            # These callbacks act in one of the two hooks, as their settings say; validation ran before the evaluation.
            self._call(EPOCH_END, trainer, pl_module)
            self._call(VALIDATION_END, trainer, pl_module)

    def _call(self, hook: str, trainer: Trainer, pl_module: LightningModule) -> None:
        getattr(type(self.callback), hook)(self.callback, trainer, pl_module)


def watchers(callbacks: Sequence[Callback], columns: Sequence[str]) -> list[Any]:
    """The ModelCheckpoint and EarlyStopping callbacks that monitor a column.

    Raises:
        ValueError: if one monitors what looks like a score but is no column.
    """
    found = []
    for callback in callbacks:
        monitor = optional(callback, Monitoring, "monitor")
        if not isinstance(callback, (Checkpoint, EarlyStopping)) or not isinstance(monitor, str):
            continue
        if monitor in columns:
            found.append(callback)
        elif SCORE_LIKE.fullmatch(monitor):
            raise ValueError(
                f"{type(callback).__name__} monitors {monitor!r}, but the evaluation logs {', '.join(columns)}"
            )
    return found


def gate(callbacks: Sequence[Any], is_fresh: Callable[[Trainer], bool]) -> None:
    """Puts the callbacks' hooks off to rounds for which `is_fresh` says yes."""
    for callback in callbacks:
        for hook in (EPOCH_END, VALIDATION_END):
            setattr(callback, hook, _Gate(callback, hook, is_fresh))


def release(callbacks: Sequence[Any]) -> None:
    """Gives callbacks their own hooks back."""
    for callback in callbacks:
        for hook in (EPOCH_END, VALIDATION_END):
            if isinstance(callback.__dict__.get(hook), _Gate):
                delattr(callback, hook)
