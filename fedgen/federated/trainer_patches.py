"""Lightning's words within a client's turn: batches, steps and learning-rate schedules as in an ordinary fit.

An epoch is a round and a batch of Lightning's loops a whole turn. To what runs within a turn (a module's steps and
hooks, its schedules) a batch is one local iteration and an epoch the turn, as if the client trained alone from the
server's state.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.trainer.states import RunningStage
from torch import Tensor

from fedgen.federated.lightning.lightning_internals import (
    call_module_hook,
    set_reduced,
    trained_values,
    without_process_group,
)

NEVER = 2**62  # a schedule's frequency, in Lightning's batches, that is never reached


class TurnClock:
    """Counts one client's steps and says what Lightning's words mean within its turn."""

    def __init__(self, trainer: Trainer, interval: int, rounds: int | None = None) -> None:
        self.trainer, self.interval, self._rounds = trainer, interval, rounds
        self.results: Any = trained_values(trainer)  # that are logged in training
        self.iteration = self.total_steps = 0
        self.accumulation = trainer.accumulate_grad_batches
        self.holds_accumulation = False
        self.reduced: dict[str, Tensor] = {}
        self.start_round()

    @property
    def rounds(self) -> int:
        """The rounds that are planned; -1 without a limit."""
        return (self.trainer.max_epochs or 1) if self._rounds is None else self._rounds

    @property
    def _progress(self) -> Any:
        loop = self.trainer.fit_loop.epoch_loop
        if self.trainer.lightning_module is None or self.trainer.lightning_module.automatic_optimization:
            return loop.automatic_optimization.optim_progress.optimizer.step
        return loop.manual_optimization.optim_step_progress

    @property
    def steps(self) -> int:
        """The present client's optimizer steps: Lightning's `global_step`."""
        return int(self._counts.completed)

    def set_steps(self, value: int) -> None:
        self._counts.ready = self._counts.completed = value

    def start_round(self) -> None:
        """Take the present count as the server's, and accumulation from Lightning's loops into turns."""
        self._counts = self._progress.total
        self.server_steps = self._largest = self.steps
        self._total = 0
        by_step = {one.meta.forked_name(True) for one in self.results.values() if one.meta.on_step}
        self.metrics = {n: v for n, v in self.trainer.callback_metrics.items() if n not in by_step} | self.reduced
        if not self.holds_accumulation:
            self.accumulation = self.trainer.accumulate_grad_batches
            self.trainer.accumulate_grad_batches, self.holds_accumulation = 1, True  # one turn is one batch there

    def start_turn(self) -> None:
        self.set_steps(self.server_steps)

    def end_turn(self, completed: bool) -> None:
        """Count the steps of a completed turn; between turns Lightning sees the server's."""
        if completed:
            self._largest = max(self._largest, self.steps)
            self._total += self.steps - self.server_steps
        self.set_steps(self.server_steps)

    @property
    def turn_steps(self) -> int:
        return self._largest - self.server_steps

    def take_steps(self, steps: Sequence[int]) -> None:
        """Take steps of completed remote turns: the median is the round's count, as a client may lie."""
        if steps:
            self._largest = self.server_steps + sorted(steps)[(len(steps) - 1) // 2]
            self._total += sum(min(count, self.turn_steps) for count in steps)

    def local_summary(self) -> tuple[int, int]:
        return self._largest, self._total

    def merge_summaries(self, summaries: Sequence[tuple[int, int]]) -> None:
        self._largest, self._total = max(largest for largest, _ in summaries), sum(total for _, total in summaries)

    def end_round(self, dropped: bool = False) -> None:
        """Make the count that of the round's longest turn; a dropped round counts nothing."""
        if not dropped:
            self.set_steps(self._largest)
            self.total_steps += self._total
        self.release()

    def count_steps(self, steps: int) -> None:
        """Count optimizer steps of the present client that were taken beside Lightning's loops, as the loops do."""
        self._progress.increment_by(steps)
        if self.trainer.lightning_module.automatic_optimization:
            loop = self.trainer.fit_loop.epoch_loop
            loop.automatic_optimization.optim_progress.optimizer.zero_grad.increment_by(steps)

    def leave_a_step(self) -> None:
        """Take one step off the count, which Lightning adds when its batch, the turn, is over."""
        self._counts.completed -= 1

    def release(self) -> None:
        if self.holds_accumulation:
            self.trainer.accumulate_grad_batches, self.holds_accumulation = self.accumulation, False

    @property
    def is_last_iteration(self) -> bool:
        return self.iteration + 1 == self.interval

    @property
    def accumulates(self) -> bool:
        """Whether the present iteration adds to gradients without an optimizer step."""
        return (self.iteration + 1) % self.accumulation != 0 and not self.is_last_iteration

    @contextmanager
    def within(self) -> Iterator[None]:
        """Let Lightning's words mean a turn's."""
        trainer: Any = self.trainer
        kind: Any = type(trainer)
        held, trainer.__class__ = trainer.accumulate_grad_batches, _derived(_InTurn, kind)
        if self.holds_accumulation:
            trainer.accumulate_grad_batches = self.accumulation
        try:
            yield
        finally:
            trainer.__class__, trainer.accumulate_grad_batches = kind, held

    def state_dict(self) -> dict[str, Any]:
        """The total over clients; Lightning saves `global_step` itself."""
        return {"total_steps": self.total_steps}

    def load_state_dict(self, state: Any) -> None:
        self.total_steps = int(state["total_steps"])


def patch_trainer(trainer: Trainer, clock: TurnClock) -> None:
    if not isinstance(trainer, _InFit):
        kind: Any = type(trainer)
        trainer.__class__ = _derived(_InFit, kind)
    vars(trainer)["turn_clock"] = clock


def unpatch_trainer(trainer: Trainer) -> None:
    if isinstance(trainer, _InFit):
        kinds: Any = type(trainer).__mro__
        trainer.__class__ = next(kind for kind in kinds if not issubclass(kind, (_InFit, _InTurn)))
        del vars(trainer)["turn_clock"]


class _InFit:
    """Properties of `Trainer` that mean something else while clients train."""

    turn_clock: TurnClock

    # which is asked some twenty times a turn, and compares the stage's text
    training = Trainer.training.getter(lambda trainer: trainer.state.stage is RunningStage.TRAINING)

    @property
    def train_dataloader(self) -> Any:
        turns = super().train_dataloader  # type: ignore[misc]
        return getattr(turns, "view", turns)  # other loaders have none

    @property
    def estimated_stepping_batches(self) -> int | float:
        """One client's steps over all rounds, in batches, whatever the number of optimizers."""
        trainer: Any = self
        clock = self.turn_clock
        if clock.rounds == -1:
            return float("inf") if trainer.max_steps == -1 else trainer.max_steps
        accumulation = clock.accumulation if clock.holds_accumulation else trainer.accumulate_grad_batches
        steps = math.ceil(clock.interval / accumulation) * clock.rounds
        return min(steps, trainer.max_steps) if trainer.max_steps != -1 else steps


class _InTurn:
    """Those that mean something else within a turn's iterations; Lightning's loops ask for them often around it."""

    turn_clock: TurnClock

    @property
    def num_training_batches(self) -> int:
        return self.turn_clock.interval

    @property
    def callback_metrics(self) -> Any:
        return dict(self.turn_clock.metrics)

    @property
    def is_last_batch(self) -> bool:
        return self.turn_clock.is_last_iteration


@cache
def _derived(properties: type, kind: Any) -> Any:
    return type(kind.__name__, (properties, kind), {"__module__": kind.__module__, "__qualname__": kind.__qualname__})


class StepSchedules:
    """Learning-rate schedules with interval="step", moved with a client's iterations, not with Lightning's batches."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        configs = trainer.strategy.lr_scheduler_configs if trainer.lightning_module.automatic_optimization else []
        self._frequencies = [(config, config.frequency) for config in configs if config.interval == "step"]
        for config, _ in self._frequencies:
            config.frequency = NEVER  # Lightning's loops do not move it; its interval stays, for monitors to read

    def __bool__(self) -> bool:
        return bool(self._frequencies)

    def move(self, iteration: int) -> None:
        """Move the schedules after a local iteration that took an optimizer step."""
        for config, frequency in self._frequencies:
            if (iteration + 1) % frequency == 0:
                call_module_hook(self._trainer, "lr_scheduler_step", config.scheduler, None)

    def release(self) -> None:
        for config, frequency in self._frequencies:
            config.frequency = frequency


class LoggedValues:
    """Weighs what training steps log as clients are weighed: the mean over a turn counts by the client's weight."""

    def __init__(self, clock: TurnClock) -> None:
        self._clock = clock
        self._before: dict[str, tuple[Tensor, Tensor]] = {}

    def start_turn(self) -> None:
        results = self._clock.results.items()
        self._before = {key: _sums(one) for key, one in results if one.is_tensor and not one.has_reset}

    def end_turn(self, weight: float, completed: bool) -> None:
        """Weigh what was logged since `start_turn`, or drop it."""
        for key, metric in list(self._clock.results.items()):
            if not metric.is_tensor or metric.has_reset or not metric.meta.on_epoch:
                continue
            known, is_mean = self._before.get(key), metric.meta.is_mean_reduction
            if not completed and known is None:
                metric.reset()
            elif not completed and known is not None:
                metric.value = known[0]
                if is_mean:
                    metric.cumulated_batch_size = known[1]
            elif is_mean:
                value, count = known or (torch.zeros_like(metric.value), torch.zeros_like(metric.cumulated_batch_size))
                logged, of = metric.value - value, metric.cumulated_batch_size - count
                if float(of) > 0:
                    metric.value, metric.cumulated_batch_size = value + logged / of * weight, count + weight

    def local_summary(self) -> dict[str, Any]:
        """Return this rank's sums, how they were logged, and whether the trainer shows the values over all ranks."""
        return {
            key: (without_process_group(one.meta), one.meta.sync.should, *(tensor.cpu() for tensor in _sums(one)))
            for key, one in self._clock.results.items()
            if one.is_tensor and not one.has_reset and one.meta.on_epoch
        }

    def merge_summaries(self, summaries: Sequence[dict[str, Any]]) -> None:
        """Take every rank's summary: each rank then has the values over all clients."""
        results, self._clock.reduced = self._clock.results, {}
        for key in dict.fromkeys(key for one in summaries for key in one):
            found = [one[key] for one in summaries if key in one]
            meta, shown = found[0][:2]
            value = _reduced(meta, found).to(self._clock.trainer.strategy.root_device)
            self._clock.reduced |= {meta.name: value, meta.forked_name(False): value}
            if shown:
                set_reduced(results, key, meta, value)


def _sums(metric: Any) -> tuple[Tensor, Tensor]:
    """Return the sum of logged values times their weights, and that of the weights where a mean is logged."""
    return metric.value, metric.cumulated_batch_size if metric.meta.is_mean_reduction else torch.ones(())


def _reduced(meta: Any, found: Sequence[tuple[Any, bool, Tensor, Tensor]]) -> Tensor:
    values = torch.stack([value for *_, value, _ in found])
    if meta.is_mean_reduction:
        return values.sum() / torch.stack([count for *_, count in found]).sum()
    if meta.is_sum_reduction:
        return values.sum()
    return values.max() if meta.is_max_reduction else values.min()
