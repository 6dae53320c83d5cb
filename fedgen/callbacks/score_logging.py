"""Scores and sample grids for Lightning's loggers, and stock callbacks that act on evaluated rounds only.

Lightning runs ModelCheckpoint and EarlyStopping after every epoch and every validation, and they read whatever value
was logged last: between two evaluations a checkpoint would be kept for another model's score, and patience would count
epochs. While training lasts, the two hooks of those that monitor a score are therefore put off until it is there.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint, EarlyStopping
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor

from fedgen.data.optional_attributes import optional
from fedgen.evaluation import Columns, ScoreRecord
from fedgen.evaluation.names import AGGREGATES, POWER
from fedgen.evaluation.panels import PRESETS
from fedgen.scores.definitions import definitions

PERCENTILES = (10, 50, 90)
CHARTED = ("avg", "all", "avg_floor", "all_floor")  # in TensorBoard's chart of a score
EPOCH_END, VALIDATION_END = "on_train_epoch_end", "on_validation_end"
AGGREGATE_LIKE = "|".join([*AGGREGATES, f"{POWER}.+"])
SCORE_LIKE = re.compile(rf"(.*/)?((fid|kid)_\w+|({'|'.join([*definitions(), *PRESETS])})_({AGGREGATE_LIKE}))")


def log_scores(
    loggers: Iterable[Any], records: Sequence[ScoreRecord], columns: Columns, round: int, floor: Iterable[ScoreRecord]
) -> None:
    """Sends every column, the floor of each ("fid_all_floor"), and the clients' distribution of each score."""

    def named(record: ScoreRecord) -> str:
        return columns.score(record.split, record.embedding, record.score)

    values = {(named(r), r.aggregate): r.value for r in records}
    real = {(named(r), r.aggregate): r.value for r in floor if r.is_floor}
    values |= {(name, f"{how}_floor"): value for (name, how), value in real.items() if (name, how) in values}
    spread = {named(r): torch.tensor(r.per_client) for r in records if r.per_client}
    for name, clients in spread.items():
        shares = torch.tensor([p / 100 for p in PERCENTILES], dtype=clients.dtype)
        found = torch.quantile(clients, shares, interpolation="nearest").tolist()  # each a value that occurs
        values |= {(name, f"clients/p{p}"): value for p, value in zip(PERCENTILES, found)}
    for logger in loggers:
        between = "/" if isinstance(logger, TensorBoardLogger) else "_"
        logger.log_metrics({between.join(key): value for key, value in values.items()}, step=round)
        if isinstance(logger, TensorBoardLogger):
            shown = {score: [f"{score}/{how}" for how in CHARTED if (score, how) in values] for score, _ in values}
            charts = {score: ["Multiline", names] for score, names in shown.items()}
            logger.experiment.add_custom_scalars({"scores beside real images'": charts})
        experiment: Any = getattr(logger, "experiment", None)  # of Lightning's loggers; their base class asks for none
        if hasattr(experiment, "add_histogram"):
            for name, clients in spread.items():
                experiment.add_histogram(f"{name}{between}clients", clients, round)
        logger.save()


def log_grid(loggers: Iterable[Any], picture: Tensor, round: int) -> None:
    """Sends a uint8 picture [C, H, W] to every logger that can show images."""
    pixels = picture.permute(1, 2, 0).numpy()
    pixels = pixels[..., 0] if pixels.shape[2] == 1 else pixels
    for logger in loggers:
        experiment: Any = getattr(logger, "experiment", None)  # as above
        if hasattr(experiment, "add_image"):  # TensorBoard
            experiment.add_image("samples", picture, round)
        elif hasattr(logger, "log_image"):  # Weights & Biases
            logger.log_image(key="samples", images=[pixels], step=round)
        elif hasattr(experiment, "log_image") and hasattr(logger, "run_id"):  # MLflow
            experiment.log_image(logger.run_id, pixels, key="samples", step=round)
        elif hasattr(experiment, "log_image"):  # Comet
            experiment.log_image(pixels, name="samples", step=round)


class Monitoring:
    """A callback that acts on the best value of a column, as Lightning's ModelCheckpoint and EarlyStopping.

    Attributes:
        monitor: the column; None if it watches none.
        mode: whether "min" or "max" is best; None if it does not say.
    """

    monitor: str | None = None
    mode: str | None = None


def watchers(callbacks: Sequence[Callback], columns: Sequence[str]) -> list[Any]:
    """The ModelCheckpoint and EarlyStopping callbacks that monitor a column."""
    found = []
    for callback in callbacks:
        monitor = optional(callback, Monitoring, "monitor")
        if not isinstance(callback, (Checkpoint, EarlyStopping)) or not isinstance(monitor, str):
            continue
        if monitor in columns:
            found.append(callback)
        elif SCORE_LIKE.fullmatch(monitor):
            logged = ", ".join(columns)
            raise ValueError(f"{type(callback).__name__} monitors {monitor!r}, but the evaluation logs {logged}")
    return found


def gate(callbacks: Sequence[Any], is_fresh: Callable[[Trainer], bool]) -> None:
    """Puts the callbacks' hooks off to rounds for which `is_fresh` says yes; those outside `fit` stay."""
    for callback in callbacks:
        for hook in (EPOCH_END, VALIDATION_END):
            setattr(callback, hook, partial(_call_when_fresh, callback, hook, is_fresh))


def _call_when_fresh(
    callback: Callback, hook: str, is_fresh: Callable[[Trainer], bool], trainer: Trainer, module: LightningModule
) -> None:
    hooks = [hook]
    if trainer.state.fn == TrainerFn.FITTING:
        # These callbacks act in one of the two hooks, as their settings say; validation ran before the evaluation.
        hooks = [EPOCH_END, VALIDATION_END] if hook == EPOCH_END and is_fresh(trainer) else []
    for name in hooks:
        getattr(type(callback), name)(callback, trainer, module)


def release(callbacks: Sequence[Any]) -> None:
    for callback in callbacks:
        for hook in (EPOCH_END, VALIDATION_END):
            delattr(callback, hook)
