"""The clock of a model under federated training: its own iterations, and the ends of turns and rounds."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import lightning
import torch
from torch import Tensor

from fedgen.data.optional_attributes import optional
from fedgen.models.optional_hooks import TurnTakingStrategy

Step = tuple[str, ...]


class RoundMeans:
    """Means over a round's steps, NaN if no turn was finite; turns not completed or not finite leave no trace."""

    def __init__(self, *names: str) -> None:
        self.names = list(names)
        self._turn: dict[Step, tuple[Tensor, int]] = {}  # values that come together: their sums, and of how many steps
        self._round: Tensor | None = None  # [3, names]: sums, steps in them, steps at all

    def add(self, values: Mapping[str, Tensor], steps: int = 1) -> None:
        """Adds values of a step, scalars of any precision, or sums of several steps."""
        if not values or not steps:
            return
        key = tuple(values)
        new = torch.stack([value.detach().float() for value in values.values()])
        sums, before = self._turn.get(key, (None, 0))
        self._turn[key] = new if sums is None else sums.add_(new), before + steps

    def end_turn(self, completed: bool = True) -> None:
        """Counts what was added since the last turn, or forgets it if the turn was not completed."""
        turn, self._turn = self._turn, {}
        if not turn or not completed:
            return
        found = torch.zeros(3, len(self.names), dtype=torch.float32, device=next(iter(turn.values()))[0].device)
        for key, (sums, steps) in turn.items():
            places = [self.names.index(name) for name in key]
            found[0, places] += sums
            found[1:, places] += steps
        finite = found[0].isfinite().all()
        found[:2] = torch.where(finite, found[:2], 0.0)
        self._round = found if self._round is None else self._round.add_(found)

    def take(self, reduce: Callable[[Tensor], Tensor], device: torch.device) -> dict[str, float]:
        """The means by name since the last call, of those that had a step."""
        self.end_turn()
        mine = torch.zeros(3, len(self.names), dtype=torch.float32, device=device)
        mine, self._round = mine if self._round is None else self._round, None
        sums, counted, steps = reduce(mine).tolist()
        return {
            name: sums[i] / counted[i] if counted[i] else float("nan") for i, name in enumerate(self.names) if steps[i]
        }


class RoundClock(lightning.LightningModule):
    """A LightningModule that hears of the ends of clients' turns and of rounds, once each, under any strategy.

    `fedgen.federated.FedAvgStrategy` calls `on_turn_start(turn)` before each client's turn, `on_turn_end(completed)`
    after it and, once it has merged and the module holds the server's weights, `on_round_end(iterations)`; its
    attribute `calls_round_end` says so.
    Under every other strategy a batch is the turn and an epoch the round: the module calls them itself, the latter
    after the epoch's last batch, before anybody's `on_train_epoch_end`, so that checkpoints hold what it changed.

    Attributes:
        means: what is to be logged of a round; give it names and add to it in `training_step`, and log it by
            `log_means`. Turns that are not merged do not count.
    """

    own_turn_state: ClassVar[tuple[str, ...]] = ("means", "_opens_epoch")
    """Beginnings of attributes that the class looks after itself in clients' turns: FedAvg leaves them alone."""

    def __init__(self) -> None:
        super().__init__()
        self.means = RoundMeans()
        self._opens_epoch = True
        self._before_filter: warnings.catch_warnings[None] | None = None

    def on_fit_start(self) -> None:
        """Silences, until training starts, what Lightning says of modules in eval mode, which are so by design."""
        self._before_filter = warnings.catch_warnings()
        self._before_filter.__enter__()
        warnings.filterwarnings("ignore", message=r"Found \d+ module\(s\) in eval mode at the start of training")

    def on_train_start(self) -> None:
        """Warnings are as before."""
        if self._before_filter is not None:
            self._before_filter.__exit__(None, None, None)
            self._before_filter = None

    def on_turn_start(self, turn: Any) -> None:
        """Called before a client's turn, with the `Turn`; before each batch under other strategies, with None."""

    def opens_round(self, turn: Any) -> bool:
        """Whether a turn is its round's first: under other strategies, where there is none, the epoch's first batch."""
        return self._opens_epoch if turn is None else bool(turn.is_first)

    def on_turn_end(self, completed: bool) -> None:
        """Called after a client's turn; it is not completed if the client is left out of the round."""
        self.means.end_turn(completed)

    def end_functional_turn(self, noted: Sequence[tuple[Mapping[str, Tensor], int]], batch_length: int) -> None:
        """Adds what a turn's `functional_steps` noted to the means: by kind of step sums and number of steps."""
        for values, steps in noted:
            self.means.add(values, steps)

    def on_round_end(self, iterations: int) -> None:
        """Called with the number of training iterations of the round (of one client); does nothing here."""

    def take_means(self) -> dict[str, float]:
        """The means since the last call by name, over all processes."""
        strategy = self.trainer.strategy
        return self.means.take(lambda sums: strategy.reduce(sums, reduce_op="sum"), self.device)

    def log_means(self) -> None:
        """Logs the means since the last call; for `on_train_epoch_end`."""
        self.log_dict(self.take_means(), sync_dist=True)

    def iteration(self, batch_idx: int) -> int:
        """Return how many iterations came before this one since training began: the client's own under FedAvg."""
        if self._strategy_calls():
            found = optional(self.trainer.strategy, TurnTakingStrategy, "client_iteration")
            return batch_idx if found is None else int(found)
        return self.trainer.fit_loop.epoch_loop.total_batch_idx

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        if not self._strategy_calls():
            self._opens_epoch = batch_idx == 0
            self.on_turn_start(None)

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self._strategy_calls():
            return
        self.on_turn_end(True)
        if self.trainer.is_last_batch:
            self.on_round_end(batch_idx + 1)

    def _strategy_calls(self) -> bool:
        return bool(getattr(self.trainer.strategy, "calls_round_end", False))  # of `TurnTakingStrategy`; in each batch
