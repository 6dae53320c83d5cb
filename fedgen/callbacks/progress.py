"""A progress bar that counts rounds and clients."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import RichProgressBar
from rich import get_console


class RoundProgressBar(RichProgressBar):
    """Lightning's rich progress bar in federated words: "round 3/50, clients ... 7/10"; silent where there is neither a
    terminal nor a notebook.

    The bar's own times are the round's; "run left" estimates the whole run's, evaluations included. Under a strategy
    without rounds it says "epoch 3/50, batches ...". The arguments are RichProgressBar's.
    """

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if not (sys.stdout.isatty() or sys.stderr.isatty() or get_console().is_jupyter):
            self.disable()
        super().setup(trainer, pl_module, stage)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        self._started, self._first = time.monotonic(), trainer.current_epoch

    def get_metrics(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, Any]:
        """Logged values for the bar, and the time that the run still needs."""
        items = dict(super().get_metrics(trainer, pl_module))
        items.pop("v_num", None)  # runs are told apart by their folders
        done = trainer.current_epoch - self._first
        if done > 0 and trainer.max_epochs not in (None, -1):
            seconds = (time.monotonic() - self._started) / done * (trainer.max_epochs - trainer.current_epoch)
            items["run left"] = str(timedelta(seconds=round(seconds)))
        return items

    def _get_train_description(self, current_epoch: int) -> str:
        federated = hasattr(self.trainer.strategy, "sample_cohort")
        words = ("round", "clients") if federated else ("epoch", "batches")
        total = "" if self.trainer.max_epochs in (None, -1) else f"/{self.trainer.max_epochs}"
        return f"{words[0]} {current_epoch + 1}{total}, {words[1]}"


@contextmanager
def paused(trainer: Trainer) -> Iterator[None]:
    """No live progress bar of training inside the block: two on one terminal would overwrite each other."""
    bar: Any = getattr(trainer.progress_bar_callback, "progress", None)
    live = getattr(bar, "live", None)
    if live is None or not live.is_started:
        yield
        return
    bar.stop()
    try:
        yield
    finally:
        bar.start()
