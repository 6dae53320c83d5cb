"""Turns of many small clients taken at once: how many, whether it wins, and each client's part at its own turn."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from lightning.fabric.utilities.apply_func import move_data_to_device
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loops.optimization.automatic import ClosureResult
from lightning.pytorch.plugins.precision import DoublePrecision, Precision
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.utilities import GradClipAlgorithmType
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from torch import Tensor, nn

from fedgen.clients.turn import LazyTurn, Turn
from fedgen.data.optional_attributes import optional
from fedgen.federated.algorithms.algorithm import ClientAlgorithm
from fedgen.federated.lightning.lightning_internals import RESULT, has_step_hooks, is_compiled
from fedgen.federated.local_training import (
    BATCH_HOOKS,
    CALLBACK_HOOKS,
    MODULE_HOOKS,
    STRATEGY_HOOKS,
    LocalTraining,
    RoundBoundary,
)
from fedgen.federated.round import Round, exits_fail
from fedgen.federated.trainer_patches import TurnClock
from fedgen.federated.vectorised.stacked_clients import Setting, StackedClients, Trial, try_steps
from fedgen.federated.vectorised.stacked_optimizer import why_not_stacked
from fedgen.models.functional_step import FunctionalStep, overridden_below
from fedgen.models.optional_hooks import FederatedModule
from fedgen.seeds import isolated

DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
# what a class that gives functional steps stands for, as far as it or a class above it defines it
STOOD_FOR = ("training_step", *MODULE_HOOKS, *BATCH_HOOKS, "manual_backward", "on_turn_start")


def why_one_by_one(trainer: Trainer, round: Round, clock: TurnClock, moves_schedules: bool, turn: Turn) -> str | None:
    """Return why turns cannot be taken at once, in words; None if they can."""
    module = trainer.lightning_module
    found = [
        _of_module(module),
        _of_parts(module),
        _of_trainer(trainer, clock, moves_schedules),
        _of_algorithm(round.algorithm),
        None if round.snapshots is None else "clients start from weights of different rounds",
        *(why_not_stacked(optimizer) for optimizer in trainer.strategy.optimizers),
        "batches are read while turns run" if isinstance(turn, LazyTurn) else None,
    ]
    return next((reason for reason in found if reason is not None), None)


def _of_module(module: LightningModule) -> str | None:
    name, why = type(module).__name__, optional(module, FederatedModule, "no_functional_steps")
    if optional(module, FederatedModule, "functional_steps") is None:
        return f"{name} does not give its steps as functions (functional_steps)"
    if why is not None:
        return str(why)
    if "training_step" in vars(module):
        return f"somebody has replaced the training_step of the {name}"
    return overridden_below(module, "functional_steps", STOOD_FOR)


def _of_parts(module: LightningModule) -> str | None:
    return next(_faults(module), None)


def _faults(module: LightningModule) -> Iterator[str]:
    for name, part in module.named_modules():
        if isinstance(part, DROPOUTS) and part.p > 0 and part.training:
            yield f"{name} draws within the network (dropout)"
        if is_compiled(part) or "forward" in vars(part):
            yield f"{name or type(part).__name__} is compiled, or its forward is replaced"


def _of_trainer(trainer: Trainer, clock: TurnClock, moves_schedules: bool) -> str | None:
    strategy = trainer.strategy
    if type(strategy.precision_plugin) not in (Precision, DoublePrecision):
        return f"precision={trainer.precision} is for one client at a time"
    if clock.accumulation != 1:
        return f"gradients are accumulated over {clock.accumulation} batches"
    if moves_schedules:
        return "a learning rate has a schedule by the step"
    callbacks: list[Any] = [one for one in trainer.callbacks if not isinstance(one, RoundBoundary)]
    asked = [(one, hook) for one in callbacks for hook in CALLBACK_HOOKS if is_overridden(hook, one)]
    asked += [(strategy, hook) for hook in STRATEGY_HOOKS if is_overridden(hook, strategy, DDPStrategy)]
    if asked:
        return f"{type(asked[0][0]).__name__}.{asked[0][1]} is called at each step"
    hooked = next((one for one in strategy.optimizers if has_step_hooks(one)), None)
    return None if hooked is None else f"{type(hooked).__name__} has hooks around its steps"


def _of_algorithm(algorithm: ClientAlgorithm) -> str | None:
    return None if type(algorithm) is ClientAlgorithm else f"{type(algorithm).__name__} acts on each step"


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


@dataclass
class TrainedTurn:
    """A client's turn that was taken with others'."""

    together: StackedClients
    row: int

    @property
    def batch(self) -> Any:
        """The client's last batch."""
        return self.together.last[self.row]

    @property
    def steps(self) -> int:
        """Its optimizer steps."""
        return self.together.steps

    @property
    def losses(self) -> tuple[Tensor, Tensor]:
        """Those of its first step and its last."""
        first, *_, last = [*self.together.losses, self.together.losses[-1]]
        return first[self.row], last[self.row]


