"""Turns of many small clients taken at once: how many, whether it wins, and each client's part at its own turn."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from lightning.fabric.utilities.apply_func import move_data_to_device
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loops.optimization.automatic import ClosureResult
from lightning.pytorch.plugins.precision import DoublePrecision, Precision
from lightning.pytorch.utilities import GradClipAlgorithmType
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from torch import Tensor, nn

from fedgen.clients.turn import LazyTurn, Turn
from fedgen.data.optional_attributes import optional
from fedgen.federated.algorithms.algorithm import ClientAlgorithm
from fedgen.federated.lightning.lightning_internals import RESULT, has_step_hooks, is_compiled
from fedgen.federated.local_training import BATCH_HOOKS, MODULE_HOOKS, LocalTraining, hooks_around_steps
from fedgen.federated.round import exits_fail
from fedgen.federated.vectorised.stacked_clients import Setting, StackedClients, Trial, try_steps, why_not_stacked
from fedgen.models.optional_hooks import FederatedModule, FunctionalStep, overridden_below
from fedgen.seeds import isolated

DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
# what a class that gives functional steps stands for, as far as it or a class above it defines it
STOOD_FOR = ("training_step", *MODULE_HOOKS, *BATCH_HOOKS, "manual_backward", "on_turn_start")


def obstacles_of_module(module: LightningModule) -> Iterator[str]:
    name, why = type(module).__name__, optional(module, FederatedModule, "no_functional_steps")
    if optional(module, FederatedModule, "functional_steps") is None:
        yield f"{name} does not give its steps as functions (functional_steps)"
    if why is not None:
        yield str(why)
    if "training_step" in vars(module):
        yield f"the training_step of the {name} has been replaced"
    if (overridden := overridden_below(module, "functional_steps", STOOD_FOR)) is not None:
        yield overridden
    for name, part in module.named_modules():
        if isinstance(part, DROPOUTS) and part.p > 0 and part.training:
            yield f"{name} draws within the network (dropout)"
        if is_compiled(part) or "forward" in vars(part):
            yield f"{name or type(part).__name__} is compiled, or its forward is replaced"


TIMED_TURNS = 2  # taken one by one before some are taken at once, where that is to win
TIMED_ITERATIONS = 3  # at once, of which the first takes longer
STATES = 5  # of parameters that a client holds: weights, their gradients, two moments, and what a step makes


@dataclass(frozen=True)
class VectorisedTurns:
    """Settings for training small clients of a cohort at once, by `torch.vmap` over stacked weights.

    `FedAvgStrategy(vectorised_turns=VectorisedTurns())`. Batches, random numbers, weights, states, logs and clients
    left out are those of turns one by one, to rounding. Where a module, an optimizer or a setting has no form for many
    clients, turns are taken one by one and the log says why; docs/vectorised-turns.md lists them.

    Args:
        clients: trained at once, at most.
        memory: bytes for what these clients hold at once, of which the number of clients follows; None takes 1 GB on a
            CPU, and on a GPU a quarter of what is free when the first turns are taken.
        always: whether turns are taken at once wherever they can. By default the first turns are timed both ways, and
            the faster way is kept: results then depend on the machine by rounding, and with `always` on nothing but
            the settings (on a GPU, give `memory`, too).

    Raises:
        ValueError: for fewer than two clients, or memory that is not positive.

    Examples:
        >>> from fedgen import FedAvgStrategy
        >>> from fedgen.federated import VectorisedTurns
        >>> strategy = FedAvgStrategy(20, vectorised_turns=VectorisedTurns(clients=32))
        >>> strategy.vectorised_turns
        VectorisedTurns(clients=32, memory=None, always=False)
    """

    clients: int = 64
    memory: float | None = None
    always: bool = False

    def __post_init__(self) -> None:
        if self.clients < 2:
            raise ValueError(f"clients={self.clients}: at least two train at once; leave vectorised_turns out for one")
        if self.memory is not None and not self.memory > 0:
            raise ValueError(f"memory={self.memory}: give bytes, or None for what suits the device")

    def bytes_on(self, device: torch.device) -> float:
        """The memory for what clients hold at once."""
        if self.memory is not None:
            return self.memory
        return torch.cuda.mem_get_info(device)[0] / 4 if device.type == "cuda" else 1e9


class VectorisedTraining(LocalTraining):
    """Takes turns of small clients at once, where that is possible and wins."""

    def __init__(self, settings: VectorisedTurns, seed: int, *parts: Any) -> None:
        super().__init__(*parts)
        strategy = self._trainer.strategy
        move = partial(move_data_to_device, device=self._device) if self._moves_plainly else self._move
        context, clip = strategy.precision_plugin.train_step_context, clip_of(self._trainer)
        self._shared = Setting(self._module, strategy.optimizers, self._round, seed, move, context, clip)
        self._settings, self._limit = settings, settings.clients
        self.reason: str | None = None  # why turns are taken one by one
        self.counts = [0, 0]  # turns taken one by one, and at once
        self._has_checked = self._is_sure = False  # whether obstacles were looked for, and it is known to win
        self._trial: Trial | None = None
        self._tried_steps: dict[str, FunctionalStep] = {}  # one of each kind
        # seconds of a client's iterations one by one and at once, and of a turn at once beside its iterations
        self._alone: list[float] = []
        self._together: list[float] = []
        self._stacking = self._loading = 0.0
        self._waiting: dict[int, tuple[StackedClients, int]] = {}  # turns of the round taken already: stack, row
        self._kinds_after: dict[int, list[list[str]]] = {}
        self._apart: list[Turn] = []  # turns of the round to be taken one by one: together they failed

    def _train(self, turn: Turn, *parts: Any) -> Any:
        if turn.is_first:
            self._waiting, self._kinds_after, self._apart = {}, {}, []
        trained = self._waiting.pop(id(turn), None) or self._begin(turn)
        self.counts[trained is not None] += 1
        if trained is None:
            start = self._now()
            output = super()._train(turn, *parts)
            if self._is_timed and self.reason is None:
                self._alone.append((self._now() - start) / self._clock.interval)
            return output
        together, row = trained
        with self._clock.within():
            loss = self._end_as(turn, together, row)
        if self._closure is None:
            return None
        vars(self._closure)[RESULT] = ClosureResult.from_training_step_output(loss)
        if self._round.settings.aggregator.needs_losses:
            self._round.loss = float(together.losses[0][row])
        return loss

    def _obstacles(self, turn: Turn) -> Iterator[str]:
        """Return the reasons, if any, why turns cannot be taken at once."""
        trainer, algorithm, optimizers = self._trainer, self._round.algorithm, self._shared.optimizers
        yield from obstacles_of_module(self._module)
        if type(trainer.strategy.precision_plugin) not in (Precision, DoublePrecision):
            yield f"precision={trainer.precision} is for one client at a time"
        if self._clock.accumulation != 1:
            yield f"gradients are accumulated over {self._clock.accumulation} batches"
        if self._schedules:
            yield "a learning rate has a schedule by the step"
        for owner, hook in hooks_around_steps(trainer):
            yield f"{type(owner).__name__}.{hook} is called at each step"
        for optimizer in filter(has_step_hooks, optimizers):
            yield f"{type(optimizer).__name__} has hooks around its steps"
        if type(algorithm) is not ClientAlgorithm:
            yield f"{type(algorithm).__name__} acts on each step"
        if self._round.snapshots is not None:
            yield "clients start from weights of different rounds"
        yield from filter(None, map(why_not_stacked, optimizers))
        if isinstance(turn, LazyTurn):
            yield "batches are read while turns run"

    def _begin(self, turn: Turn) -> tuple[StackedClients, int] | None:
        """Take some turns at once, the given one among them, if that is possible; the turn as it was taken."""
        if not self._has_checked:
            self._has_checked = True
            if (why := next(self._obstacles(turn), None)) is not None:
                self._stop(why)
        if self.reason is not None or turn.is_remote or (self._is_timed and self.counts[0] < TIMED_TURNS):
            return None
        try:
            with isolated(), exits_fail():
                self._train_together(turn)
        except torch.OutOfMemoryError:
            self._limit //= 2
            rank_zero_info(f"vectorised_turns: out of memory; at most {self._limit} clients' turns are taken at once")
            torch.cuda.empty_cache()
            if self._limit < 2:
                self._stop("the device has no memory for two clients")
            return self._begin(turn)
        except Exception as error:  # the turns by themselves say whose fault it is
            self._fail(turn, error)
        return self._waiting.pop(id(turn), None)

    def _train_together(self, turn: Turn) -> None:
        trial = self._tried(turn)
        memory = self._settings.bytes_on(self._round.device)
        most = min(self._limit, int(memory // (trial.num_bytes + STATES * trial.stepped_bytes)))
        if most < 2:
            self._stop(f"memory={memory:.3g} bytes hold fewer than two clients")
            return
        group = self._alike(turn, most)
        if len(group) < 2:
            return
        start = self._now()
        together = StackedClients(self._shared, group, trial)
        self._stacking = (self._now() - start) / len(group)
        together.train(self._iterations(len(group)))
        self._waiting |= {id(one): (together, row) for row, one in enumerate(group)}

    def _alike(self, turn: Turn, most: int) -> list[Turn]:
        """The turn, and those that come in its round and go with it."""
        kinds, found, coming = self._kinds(turn), [turn], turn
        while len(found) + len(self._waiting) < most and not coming.is_last and coming.following is not None:
            if (after := coming.following()) is None:
                break
            coming = after
            apart = coming.is_remote or id(coming) in self._waiting or any(coming is one for one in self._apart)
            if not apart and coming.batch_length == turn.batch_length and self._kinds(coming) == kinds:
                found.append(coming)
        return found

    def _kinds(self, turn: Turn) -> list[list[str]]:
        """The kinds of a turn's steps by its iterations, which go by how many iterations the client has taken."""
        done = self._round.memory.iterations.get(turn.client, 0)
        if done not in self._kinds_after:
            self._kinds_after[done] = [[step.kind for step in steps] for steps in self._steps(turn)]
        return self._kinds_after[done]

    def _steps(self, turn: Turn) -> list[Sequence[FunctionalStep]]:
        done = self._round.memory.iterations.get(turn.client, 0)
        return [self._shared.module.functional_steps(done + i) for i in range(self._clock.interval)]

    def _tried(self, turn: Turn) -> Trial:
        """Return what a trial of all kinds of steps found, the turn's among them; made again for new kinds."""
        kinds = {step.kind: step for steps in self._steps(turn) for step in steps}
        if self._trial is None or not kinds.keys() <= self._tried_steps.keys():
            self._tried_steps |= kinds
            batch = self._shared.move(next(iter(turn.batches(1))))
            self._trial = try_steps(self._shared, list(self._tried_steps.values()), batch)
        return self._trial

    def _end_as(self, turn: Turn, together: StackedClients, row: int) -> Tensor:
        """Bring everything where the turn's own iterations would have left it; the last loss."""
        clock, results, batch = self._clock, self._clock.results, together.last[row]
        self._shown_of, self._shown = turn, batch
        turn.current = results.batch = batch
        results.batch_size = None
        clock.iteration = clock.interval - 1
        self.client_iteration = self._round.memory.iterations.get(turn.client, 0) + clock.iteration
        self._is_unseen = False
        clock.count_steps(together.steps)
        start = self._now()
        together.load(row)
        if (hook := optional(self._module, FederatedModule, "end_functional_turn")) is not None:
            hook(together.noted(row), turn.batch_length)
        if self._is_timed:
            self._loading = self._now() - start
            self._decide(len(together.turns))
        return together.losses[-1][row]

    def _stop(self, why: str) -> None:
        self.reason = why
        rank_zero_info(f"vectorised_turns: clients' turns are taken one by one: {why}")

    def _fail(self, turn: Turn, error: Exception) -> None:
        """Take turns that cannot be taken at once one by one: these, and where none ever could, all."""
        why = " ".join(str(error).split("\n")[:1]) or type(error).__name__
        if not self.counts[1]:
            self._stop(why)
            return
        self._apart += self._alike(turn, self._limit)
        rank_zero_info(f"vectorised_turns: {len(self._apart)} of the round's turns are taken one by one: {why}")

    @property
    def _is_timed(self) -> bool:
        return not (self._settings.always or self._is_sure)

    def _iterations(self, clients: int) -> Iterator[int]:
        for i in range(self._clock.interval):
            start = self._now()
            yield i
            self._together.append((self._now() - start) / clients)

    def _decide(self, clients: int) -> None:
        """Keep the faster way, once both have been timed: by the best turn at once over the best by itself."""
        if len(self._together) < TIMED_ITERATIONS:
            return
        interval = self._clock.interval
        at_once = min(self._together) * interval + self._stacking + self._loading
        self._is_sure, ratio = True, at_once / (min(self._alone) * interval)
        said = f"{clients} clients at once take {ratio:.2g} of the time of as many turns one by one"
        if ratio >= 1:
            self._stop(said)
        else:
            rank_zero_info(f"vectorised_turns: {said}")

    def _now(self) -> float:
        if self._is_timed and self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()


def clip_of(trainer: Trainer) -> Callable[[Tensor], Tensor] | None:
    """The trainer's bound on a step's gradient, of gradients [clients, numbers]; None without."""
    bound = trainer.gradient_clip_val
    if not bound:
        return None
    if trainer.gradient_clip_algorithm == GradClipAlgorithmType.VALUE:
        return lambda gradients: gradients.clamp(-bound, bound)

    # as torch.nn.utils.clip_grad_norm_
    return lambda gradients: gradients * (bound / (gradients.norm(dim=1, keepdim=True) + 1e-6)).clamp(max=1.0)
