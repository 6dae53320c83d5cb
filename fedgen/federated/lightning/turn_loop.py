"""The local iterations of a client's turn: each one `training_step` of the unchanged module, with its optimizer steps.

Lightning sees one batch a turn. Under automatic optimisation it calls the optimizer once for it, which opens the turn;
under manual optimisation it calls the training step.
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Literal, Protocol

from lightning.fabric.utilities.apply_func import move_data_to_device
from lightning.pytorch import Trainer
from lightning.pytorch.loops.optimization.automatic import Closure, ClosureResult
from torch import Tensor
from torch.optim import Optimizer

from fedgen.clients.turn import Turn
from fedgen.federated.client_state.exchange import parameters_of
from fedgen.federated.lightning.checks import warn_of_remainder, warn_unseen_steps
from fedgen.federated.lightning.lightning_internals import (
    give_result,
    logged_values,
    optimizers_of,
    result_of,
    set_zeroing,
    zeroing_of,
)
from fedgen.federated.lightning.quick_step import calls_no_hook, moves_plainly, quick_step
from fedgen.federated.lightning.turn_clock import BatchHooks, StepSchedules, TurnClock, outputs_of
from fedgen.federated.round import Round
from fedgen.federated.schedules import scaled_rates
from fedgen.federated.vectorised.vectorised_turns import TrainedTurn, TurnsAtOnce, VectorisedTurns

PlainStep = Callable[[Optimizer, Callable[[], Any]], Any]
NO_STEP = -1  # the iteration of the last optimizer step, where none has been


class ShownBatches:
    """A turn's batches, of which the first may have been shown before the turn runs.

    Args:
        iterations: batches a turn.
    """

    def __init__(self, iterations: int) -> None:
        self._iterations = iterations
        self._turn: Turn | None = None  # whose batches have been begun
        self._begun: Iterator[Any] | None = None  # of which the first has been shown
        self._shown: Any = None

    def start_turn(self, turn: Turn) -> None:
        """Forgets the batch of the turn before."""
        if turn is not self._turn:
            self._shown = None

    def batches_of(self, turn: Turn) -> Iterator[Any]:
        """The turn's batches, with the one that was shown."""
        opened, self._begun = self._begun if turn is self._turn else None, None
        self._turn = turn
        return turn.batches(self._iterations) if opened is None else opened

    def show(self, batch: Any) -> None:
        """Takes the batch that is trained on, where the model is."""
        self._shown = batch

    def of(self, turn: Turn) -> Any:
        """The batch that callbacks see; the turn itself if its batches are elsewhere."""
        if turn.is_elsewhere:
            return turn
        if turn is self._turn:
            return self._shown
        batches = turn.batches(self._iterations)
        self._turn, self._shown = turn, next(batches)
        self._begun = chain([self._shown], batches)
        return self._shown


class Driver(Protocol):
    """Decides where turns are taken and what becomes of them; a `Round` itself takes them in this process."""

    def begin(self, number: int, clients: int, cohort: int, folder: Path) -> None: ...
    def take(self, turn: Turn, train: Callable[[], Any]) -> Any: ...
    def close(self) -> None: ...


