"""A callback that measures what a run costs, and keeps it in the run's checkpoints."""

import resource
import sys
import time
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from fedgen.data.optional_attributes import optional
from fedgen.models.optional_hooks import TurnTakingStrategy

UNIT = 1 if sys.platform == "darwin" else 1024  # bytes in what the system counts memory in


class RunCosts(Callback):
    """Counts turns, seconds of rounds, and the process's peak of memory; it stands before what scores rounds.

    Its state is in every checkpoint, so that a run that was killed and goes on counts whole rounds alone, each once.
    """

    def __init__(self) -> None:
        self.turns, self.seconds, self.peak_memory = 0, 0.0, 0
        self._begun = 0.0

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._begun = time.perf_counter()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Adds a round, if it is whole."""
        if optional(trainer.strategy, TurnTakingStrategy, "in_round"):
            return
        self.seconds += time.perf_counter() - self._begun
        self.turns += int(trainer.num_training_batches)

    def state_dict(self) -> dict[str, Any]:
        self.peak_memory = max(self.peak_memory, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * UNIT)
        return {"turns": self.turns, "seconds": self.seconds, "peak_memory": self.peak_memory}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.turns, self.seconds = state_dict["turns"], state_dict["seconds"]
        self.peak_memory = state_dict["peak_memory"]
