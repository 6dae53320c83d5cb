"""The clock of a model under federated training: its own iterations, and the ends of rounds."""

from typing import Any

import lightning


class RoundClock(lightning.LightningModule):
    """A LightningModule whose `on_round_end(iterations)` is called once a round, under any strategy.

    `fedgen.federated.FedAvgStrategy` calls it after merging, when the module holds the server's weights, and says so
    by its attribute `calls_round_end`. Under every other strategy an epoch is the round: the module calls it itself
    after the epoch's last batch, before anybody's `on_train_epoch_end`, so that checkpoints hold what it changed.
    """

    def on_round_end(self, iterations: int) -> None:
        """Called with the number of training iterations of the round (of one client); does nothing here."""

    def iteration(self, batch_idx: int) -> int:
        """How many iterations came before this one since training started: the client's own count under FedAvg."""
        return batch_idx if self._strategy_calls() else self.trainer.fit_loop.epoch_loop.total_batch_idx

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self.trainer.is_last_batch and not self._strategy_calls():
            self.on_round_end(batch_idx + 1)

    def _strategy_calls(self) -> bool:
        return getattr(self.trainer.strategy, "calls_round_end", False)