@dataclass
class _Times:
    """Seconds of a client's iterations one by one and at once, and of what a turn that is taken at once has besides."""

    alone: list[float] = field(default_factory=list)
    together: list[float] = field(default_factory=list)
    stacking: float = 0.0
    loading: float = 0.0

    def ratio(self, interval: int) -> float:
        """The best turn at once over the best by itself."""
        beside = self.stacking + self.loading
        return (min(self.together) * interval + beside) / (min(self.alone) * interval)


class TurnsAtOnce:
    """Takes turns of a fit at once where that is possible, and wins."""

    def __init__(
        self,
        settings: VectorisedTurns,
        trainer: Trainer,
        round: Round,
        clock: TurnClock,
        move: Callable[[Any], Any],
        moves_schedules: bool,
        seed: int,
    ) -> None:
        self._settings, self._trainer, self._round, self._clock = settings, trainer, round, clock
        module, strategy = trainer.lightning_module, trainer.strategy
        self._module: Any = module
        self._setting = Setting(
            module,
            strategy.optimizers,
            round,
            seed,
            move,
            strategy.precision_plugin.train_step_context,
            clip_of(trainer),
        )
        self._moves_schedules, self._limit = moves_schedules, settings.clients
        self.reason: str | None = None
        self.counts = [0, 0]
        self._is_asked = self._is_sure = False  # whether obstacles were looked for, and it is known to win
        self._trial: Trial | None = None
        self._tried_steps: dict[str, FunctionalStep] = {}  # one of each kind
        self._times = _Times()
        self._waiting: dict[int, tuple[Turn, TrainedTurn]] = {}
        self._kinds_after: dict[int, list[list[str]]] = {}
        self._apart: list[Turn] = []  # of a round, to be taken one by one: together they failed

    # ---- turns ----

    def of(self, turn: Turn) -> TrainedTurn | None:
        """The turn as it was taken with others, which may happen now; None if it is to be taken by itself."""
        if turn.is_first:
            self._waiting, self._apart, self._kinds_after = {}, [], {}
        if (found := self._waiting.pop(id(turn), None)) is None:
            found = self._begin(turn)
        self.counts[found is not None] += 1
        return None if found is None else found[1]

    def _begin(self, turn: Turn) -> tuple[Turn, TrainedTurn] | None:
        """Take some turns at once, the given one among them, if that is possible; its part."""
        if not self._is_asked:
            self._is_asked = True
            why = why_one_by_one(self._trainer, self._round, self._clock, self._moves_schedules, turn)
            if why is not None:
                self._stop(why)
        if self.reason is not None or turn.is_remote or (self._is_timed and self.counts[0] < TIMED_TURNS):
            return None
        try:
            with isolated(), exits_fail():
                self._take(turn)
        except torch.OutOfMemoryError:
            return self._with_fewer(turn)
        except Exception as error:
            # the turns by themselves say whose fault it is
            self._fail(turn, error)
        return self._waiting.pop(id(turn), None)

    def _take(self, turn: Turn) -> None:
        trial = self._tried(turn)
        memory = self._settings.bytes_on(self._setting.device)
        most = min(self._limit, int(memory // (trial.num_bytes + STATES * trial.stepped_bytes)))
        if most < 2:
            self._stop(f"memory={memory:.3g} bytes hold fewer than two clients")
            return
        group = self._alike(turn, most)
        if len(group) < 2:
            return
        start = self._now()
        together = StackedClients(self._setting, group, trial)
        self._times.stacking = (self._now() - start) / len(group)
        together.train(self._iterations(len(group)))
        self._waiting |= {id(one): (one, TrainedTurn(together, row)) for row, one in enumerate(group)}

    def _alike(self, turn: Turn, most: int) -> list[Turn]:
        """The turn, and those that come in its round and go with it."""
        kinds, found, coming = self._kinds(turn), [turn], turn
        while len(found) + len(self._waiting) < most and not coming.is_last and coming.following is not None:
            after = coming.following()
            if after is None:
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
        return [self._module.functional_steps(done + i) for i in range(self._clock.interval)]

    def _tried(self, turn: Turn) -> Trial:
        """Return what a trial of all kinds of steps found, the turn's among them; made again for new kinds."""
        kinds = {step.kind: step for steps in self._steps(turn) for step in steps}
        if self._trial is None or not kinds.keys() <= self._tried_steps.keys():
            self._tried_steps |= kinds
            batch = self._setting.move(next(iter(turn.batches(1))))
            optimizers, context = self._setting.optimizers, self._setting.context
            self._trial = try_steps(self._module, optimizers, list(self._tried_steps.values()), batch, context)
        return self._trial

    def load(self, trained: TrainedTurn) -> Tensor:
        """Make a turn's end of what was trained; its last loss."""
        start = self._now()
        trained.together.load(trained.row)
        length = trained.together.turns[trained.row].batch_length
        if (tell := optional(self._module, FederatedModule, "end_functional_turn")) is not None:
            tell(trained.together.noted(trained.row), length)
        if self._is_timed:
            self._times.loading = self._now() - start
            self._decide(len(trained.together.turns))
        return trained.losses[1]

    # ---- where it does not work ----

    def _stop(self, why: str) -> None:
        self.reason = why
        rank_zero_info(f"vectorised_turns: clients' turns are taken one by one: {why}")

    def _with_fewer(self, turn: Turn) -> tuple[Turn, TrainedTurn] | None:
        self._limit //= 2
        rank_zero_info(f"vectorised_turns: out of memory; at most {self._limit} clients' turns are taken at once")
        torch.cuda.empty_cache()
        if self._limit < 2:
            self._stop("the device has no memory for two clients")
        return self._begin(turn)

    def _fail(self, turn: Turn, error: Exception) -> None:
        """Take turns that cannot be taken at once one by one: these, and where none ever could, all."""
        why = " ".join(str(error).split("\n")[:1]) or type(error).__name__
        if not self.counts[1]:
            self._stop(why)
            return
        self._apart += self._alike(turn, self._limit)
        rank_zero_info(f"vectorised_turns: {len(self._apart)} of the round's turns are taken one by one: {why}")

    # ---- whether it wins ----

    @property
    def _is_timed(self) -> bool:
        return not (self._settings.always or self._is_sure)

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Time a turn by itself, as long as that is to be known."""
        start = self._now()
        yield
        if self._is_timed and self.reason is None:
            self._times.alone.append((self._now() - start) / self._clock.interval)

    def _iterations(self, clients: int) -> Iterator[int]:
        for i in range(self._clock.interval):
            start = self._now()
            yield i
            self._times.together.append((self._now() - start) / clients)

    def _decide(self, clients: int) -> None:
        if len(self._times.together) < TIMED_ITERATIONS:
            return
        self._is_sure, ratio = True, self._times.ratio(self._clock.interval)
        said = f"{clients} clients at once take {ratio:.2g} of the time of as many turns one by one"
        if ratio >= 1:
            self._stop(said)
        else:
            rank_zero_info(f"vectorised_turns: {said}")

    def _now(self) -> float:
        if self._is_timed and self._setting.device.type == "cuda":
            torch.cuda.synchronize(self._setting.device)
        return time.perf_counter()


class VectorisedTraining(LocalTraining):
    """Takes turns of small clients at once, where that is possible and wins."""

    def __init__(self, settings: VectorisedTurns, seed: int, *parts: Any) -> None:
        super().__init__(*parts)
        move = partial(move_data_to_device, device=self._device) if self._moves_plainly else self._move
        self.at_once = TurnsAtOnce(settings, self._trainer, self._round, self._clock, move, bool(self._schedules), seed)

    def _train(self, turn: Turn, *parts: Any) -> Any:
        if (trained := self.at_once.of(turn)) is None:
            with self.at_once.timed():
                return super()._train(turn, *parts)
        with self._clock.within():
            loss = self._end_as(turn, trained)
        if self._closure is None:
            return None
        vars(self._closure)[RESULT] = ClosureResult.from_training_step_output(loss)
        if self._round.settings.aggregator.needs_losses:
            self._round.loss = float(trained.losses[0])
        return loss

    def _end_as(self, turn: Turn, trained: TrainedTurn) -> Tensor:
        """Bring everything where the turn's own iterations would have left it; the last loss."""
        clock, results = self._clock, self._clock.results
        self._shown_of, self._shown = turn, trained.batch
        turn.current = results.batch = trained.batch
        results.batch_size = None
        clock.iteration = clock.interval - 1
        self.client_iteration = self._round.memory.iterations.get(turn.client, 0) + clock.iteration
        self._is_unseen = False
        clock.count_steps(trained.steps)
        return self.at_once.load(trained)


def clip_of(trainer: Trainer) -> Callable[[Tensor], Tensor] | None:
    """The trainer's bound on a step's gradient, of gradients [clients, numbers]; None without."""
    bound = trainer.gradient_clip_val
    if not bound:
        return None
    if trainer.gradient_clip_algorithm == GradClipAlgorithmType.VALUE:
        return lambda gradients: gradients.clamp(-bound, bound)

    def by_norm(gradients: Tensor) -> Tensor:  # as torch.nn.utils.clip_grad_norm_
        norms = gradients.norm(dim=1, keepdim=True)
        return gradients * (bound / (norms + 1e-6)).clamp(max=1.0)

    return by_norm