class TurnLoop:
    """Takes clients' turns on this process's module.

    Args:
        trainer: that fits, with its optimizers.
        round: whose turns they are.
        driver: of the round.
        clock: of the fit.
        schedules: of learning rates by the step.
        batch_idx: what a `training_step` receives: its iteration of the "round" or of the "client".
        move: brings a batch to the device where somebody overrides how.
        vectorised: how many turns are taken at once; None for one.

    Attributes:
        no_hooks: whether nobody overrides what Lightning calls around a step.
        at_once: takes turns at once, where asked to.
        client_iteration: of the client that trains, since training began.
        awaits_step: whether the turn has begun and Lightning's next optimizer step takes it.
    """

    def __init__(
        self,
        trainer: Trainer,
        round: Round,
        driver: Driver,
        clock: TurnClock,
        schedules: StepSchedules,
        batch_idx: Literal["round", "client"],
        move: Callable[[Any], Any],
        vectorised: VectorisedTurns | None = None,
    ) -> None:
        self._trainer, self._module = trainer, trainer.lightning_module
        self._round, self._driver, self._clock, self._counts_rounds = round, driver, clock, batch_idx == "round"
        self.no_hooks = calls_no_hook(trainer)
        self._moves_plainly, self._move = moves_plainly(trainer), move
        self._device = trainer.strategy.root_device
        self._batches = ShownBatches(clock.interval)
        self._schedules, self._hooks = schedules, BatchHooks(trainer, self._batches.of)
        self._batch: Any = None
        self._batch_idx = self.client_iteration = 0
        self._num_arguments = 0  # that Lightning passes to the module's training_step; 0: not known yet
        self.awaits_step = False
        self._last_step, self._is_unseen = NO_STEP, False
        self.at_once = None if vectorised is None else TurnsAtOnce(
            vectorised, trainer, round, clock, self._moved, bool(schedules), trainer.strategy.seed
        )  # fmt: skip

    def release(self) -> None:
        """Give the module's and callbacks' hooks back to Lightning."""
        self._hooks.release()

    def begin_turn(self, turn: Turn) -> None:
        """Have the turn taken by Lightning's next step."""
        self._batches.start_turn(turn)
        self._last_step, self._is_unseen = NO_STEP, False
        self._round.begin_turn(turn)
        self.awaits_step = self._module.automatic_optimization

    # ---- Lightning's calls ----

    def training_step(self, plain: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Any:
        """Do what Lightning's call of a training step means: an iteration or a whole turn."""
        if self._round.turn is None:
            return plain(*args, **kwargs)
        if self._module.automatic_optimization:
            self._num_arguments = len(args)
            return plain(*self._arguments(len(args)))
        return self.take(lambda: plain(*self._arguments(len(args))), outputs_of)

    def optimizer_step(self, plain: PlainStep, optimizer: Optimizer, closure: Callable[[], Any], is_bare: bool) -> Any:
        """Do what Lightning's call of an optimizer means: a step, or a whole turn under automatic optimisation."""
        if not self.awaits_step:
            return self._step(plain, optimizer, closure)
        self.awaits_step = False
        assert isinstance(closure, Closure)
        errors, turn = self._round.errors, self._round.turn
        failed, step = len(errors), self._automatic_step(plain, optimizer, closure, is_bare)
        output = self.take(step, lambda _: _outputs_of(closure), partial(_give_loss, closure))
        # Lightning wants a result from the closure, also of a turn in which nothing was trained, or that is left out
        if len(errors) > failed or (turn is not None and turn.is_elsewhere) or result_of(closure) is None:
            give_result(closure, ClosureResult(None))
        self._clock.leave_a_step()
        return output

    # ---- the turn ----

    def take(
        self,
        step: Callable[[], Any],
        outputs: Callable[[Any], Any],
        give_loss: Callable[[Tensor], object] | None = None,
    ) -> Any:
        """Take the turn that has begun, and close the round after the last."""
        turn, output = self._round.turn, None
        assert turn is not None
        if not turn.is_idle:
            failed = len(self._round.errors)
            try:
                output = self._driver.take(turn, lambda: self._train(turn, step, outputs, give_loss))
            finally:
                self._batch = None
            if self._is_unseen and len(self._round.errors) == failed:
                warn_unseen_steps(self._round.algorithm, self._round.settings.client_schedule)
        if turn.is_last:
            self._driver.close()
        return output

    def _train(
        self,
        turn: Turn,
        step: Callable[[], Any],
        outputs: Callable[[Any], Any],
        give_loss: Callable[[Tensor], object] | None,
    ) -> Any:
        """Take the client's local iterations, by themselves or with other clients'; the last one's output."""
        if self.at_once is None:
            return self._iterate(turn, step, outputs)
        if (trained := self.at_once.of(turn)) is None:
            return self._iterate(turn, self.at_once.timed(step), outputs)
        with self._clock.within():
            loss = self._end_as(turn, trained)
        if give_loss is None:
            return None
        give_loss(loss)
        if self._round.settings.aggregator.needs_losses:
            self._round.loss = float(trained.losses[0])
        return loss

    def _end_as(self, turn: Turn, trained: TrainedTurn) -> Tensor:
        """Bring everything where the turn's own iterations would have left it; the last loss."""
        clock, results = self._clock, logged_values(self._trainer)
        turn.current = results.batch = trained.batch
        results.batch_size = None
        self._batches.show(trained.batch)
        clock.iteration = clock.interval - 1
        self.client_iteration = self._round.memory.iterations.get(turn.client, 0) + clock.iteration
        self._is_unseen = False
        clock.count_steps(trained.steps)
        assert self.at_once is not None
        return self.at_once.load(trained)

    def _iterate(self, turn: Turn, step: Callable[[], Any], outputs: Callable[[Any], Any]) -> Any:
        """Take the client's local iterations; the last one's output."""
        output, done = None, self._round.memory.iterations.get(turn.client, 0)
        clock, hooks, schedules, results = self._clock, self._hooks, self._schedules, logged_values(self._trainer)
        assert results is not None
        with clock.within():
            for i, batch in enumerate(self._batches.batches_of(turn)):
                self._batch = turn.current = batch = self._moved(batch)
                self._batches.show(batch)
                clock.iteration, self.client_iteration = i, done + i
                self._batch_idx = i if self._counts_rounds else done + i
                results.batch, results.batch_size = batch, None  # of which `log` takes its weight
                if hooks.start(batch, self._batch_idx) == -1:
                    break
                output = step()
                if i == 0 and self._round.settings.aggregator.needs_losses:
                    self._round.loss = self._loss_in(outputs(output))
                if schedules and not clock.accumulates:
                    schedules.move(i)
                if hooks.wants_outputs:
                    hooks.end(outputs(output), batch, self._batch_idx)
        self._is_unseen = self._last_step == NO_STEP
        self._warn_of_remainder()
        return output

    def _loss_in(self, outputs: dict[str, Any]) -> float | None:
        """Return the loss among what a step gave, or None; Lightning has divided it by the batches of its gradient."""
        loss = outputs.get("loss")
        return None if loss is None else float(loss) * self._clock.accumulation

    def _moved(self, batch: Any) -> Any:
        return move_data_to_device(batch, self._device) if self._moves_plainly else self._move(batch)

    def _arguments(self, count: int) -> tuple[Any, ...]:
        return (self._batch, self._batch_idx)[:count]

    def _warn_of_remainder(self) -> None:
        """Warn where a module accumulates gradients by hand and a turn ends before a step is due."""
        optimized = (p for optimizer in self._round.local.optimizers for p in parameters_of(optimizer))
        iteration, last = self._clock.iteration, self._last_step
        steps_by_hand = not self._module.automatic_optimization and last not in (NO_STEP, iteration)
        if steps_by_hand and any(p.grad is not None and bool(p.grad.any()) for p in optimized):
            warn_of_remainder(self._clock.interval, iteration - last)

    # ---- an optimizer's step ----

    def _automatic_step(
        self, plain: PlainStep, optimizer: Optimizer, closure: Closure, is_bare: bool
    ) -> Callable[[], Any]:
        """Return what Lightning's automatic optimisation does with one batch, counted as it counts."""
        clock, hooks, zeroing = self._clock, self._hooks, zeroing_of(closure)
        progress = self._trainer.fit_loop.epoch_loop.automatic_optimization.optim_progress.optimizer.step
        quick = self.no_hooks and is_bare and clock.accumulation == 1

        def step() -> Any:
            set_zeroing(closure, zeroing if clock.opens_accumulation else None)
            if clock.accumulates:
                return closure()
            progress.increment_ready()
            if quick and self._num_arguments:
                output = self._quick_step(optimizer, closure)
            elif hooks.steps:
                output = hooks.step(self._batch_idx, optimizers_of(self._trainer)[0], closure)
            else:
                output = self._step(plain, optimizer, closure)
            progress.increment_completed()
            return output

        return step

    def _step(self, plain: PlainStep, optimizer: Optimizer, closure: Callable[[], Any]) -> Any:
        self._last_step = self._clock.iteration
        with scaled_rates(optimizer, self._round.factor if self._round.turn is not None else 1.0):
            return plain(optimizer, closure)

    def _quick_step(self, optimizer: Optimizer, closure: Closure) -> Any:
        self._last_step = self._clock.iteration
        with scaled_rates(optimizer, self._round.factor):
            return quick_step(
                self._module, optimizer, closure, self._local_training_step, self._round.algorithm.before_step
            )

    def _local_training_step(self) -> Any:
        return self._module.training_step(*self._arguments(self._num_arguments))


def _give_loss(closure: Closure, loss: Tensor) -> None:
    """Give Lightning the loss of a turn's last step."""
    give_result(closure, ClosureResult.from_training_step_output(loss))


def _outputs_of(closure: Closure) -> dict[str, Any]:
    """Return what Lightning tells hooks of a step's result."""
    result = result_of(closure)
    return {} if result is None or result.loss is None else result.asdict()
