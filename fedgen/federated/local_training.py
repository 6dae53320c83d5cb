"""The local iterations of a client's turn: each one `training_step` of the unchanged module, with its optimizer steps.

Lightning sees one batch a turn. Under automatic optimisation it calls the optimizer once for it, which opens the turn;
under manual optimisation it calls the training step.

Between a batch and its optimizer step Lightning offers a dozen hooks, each with a profiler's context and a line for the
log: 0.3 ms on a slow core, a tenth of a small model's iteration. Where none of them is overridden nothing is lost by
leaving them out, and where one is they are all called.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

import torch
from lightning.fabric.utilities.apply_func import move_data_to_device
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint, OnExceptionCheckpoint, ProgressBar
from lightning.pytorch.loops.optimization.automatic import Closure, ClosureResult
from lightning.pytorch.loops.optimization.manual import ManualResult
from lightning.pytorch.plugins.precision import Precision
from lightning.pytorch.profilers import PassThroughProfiler
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor
from torch.optim import Optimizer

from fedgen.clients.turn import Turn
from fedgen.federated.algorithms.algorithm import ClientAlgorithm
from fedgen.federated.client_state.exchange import parameters_of
from fedgen.federated.left_out import log_dropped, report_of
from fedgen.federated.lightning.checks import warn_of_remainder, warn_unseen_steps
from fedgen.federated.lightning.lightning_internals import (
    HOOK_NAME,
    RESULT,
    STEP_ARGUMENTS,
    ZEROING,
    hold_checkpoint,
    optimizers_of,
    will_skip,
)
from fedgen.federated.round import Round
from fedgen.federated.schedules import scaled_rates
from fedgen.federated.trainer_patches import StepSchedules
from fedgen.models.optional_hooks import data_module_of, scaler_of
from fedgen.own_code import rank_zero_warn

PlainStep = Callable[[Optimizer, Callable[[], Any]], Any]
QuickStep = tuple[Optimizer, Callable[[], Any]]  # an optimizer and its closure, called without Lightning's loops
NO_STEP = -1  # the iteration of the last optimizer step, where none has been
BATCH_HOOKS = ("on_train_batch_start", "on_train_batch_end")
CALLBACK_HOOKS = ("on_before_zero_grad", "on_before_backward", "on_after_backward", "on_before_optimizer_step")
MODULE_HOOKS = (*CALLBACK_HOOKS, "optimizer_zero_grad", "backward", "configure_gradient_clipping", "optimizer_step")
STRATEGY_HOOKS = ("pre_backward", "backward", "post_backward", "post_training_step")
TRANSFER_HOOKS = ("transfer_batch_to_device", "on_after_batch_transfer")


class Driver(Protocol):
    """Decides where turns are taken and what becomes of them; a `Round` itself takes them in this process."""

    def begin(self, number: int, clients: int, cohort: int, folder: Path) -> None: ...
    def take(self, turn: Turn, train: Callable[[], Any]) -> Any: ...
    def close(self) -> None: ...


class LocalTraining:
    """Takes clients' turns on this process's module."""

    def __init__(
        self, round: Round, driver: Driver, schedules: StepSchedules, counts_rounds: bool, move: Callable[[Any], Any]
    ) -> None:
        self._clock, trainer = round.clock, round.clock.trainer
        self._trainer, self._module = trainer, trainer.lightning_module
        self._round, self._driver, self._schedules, self._counts_rounds = round, driver, schedules, counts_rounds
        self.no_hooks = calls_no_hook(trainer)
        owners = [one for one in (self._module, data_module_of(trainer)) if one is not None]
        overridden = any(is_overridden(hook, owner) for owner in owners for hook in TRANSFER_HOOKS)
        self._moves_plainly, self._move = type(trainer.strategy.precision_plugin) is Precision and not overridden, move
        self._device = trainer.strategy.root_device
        self._batch: Any = None  # of the iteration that runs
        self.client_iteration: int | None = None
        self._shown_of: Turn | None = None  # whose batches callbacks see
        self._shown: Any = None  # its latest batch
        self._begun: Iterator[Any] | None = None  # its batches, of which the first has been shown before it runs
        self._closure: Closure | None = None  # Lightning's, under automatic optimisation
        self._num_arguments = 0  # that Lightning passes to the module's training_step; 0: not known yet
        self.awaits_step = False
        self._batch_idx, self._last_step, self._is_unseen = 0, NO_STEP, False
        self._replaced: list[tuple[Any, str, Any]] = []  # owner, hook, what its instance had of that name
        self._replace_hooks()

    def _replace_hooks(self) -> None:
        """Have a module's hooks around batches run at each local iteration, and callbacks' hooks with real batches."""
        module: Any = self._module
        self._own = {name: getattr(module, name) for name in BATCH_HOOKS if is_overridden(name, module)}
        for name in self._own:
            self._replace(module, name, _nothing)
        self._own_step = module.optimizer_step if is_overridden("optimizer_step", module) else None
        if self._own_step is not None:
            self._replace(module, "optimizer_step", _plain_step)
        loop = self._trainer.fit_loop.epoch_loop  # which would read the signature of `training_step` for each turn
        arguments = tuple(getattr(loop, STEP_ARGUMENTS)({}, None, 0))  # a private method
        self._replaced.append((loop, STEP_ARGUMENTS, None))
        vars(loop)[STEP_ARGUMENTS] = lambda none, *values: dict(zip(arguments, values))
        for callback in self._trainer.callbacks:
            for name in BATCH_HOOKS:
                if is_overridden(name, callback, Callback) and not isinstance(callback, RoundBoundary):
                    self._replace(callback, name, _of_batches(callback, name, self._batch_of))

    def _replace(self, owner: Any, name: str, hook: Any) -> None:
        self._replaced.append((owner, name, vars(owner).get(name)))
        vars(owner)[name] = hook

    def release(self) -> None:
        for owner, name, before in self._replaced:
            if before is None:
                vars(owner).pop(name, None)
            else:
                vars(owner)[name] = before
        self._replaced = []

    def _call_hook(self, name: str, *args: Any) -> Any:
        """Call one of the module's hooks as Lightning does; -1 of `on_train_batch_start` ends the turn."""
        named = vars(self._module)
        before, named[HOOK_NAME] = named[HOOK_NAME], name
        with self._trainer.profiler.profile(f"[LightningModule]{type(self._module).__name__}.{name}"):
            result = self._own[name](*args)
        named[HOOK_NAME] = before
        return result

    def begin_turn(self, turn: Turn) -> None:
        if self._shown_of is not turn:
            self._shown = self._begun = None
        self._last_step, self._is_unseen = NO_STEP, False
        self._round.begin_turn(turn)
        self.awaits_step = self._module.automatic_optimization

    def _batch_of(self, turn: Turn) -> Any:
        """The batch that callbacks see: the turn's first before it runs, else its latest; the turn if it is remote."""
        if turn.is_remote:
            return turn
        if self._shown_of is not turn:
            batches = turn.batches(self._clock.interval)
            self._shown_of, self._shown = turn, next(batches)
            self._begun = chain([self._shown], batches)
        return self._shown

    def training_step(self, plain: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Any:
        """Do what Lightning's call of a training step means: an iteration or a whole turn."""
        if self._round.turn is None:
            return plain(*args, **kwargs)
        count = len(args)
        if self._module.automatic_optimization:
            self._num_arguments = count
            return plain(*(self._batch, self._batch_idx)[:count])
        self._closure = None
        return self._take(lambda: plain(*(self._batch, self._batch_idx)[:count]))

    def optimizer_step(self, plain: PlainStep, optimizer: Optimizer, closure: Callable[[], Any], is_bare: bool) -> Any:
        """Do what Lightning's call of an optimizer means: a step, or a whole turn under automatic optimisation."""
        if not self.awaits_step:
            self._last_step, factor = self._clock.iteration, self._round.factor if self._round.turn else 1.0
            with nullcontext() if factor == 1 else scaled_rates(optimizer, factor):
                return plain(optimizer, closure)
        self.awaits_step = False
        assert isinstance(closure, Closure)
        self._closure, errors, turn = closure, self._round.errors, self._round.turn
        failed, is_quick = len(errors), self.no_hooks and is_bare and self._clock.accumulation == 1
        quick = (optimizer, self._quick_closure(optimizer, closure)) if is_quick else None
        output = self._take(self._lightning_step(plain, optimizer, closure), quick)
        # Lightning wants a result from the closure, also of a turn in which nothing was trained, or that is left out
        if len(errors) > failed or (turn is not None and turn.is_remote) or vars(closure)[RESULT] is None:
            vars(closure)[RESULT] = ClosureResult(None)
        self._clock.leave_a_step()
        return output

    def _take(self, step: Callable[[], Any], quick: QuickStep | None = None) -> Any:
        """Take the turn that has begun, and close the round after the last."""
        turn, output = self._round.turn, None
        assert turn is not None
        if not turn.is_idle:
            failed = len(self._round.errors)
            try:
                output = self._driver.take(turn, partial(self._train, turn, step, quick))
            finally:
                self._batch = None
            if self._is_unseen and len(self._round.errors) == failed:
                warn_unseen_steps(self._round.algorithm, self._round.settings.client_schedule)
        if turn.is_last:
            self.client_iteration = None  # of no client, while the server trains
            self._driver.close()
        return output

    def _train(self, turn: Turn, step: Callable[[], Any], quick: QuickStep | None) -> Any:
        """Take the client's local iterations; the last one's output."""
        clock, round, output = self._clock, self._round, None
        schedules = self._schedules if self._schedules else None
        starts, ends = (name in self._own for name in BATCH_HOOKS)
        done, needs_loss = round.memory.iterations.get(turn.client, 0), round.settings.aggregator.needs_losses
        results, device = clock.results, self._device if self._moves_plainly else None
        progress = self._trainer.fit_loop.epoch_loop.automatic_optimization.optim_progress.optimizer.step
        batches, self._begun = turn.batches(clock.interval) if self._begun is None else self._begun, None
        self._shown_of = turn
        with clock.within():
            for i, batch in enumerate(batches):
                if device is None:
                    batch = self._move(batch)
                elif not isinstance(batch, tuple) or any(not torch.is_tensor(t) or t.device != device for t in batch):
                    batch = move_data_to_device(batch, device)
                self._batch = self._shown = turn.current = results.batch = batch
                results.batch_size = None  # `log` takes its weight from the batch
                clock.iteration, self.client_iteration = i, done + i
                self._batch_idx = i if self._counts_rounds else done + i
                if starts and self._call_hook("on_train_batch_start", batch, self._batch_idx) == -1:
                    break
                if quick is not None and self._num_arguments:
                    self._last_step = i
                    progress.increment_ready()
                    with nullcontext() if round.factor == 1 else scaled_rates(quick[0], round.factor):
                        output = quick[0].step(quick[1])
                    progress.increment_completed()
                else:
                    output = step()
                if needs_loss and i == 0:  # Lightning has divided it by the batches of its gradient
                    loss = self._outputs(output).get("loss")
                    round.loss = None if loss is None else float(loss) * clock.accumulation
                if schedules is not None and not clock.accumulates:
                    schedules.move(i)
                if ends:
                    self._call_hook("on_train_batch_end", self._outputs(output), batch, self._batch_idx)
        self._is_unseen = self._last_step == NO_STEP
        if not self._module.automatic_optimization and self._last_step not in (NO_STEP, clock.iteration):
            self._warn_of_remainder()
        return output

    def _outputs(self, output: Any) -> dict[str, Any]:
        """Return what Lightning passes to hooks after a step with this output."""
        if self._closure is None:
            return ManualResult.from_training_step_output(output).asdict()
        result = vars(self._closure)[RESULT]
        return {} if result is None or result.loss is None else result.asdict()

    def _warn_of_remainder(self) -> None:
        """Warn where a module accumulates gradients by hand and a turn ends before a step is due."""
        optimized = (p for optimizer in self._round.local.optimizers for p in parameters_of(optimizer))
        if any(p.grad is not None and bool(p.grad.any()) for p in optimized):
            warn_of_remainder(self._clock.interval, self._clock.iteration - self._last_step)

    def _quick_closure(self, optimizer: Optimizer, closure: Closure) -> Callable[[], Any]:
        """Return a closure of the training step, zeroed gradients and backward pass, counted as Lightning counts."""
        module, named, held = self._module, vars(self._module), vars(closure)
        progress = self._trainer.fit_loop.epoch_loop.automatic_optimization.optim_progress.optimizer.zero_grad
        algorithm = self._round.algorithm
        acts = acts_on_steps(algorithm)

        @torch.enable_grad()
        def run() -> Any:
            before, named[HOOK_NAME] = named[HOOK_NAME], "training_step"  # `log` asks in which hook it is called
            output = module.training_step(*(self._batch, self._batch_idx)[: self._num_arguments])
            named[HOOK_NAME] = before
            # of a tensor Lightning makes the same, by a division by 1 that autograd follows
            is_tensor = isinstance(output, Tensor)
            result = ClosureResult(output) if is_tensor else ClosureResult.from_training_step_output(output)
            progress.increment_ready()
            progress.increment_started()
            optimizer.zero_grad()
            progress.increment_completed()
            if result.closure_loss is None:
                closure.warning_cache.warn("a `training_step` returned None: its iteration has no gradient")
            else:
                result.closure_loss.backward()
            if acts:
                algorithm.before_step(optimizer)
            held[RESULT] = result
            return result.loss

        return run

    def _lightning_step(self, plain: PlainStep, optimizer: Optimizer, closure: Closure) -> Callable[[], Any]:
        """Return what Lightning's automatic optimisation does with one batch, counted as it counts."""
        clock, zeroing = self._clock, vars(closure)[ZEROING]
        progress = self._trainer.fit_loop.epoch_loop.automatic_optimization.optim_progress.optimizer.step

        def step() -> Any:
            vars(closure)[ZEROING] = zeroing if clock.iteration % clock.accumulation == 0 else None
            if clock.accumulates:
                return closure()
            progress.increment_ready()
            if self._own_step is None:
                output = self.optimizer_step(plain, optimizer, closure, True)
            else:
                wrapper = optimizers_of(self._trainer)[0]
                output = self._own_step(self._module.current_epoch, self._batch_idx, wrapper, closure)
            progress.increment_completed()
            return output

        return step


def calls_no_hook(trainer: Trainer) -> bool:
    """Return whether Lightning's calls around a step do nothing: no hook is overridden, and no plugin needs them."""
    return (
        not any(is_overridden(hook, trainer.lightning_module) for hook in MODULE_HOOKS)
        and not any(hooks_around_steps(trainer))
        and type(trainer.strategy.precision_plugin) is Precision
        and type(trainer.profiler) is PassThroughProfiler
        and not trainer.gradient_clip_val
    )


def hooks_around_steps(trainer: Trainer) -> Iterator[tuple[Any, str]]:
    """Return the hooks that Lightning calls around a step, of callbacks and of a custom strategy."""
    callbacks = [callback for callback in trainer.callbacks if not isinstance(callback, RoundBoundary)]
    yield from ((one, hook) for one in callbacks for hook in CALLBACK_HOOKS if is_overridden(hook, one))
    strategy = trainer.strategy
    yield from ((strategy, hook) for hook in STRATEGY_HOOKS if is_overridden(hook, strategy, DDPStrategy))


def acts_on_steps(algorithm: ClientAlgorithm) -> bool:
    """Return whether an algorithm overrides `before_step`, in its class or on the instance."""
    function = getattr(algorithm.before_step, "__func__", None)  # a function set on an instance has none
    return function is not ClientAlgorithm.before_step


def _nothing(*args: Any, **kwargs: Any) -> None:
    """A module's hook as Lightning finds it during a turn: the strategy has called the real one."""


def _plain_step(epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
    """A module's `optimizer_step` as Lightning finds it: it opens the turn, whose steps call the real one."""
    optimizer.step(closure=optimizer_closure)


def _of_batches(callback: Callback, name: str, real_batch: Callable[[Turn], Any]) -> Callable[..., Any]:
    hook, counts_turns = getattr(callback, name), isinstance(callback, ProgressBar)

    def wrapper(*args: Any) -> Any:
        turn = next((arg for arg in args if isinstance(arg, Turn)), None)
        if turn is not None and (turn.is_idle or turn.is_left_out) and not counts_turns:
            return None
        return hook(*(real_batch(arg) if isinstance(arg, Turn) else arg for arg in args))

    return wrapper


class RoundBoundary(Callback):
    """Drops a round that Lightning cut short, passes optimizer steps on to the client algorithm, lets simulated time
    pass, and logs schedules and clients left out; the strategy puts it first among the trainer's callbacks."""

    def __init__(self, strategy: Any, others: Sequence[Callback] = ()) -> None:
        self._strategy = strategy
        self._keeps_last_round = any(isinstance(callback, OnExceptionCheckpoint) for callback in others)
        self._acts = acts_on_steps(strategy.client_algorithm)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not self._strategy.has_logged_state:
            self._strategy.log_state_table()
        if self._keeps_last_round:
            self._strategy.checkpoints.keep_last_round()

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Any) -> None:
        # the server may take steps of its own after the turns
        if self._acts and self._strategy.in_turns and not will_skip(scaler_of(trainer), optimizer):
            self._strategy.client_algorithm.before_step(optimizer)

    def on_train_batch_end(self, trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        if trainer.is_last_batch:
            self._drop_if_cut(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._drop_if_cut(trainer)
        if not self._strategy.in_round:
            self._strategy.end_simulated_round()
        for name, value in self._strategy.metrics.items():
            pl_module.log(name, value)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._strategy.log_state_table()
        log_dropped(report_of(trainer))

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        if self._strategy.in_round:  # which the strategy drops next
            _hold_checkpoints(trainer)
        if not self._strategy.is_of_clients(exception):  # its own note says that all clients met it
            log_dropped(report_of(trainer))

    def _drop_if_cut(self, trainer: Trainer) -> None:
        if self._strategy.in_turns:
            self._strategy.drop_round()
            _hold_checkpoints(trainer)
            rank_zero_warn("a round was cut short before its last client's turn and is dropped")


def _hold_checkpoints(trainer: Trainer) -> None:
    """Keep ModelCheckpoints from saving at the present step: they would remove an older file for one never written."""
    for callback in trainer.checkpoint_callbacks:
        if isinstance(callback, ModelCheckpoint):
            hold_checkpoint(callback, trainer.global_step)
