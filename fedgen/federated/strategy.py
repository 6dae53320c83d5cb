"""Federated averaging (McMahan et al. 2017) as a Lightning strategy: an epoch is a round, a batch a client's turn."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from lightning.fabric.utilities.apply_func import move_data_to_device
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loops.optimization.automatic import Closure
from lightning.pytorch.strategies import DDPStrategy, Strategy
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities.rank_zero import rank_zero_info, rank_zero_warn
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from fedgen.allocator import keep_freed_memory
from fedgen.clients.cohort import sample_cohort
from fedgen.clients.turn import Turn
from fedgen.federated.aggregators.client_weights import ClientWeights, shares_of, weight_of
from fedgen.federated.aggregators.mean import Aggregator, Federation, Mean
from fedgen.federated.algorithms.algorithm import ClientAlgorithm
from fedgen.federated.client_state.counters import Counters
from fedgen.federated.client_state.exchange import Exchange, naming_difference
from fedgen.federated.client_state.local_state import LocalState, OptimizerState
from fedgen.federated.client_state.memory import ClientMemory
from fedgen.federated.client_state.optimizer_states import check_optimizer_state
from fedgen.federated.client_state.outside_state import OutsideState
from fedgen.federated.client_state.rules import Rule, Rules, check_rules
from fedgen.federated.client_state.switches import Switches
from fedgen.federated.client_state.trained_parameters import parameters_of, trained_parameters
from fedgen.federated.federation_state import CHECKPOINT_KEY, OLD_CLOCKS, merge_states, pack_state, unpack_state
from fedgen.federated.left_out import REMARK, Entry, free_memory, loss_of_round, make_entries, make_entry, tell_remarks
from fedgen.federated.lightning.boundary import RoundBoundary
from fedgen.federated.lightning.checkpoint_io import AtomicCheckpointIO
from fedgen.federated.lightning.checks import (
    check_counters,
    check_finders,
    check_privacy,
    check_robustness,
    check_settings,
    check_trainer,
    check_turn,
    warn_of_exchange_in_turn,
    warn_of_remainder,
    warn_unseen_steps,
)
from fedgen.federated.lightning.hyperparameters import warn_of_objects
from fedgen.federated.lightning.last_round import LastRound, leave_ended_round, settle_loops
from fedgen.federated.lightning.lazy_parameters import materialise
from fedgen.federated.lightning.lightning_internals import explain_other_lightning
from fedgen.federated.lightning.plateau import PlateauUpdates, check_plateaus, start_afresh
from fedgen.federated.lightning.quick_step import calls_no_hook, moves_plainly, quick_step
from fedgen.federated.lightning.schedules import Schedule, check_rates, factor_in, scaled_rates
from fedgen.federated.lightning.shown_batches import ShownBatches
from fedgen.federated.lightning.termination import end_on_sigterm
from fedgen.federated.lightning.turn_clock import (
    BatchHooks,
    LoggedValues,
    StepSchedules,
    TurnClock,
    outputs_of,
    speak_globally,
    speak_locally,
)
from fedgen.federated.lightning.whole_rounds import check_limits, run_whole_rounds
from fedgen.federated.server_optimizers import ServerUpdate
from fedgen.federated.state_table import StateRow, require_round, state_rows, tell_state
from fedgen.io.files import in_bytes
from fedgen.io.tensor_files import check_state
from fedgen.models.round_clock import RoundClock
from fedgen.ranks import Ranks, heard, leave_at_exit, share_out
from fedgen.seeds import resolve, seed_all


class FedAvgStrategy(DDPStrategy):
    """Trains any LightningModule over many simulated clients by federated averaging.

    `Trainer(strategy=FedAvgStrategy(communication_interval=160))` with a `FederatedDataModule`. In each round every
    client of the cohort starts from the server's weights, takes `communication_interval` local iterations (each one
    `training_step` of the unchanged module, automatic or manual optimisation) and sends its weights back; after the
    last turn the module holds the server's new model, and all that Lightning does at the end of an epoch sees it.

    A turn is isolated: it starts from the server's whole module, and what it changes is exchanged, personal or reset.
    Trained tensors are averaged, and so are others that a turn changes, such as a moving average; constants do not
    travel. Of integer and boolean tensors, and Python counters, the server takes the largest; other state outside
    `state_dict` is reset (`Exchange`, `OutsideState`). `rules` have the last word, and after the first round one
    message says what was found.

    Within a turn Lightning's words mean what they mean in an ordinary fit of one client: `batch_idx` restarts each
    round, `global_step` is one client's count (after a round the largest), schedules with interval="step" move at each
    local iteration and others at each round, `is_last_batch` holds in a turn's last iteration, and
    `estimated_stepping_batches` is the interval times the rounds. The module's hooks around batches are called at each
    iteration, callbacks' once a turn with its last batch.

    Torch, NumPy and Python are seeded at (seed, round, client) before each turn, and at (seed, "server", round) before
    the module's `on_round_end`, in which a server may train what does not travel: an optimizer none of whose parameters
    are exchanged or personal is the server's, and keeps its state; so does one whose position is in the module's
    `server_optimizers`, if it has that attribute. The module's `on_turn_start(turn)` is called before each turn and
    `on_turn_end(completed)` after it, if it has them; the latter again with False, if what it changed is refused.
    A client whose step raises (out of memory, say), or whose tensors are not finite or have other names,
    shapes or types than the server's, is left out of the round with a warning, recorded in `left_out` and named when
    fitting ends; where too few are left for the aggregator, all are, and the server's model stays. Checkpoints hold
    whole rounds: a round cut short is dropped. Fitting the same module on goes on with its clients' personal tensors;
    optimizers start anew, as ever in Lightning.

    With `Trainer(devices=...)` or `num_nodes` above 1 each process trains a share of every round's clients, balanced by
    examples, and one weighted sum over processes makes the round's average: the same model as of one process, to
    rounding. A client of whom something is kept between rounds stays with one process; checkpoints hold all of them and
    resume on any number. What a `training_step` logs with `sync_dist` is brought together at the round's end, as turns
    differ between processes; without it, values are the process's own.

    Training on a CPU lets freed memory stay with the process (`fedgen.allocator`), unless the environment sets that.

    Args:
        communication_interval: local iterations per client and round (the papers use 160).
        cohort_size: clients a round, drawn uniformly; None takes all.
        client_weights: "examples" weighs a client by its training examples (n_i / n), "uniform" equally.
        server_optimizer: makes the server's optimizer from a list of parameters, e.g. `FedAdam` or
            `lambda p: torch.optim.SGD(p, lr=1.0)`; None takes the average as it is (FedAvg).
        optimizer_state: clients' optimizers start a turn "reset" (empty), "keep" (as the client left them; memory
            grows with the clients) or "average" (the mean over the last round's clients).
        personal: shell patterns of tensor names that never leave a client, e.g. ["critic.*"]; ["*"] is local training
            without any exchange. Evaluations score clients with what they keep.
        rules: what becomes of state by shell patterns of dotted names, e.g. {"queue*": "personal", "ema.*": "mean"}:
            "mean", "max", "server" (reset), "personal" or "advance" (by the interval); see
            `fedgen.federated.client_state.rules`.
        aggregator: how clients' tensors are combined; `Mean` by default, `Median`, `TrimmedMean`, `Krum` or
            `NormClipping` against clients that send bad updates.
        client_algorithm: hooks around local steps, e.g. `FedProx(mu=0.1)` or `Scaffold()`; none by default.
        client_schedule: a factor by round on the learning rates of the clients' optimizers, e.g.
            `ExponentialDecay(0.5, rounds=100)`; beside the module's own schedules, which go on. It acts within
            optimizer steps, so what `LearningRateMonitor` shows is without it; "client_lr_factor" is logged.
        server_schedule: likewise on the server optimizer's; without one the server goes the factor's part of the way
            to the average. "server_lr_factor" is logged.
        seed: None takes what `seed_everything` was given, else 0.
        batch_idx: what a `training_step` receives: its iteration of the "round" (from 0, as in an epoch of Lightning),
            or of the "client" since training began, as before version 0.2.
        checkpoint_io: `AtomicCheckpointIO` by default.
        kwargs: as for `DDPStrategy`.

    Raises:
        ValueError: for settings out of range.
        MisconfigurationException: for Trainer settings that would cut rounds.
        RuntimeError: when a round loses every client, from the first client's error. An error in the user's own code
            that all of them met is raised itself, with a note.
        LostRankError: when another process has ended; a checkpoint goes on on those that are left.

    Examples:
        >>> from fedgen import FedAvgStrategy
        >>> strategy = FedAvgStrategy(communication_interval=20, cohort_size=5)  # of Trainer(strategy=...)
        >>> strategy.communication_interval, strategy.cohort_size
        (20, 5)
    """

    strategy_name = "fedavg"
    _planned_rounds: int | None = None  # where the trainer's `max_epochs` does not say
    _fixed_exchange = False  # whether what travels is fixed before training, as under secure aggregation
    # tells modules that the strategy calls their `on_round_end(iterations)` itself
    calls_round_end = True

    def __init__(
        self,
        communication_interval: int = 160,
        cohort_size: int | None = None,
        client_weights: ClientWeights = "examples",
        server_optimizer: Callable[[Iterable[Tensor]], Optimizer] | None = None,
        optimizer_state: OptimizerState = "reset",
        personal: Sequence[str] = (),
        aggregator: Aggregator | None = None,
        client_algorithm: ClientAlgorithm | None = None,
        client_schedule: Schedule | None = None,
        server_schedule: Schedule | None = None,
        seed: int | None = None,
        rules: Mapping[str, Rule] | None = None,
        batch_idx: Literal["round", "client"] = "round",
        checkpoint_io: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(checkpoint_io=checkpoint_io or AtomicCheckpointIO(), **kwargs)
        explain_other_lightning()
        check_settings(communication_interval, cohort_size, client_weights, optimizer_state, batch_idx)
        check_rules("rules", rules or {})
        self.communication_interval = communication_interval
        self.cohort_size = cohort_size
        self.client_weights: ClientWeights = client_weights
        self.server_optimizer = server_optimizer
        self.optimizer_state_mode = optimizer_state
        self.personal = list(personal)
        self.rules: dict[str, Rule] = dict(rules or {})
        self.batch_idx = batch_idx
        self.aggregator = aggregator or Mean()
        self.client_algorithm = client_algorithm or ClientAlgorithm()
        self.client_schedule, self.server_schedule = client_schedule, server_schedule
        self._given_seed = seed
        self._memory = ClientMemory()
        self.in_round = False  # the model is not the server's, or not of a whole round
        self._ranks = Ranks()
        self._reset_fit()

    @cached_property
    def seed(self) -> int:
        """The base of all draws; read when first used, so that `seed_everything` may come after construction."""
        return resolve(self._given_seed)

    def _reset_fit(self) -> None:
        self._turn: Turn | None = None
        self._local_batch: Any = None
        self._batches = ShownBatches(self.communication_interval)
        self._batch_idx = 0
        self.client_iteration = 0  # of the client that trains, since training began
        self._clock: TurnClock | None = None
        self._hooks: BatchHooks | None = None
        self._schedules: StepSchedules | None = None
        self._outside: OutsideState | None = None
        self._counters = Counters()
        self._logged = LoggedValues()
        self._has_explained = False
        self._num_arguments = 0  # that Lightning passes to the module's training_step; 0: not known yet
        self._awaits_step = False  # automatic optimisation: the next optimizer step opens the turn
        self._skip_step = False
        self._errors: list[Exception] = []
        self._owners: dict[int, int] = {}  # ranks of clients of whom something is kept; filled where there are several
        self._exchange: Exchange | None = None
        self._plateaus = PlateauUpdates()
        self._last_round = LastRound()
        self._server_update: ServerUpdate | None = None

    @property
    def _is_alone(self) -> bool:
        return self.num_processes * self.num_nodes == 1

    def _configure_launcher(self) -> None:
        if self._is_alone:
            self._launcher = None
        else:
            super()._configure_launcher()

    def setup_environment(self) -> None:
        if self._module.trainer.state.fn == TrainerFn.FITTING:
            check_finders(self._module.trainer)  # their own `setup`, which comes next, speaks of several processes
        super().setup_environment()

    def setup_distributed(self) -> None:
        if self._is_alone:
            self.set_world_ranks()
        else:
            super().setup_distributed()
            leave_at_exit()

    barrier = heard()(DDPStrategy.barrier)
    broadcast = heard()(DDPStrategy.broadcast)

    @heard()
    def reduce(self, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if self._clock is not None and self._clock.inside:
            # turns differ between processes: an exchange within them would wait for ever
            if self._ranks.size > 1:
                warn_of_exchange_in_turn()
            return tensor
        return super().reduce(tensor, *args, **kwargs)

    def _setup_model(self, model: Module) -> Module:
        return model  # no DistributedDataParallel: gradients stay with the client

    def setup(self, trainer: Trainer) -> None:
        if trainer.state.fn == TrainerFn.FITTING:
            run_whole_rounds(trainer)
            check_trainer(trainer)
            self._ranks = Ranks()
            self._release()
            total = 0 if self._clock is None else self._clock.total_steps
            self._reset_fit()
            self._clock = TurnClock(trainer, self.communication_interval, self._planned_rounds)
            speak_locally(trainer, self._clock)
            memory, self._memory = self._memory, self._memory.of(self._module)
            if memory is self._memory:
                self._clock.total_steps = total  # training goes on
            else:
                self.client_algorithm.reset()
        Strategy.setup(self, trainer)
        if trainer.state.fn == TrainerFn.FITTING:
            self._start_fit(trainer)

    def setup_optimizers(self, trainer: Trainer) -> None:
        with self._clock.within() if self._clock is not None else nullcontext():  # one client's batches and steps
            super().setup_optimizers(trainer)

    def teardown(self) -> None:
        self._release()
        super().teardown()

    def _release(self) -> None:
        """Gives trainer, module, callbacks and schedules back as they were before the fit."""
        for part in (self._hooks, self._schedules, self._clock):
            if part is not None:
                part.release()
        self._hooks = self._schedules = None
        if self._clock is not None:
            speak_globally(self._clock.trainer)

    @property
    def clock(self) -> TurnClock:
        """Counts of the fit that runs, or ran last."""
        if self._clock is None:
            raise RuntimeError("the strategy has not started fitting yet")
        return self._clock

    def _start_fit(self, trainer: Trainer) -> None:
        warn_of_objects(trainer)
        if self.root_device.type == "cpu":
            keep_freed_memory()
        check_plateaus(trainer)
        self._no_hooks, self._moves_plainly = calls_no_hook(trainer), moves_plainly(trainer)
        self.aggregator.check_ranks(self._ranks)
        materialise(trainer, self.seed)
        self._ranks.copy_first(self._module.state_dict().values())
        self._make_exchange()
        self._outside = OutsideState(self._module, self._rules, self._managed(trainer), self.seed)
        # a Python counter of one client's would go around what private and robust rules promise
        self._outside.exchanges = not (self.aggregator.private or self.aggregator.robust or self._fixed_exchange)
        live, served = {id(tensor) for tensor in self.exchange.live.values()}, self._server_optimizers
        self._local = LocalState(
            [o for o in self.optimizers if o not in served and any(id(p) in live for p in parameters_of(o))],
            [config.scheduler for config in self.lr_scheduler_configs],
            getattr(self.precision_plugin, "scaler", None),
            self.optimizer_state_mode,
        )
        check_rates(self.client_schedule, self._local.optimizers)
        shares = self._shares(trainer)
        self.client_algorithm.start_fit(self._trainable, self._local.optimizers, shares)
        check_privacy(self.aggregator, self.client_weights, self.optimizer_state_mode, self.exchange, self._module)
        check_robustness(self.aggregator, self.optimizer_state_mode, self.exchange)
        self._check_cohort()
        self._schedules = StepSchedules(trainer)
        RoundBoundary.attach(trainer, self)
        self._hooks = BatchHooks(trainer, self._batches.of)
        rank_zero_info(f"each client sends {in_bytes(self.exchange.num_bytes)} a round")

    def _managed(self, trainer: Trainer) -> list[Any]:
        """What a module may hold and is not its state: what Lightning and the strategy look after."""
        wrapped = list(self._lightning_optimizers)
        schedulers = [config.scheduler for config in self.lr_scheduler_configs]
        return [self, trainer, getattr(trainer, "datamodule", None), *self.optimizers, *wrapped, *schedulers]

    def _check_cohort(self) -> None:
        if getattr(getattr(self._module.trainer, "datamodule", None), "clients", ()):
            self.aggregator.check_cohort(self._sizes()[1])

    def _sizes(self) -> tuple[int, int]:
        """The number of clients, as far as the data name them, and of those that a round draws."""
        clients = (
            len(getattr(getattr(self._module.trainer, "datamodule", None), "clients", ())) or self.cohort_size or 1
        )
        return clients, min(self.cohort_size or clients, clients)

    def _shares(self, trainer: Trainer) -> list[float] | None:
        """Every client's weight in the mean over the whole federation, if the data say who the clients are."""
        return shares_of(getattr(trainer, "datamodule", None), self.client_weights)

    @property
    def _server_optimizers(self) -> list[Optimizer]:
        return [self.optimizers[i] for i in getattr(self._module, "server_optimizers", ())]

    @property
    def _module(self) -> LightningModule:
        assert self.lightning_module is not None
        return self.lightning_module

    def _make_exchange(self) -> None:
        self._switches = Switches(self._module)
        trained = trained_parameters(self._module, self.optimizers)
        self._trained = set(map(id, trained))
        present, moving = self._server_update, [] if self._exchange is None else self._exchange.moving
        self._rules = Rules(self.rules, self._module)
        self._exchange = Exchange(self._module, trained, self.personal, self._rules, self._fixed_exchange, moving)
        if self.aggregator.private or self._fixed_exchange:
            check_counters(self._exchange, self._module)
        self._trainable = self._exchange.trainable
        self._exchange.beside = self.client_algorithm.num_bytes(self._trainable)
        self._exchange.snapshot()
        self._memory.match_personal(self._exchange)
        self._counters = Counters(self._exchange.declared, self._exchange.advancing, self.aggregator.robust)
        self._server_update = ServerUpdate(self._exchange.server, self._exchange.trained, self.server_optimizer)
        check_rates(self.server_schedule, [self._server_update.optimizer])
        if present is not None:
            present.check_replaceable()

    def _trains_others(self) -> bool:
        """Whether other parameters train than when the exchange was made: callbacks thaw layers between rounds."""
        trained = trained_parameters(self._module, self.optimizers)
        return self._switches.thawed_or_frozen() or set(map(id, trained)) != self._trained

    @property
    def exchange(self) -> Exchange:
        """What travels; made when fitting starts."""
        if self._exchange is None:
            raise RuntimeError("the strategy has not started fitting yet")
        return self._exchange

    @property
    def left_out(self) -> list[Entry]:
        """The clients left out so far: round, client, name and reason of each; of a great many the earliest folded."""
        return self._memory.left_out

    @property
    def report(self) -> list[Entry]:
        """`left_out`, and the latest of what the aggregator remarked on clients that were part of their round."""
        return [*self._memory.left_out, *self._memory.remarks]

    @property
    def local_only(self) -> bool:
        """Whether nothing is exchanged: every client trains alone."""
        return self.exchange.is_empty

    @property
    def personal_tensors(self) -> Mapping[int, Mapping[str, Tensor]]:
        """What clients keep to themselves, by client and name: of those that have trained, in this process."""
        return self._memory.personal

    def sample_cohort(self, num_clients: int, round: int) -> list[int]:
        """The clients of a round; the data module asks."""
        return sample_cohort(num_clients, self.cohort_size, self.seed, round)

    def share(self, cohort: Sequence[int], sizes: Sequence[int]) -> list[int | None]:
        """The clients of a round that train on this rank, in the cohort's order; the data module asks.

        Balanced by examples. A client of whom something is kept between rounds (personal tensors, its optimizers'
        state, control variates) always trains on one rank.

        Args:
            cohort: of the round.
            sizes: examples of every client.

        Returns:
            As many on each rank and in each round: None is a turn in which the rank waits for others.
        """
        size, rank = self._ranks.size, self._ranks.rank
        if size == 1 or self._exchange is None:  # before fitting has started somebody may look at the batches
            return list(cohort)
        if self.optimizer_state_mode == "keep" or self._keeps_clients:
            if not self._owners:
                dealt = share_out(sizes, size)
                self._owners = {client: owner for owner, clients in enumerate(dealt) for client in clients}
            mine = [client for client in cohort if self._owners[client] == rank]
            longest = min(len(cohort), -(-len(sizes) // size))
        else:
            dealt = share_out([sizes[client] for client in cohort], size)
            mine, longest = [cohort[place] for place in dealt[rank]], max(map(len, dealt))
        return [*mine, *[None] * (longest - len(mine))]

    @property
    def _keeps_clients(self) -> bool:
        """Whether something is remembered of each client, which then trains in one process for good."""
        return bool(self.exchange.personal) or self._rules.keep_clients or self.client_algorithm.keeps_clients

    @property
    def metrics(self) -> dict[str, float]:
        """What is logged of the present round: the schedules' factors and what the aggregator tells."""
        schedules = {"client_lr_factor": self.client_schedule, "server_lr_factor": self.server_schedule}
        round = self._module.current_epoch
        found = {name: factor_in(schedule, round) for name, schedule in schedules.items() if schedule is not None}
        found["total_steps"] = float(self.clock.total_steps)
        return found | self.aggregator.metrics(round + 1)

    @property
    def in_turns(self) -> bool:
        """Whether a round has begun and its last turn is not over."""
        return self._turn is not None

    def on_train_start(self) -> None:
        super().on_train_start()
        check_limits(self._module.trainer)
        self._plateaus.apply(self._module.trainer)
        if not self._is_alone:
            end_on_sigterm(self._module.trainer)

    def on_train_batch_start(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        check_turn(batch)
        if batch.is_first:
            self._start_round()
        self._start_turn(batch)

    def _start_round(self) -> None:
        if self._trains_others() or not self.exchange.still_fits():
            self._make_exchange()
        self.exchange.snapshot()
        start_afresh(self._module.trainer)
        round, folder = self._module.current_epoch, Path(self._module.trainer.default_root_dir)
        self.aggregator.announce(Federation(self.seed, round, *self._sizes(), folder))
        self.aggregator.start([self.exchange.server[name] for name in self.exchange.shared])
        self._local.start_round()
        self.client_algorithm.start_round()
        self._memory.start_round()
        self._counters.start_round()
        self.outside.start_round()
        self.clock.start_round()
        self._errors = []
        self._client_factor = factor_in(self.client_schedule, self._module.current_epoch)
        self.in_round = True

    @property
    def outside(self) -> OutsideState:
        """The state of the module that `state_dict` does not hold."""
        assert self._outside is not None
        return self._outside

    def _start_turn(self, turn: Turn) -> None:
        exchange = self.exchange
        self._batches.start_turn(turn)
        if turn.is_elsewhere:
            self._turn, self._awaits_step = turn, self._module.automatic_optimization
            self._call_turn_start(turn)
            return
        if not turn.is_first:
            exchange.load_server()
        self._memory.load_personal(turn.client, exchange)
        self._local.start_turn(turn.client)
        self._switches.start_turn()
        self._switches.clear_gradients()
        self.outside.start_turn(turn.round, turn.client)
        self.clock.start_turn()
        self._logged.start_turn(self._module.trainer._results)
        seed_all(self.seed, "turn", turn.round, turn.client)
        self.client_algorithm.start_turn(turn.client, self._trainable, exchange.server)
        self._turn, self._last_step = turn, -1
        self._awaits_step = self._module.automatic_optimization
        self._call_turn_start(turn)

    def batch_to_device(self, batch: Any, device: torch.device | None = None, dataloader_idx: int = 0) -> Any:
        if isinstance(batch, Turn):
            return batch  # its batches are moved one by one, when they are cut
        return super().batch_to_device(batch, device, dataloader_idx)

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        if self._skip_step:
            return torch.full((), float("nan"), device=self.root_device, requires_grad=True)
        if self._turn is None:
            return super().training_step(*args, **kwargs)
        if self._module.automatic_optimization:
            self._num_arguments = len(args)
            return super().training_step(*self._step_arguments(len(args)))

        def step() -> Any:
            return super(FedAvgStrategy, self).training_step(*self._step_arguments(len(args)))

        return self._run_turn(step, outputs_of)

    def _step_arguments(self, count: int) -> tuple[Any, ...]:
        return (self._local_batch, self._batch_idx)[:count]

    def optimizer_step(
        self,
        optimizer: Optimizer,
        closure: Callable[[], Any],
        model: LightningModule | Module | None = None,
        **kwargs: Any,
    ) -> Any:
        if not self._awaits_step:
            return self._scaled_step(optimizer, closure, model, **kwargs)
        self._awaits_step = False
        assert isinstance(closure, Closure)
        failed, turn, step = len(self._errors), self._turn, self._automatic_step(optimizer, closure, model, kwargs)
        output = self._run_turn(step, lambda _: _outputs_of(closure))
        # Lightning wants a result from the closure whatever happened in it
        if len(self._errors) > failed or (turn is not None and turn.is_elsewhere) or closure._result is None:
            self._skip_step = True
            closure()
            self._skip_step = False
            self._switches.clear_gradients()
        self.clock.leave_a_step()
        return output

    def _automatic_step(
        self, optimizer: Optimizer, closure: Closure, model: Any, kwargs: Mapping[str, Any]
    ) -> Callable[[], Any]:
        """What Lightning's automatic optimisation does with one batch, counted as it counts."""
        clock, hooks, zero_grad = self.clock, self._hooks, closure._zero_grad_fn
        assert hooks is not None
        progress = self._module.trainer.fit_loop.epoch_loop.automatic_optimization.optim_progress.optimizer.step
        quick = bool(self._no_hooks and not kwargs and clock.accumulation == 1)

        def step() -> Any:
            closure._zero_grad_fn = zero_grad if clock.opens_accumulation else None
            if clock.accumulates:
                return closure()
            progress.increment_ready()
            if quick and self._num_arguments:
                output = self._quick_step(optimizer, closure)
            elif hooks.steps:
                output = hooks.step(self._batch_idx, self._lightning_optimizers[0], closure)
            else:
                output = self._scaled_step(optimizer, closure, model, **kwargs)
            progress.increment_completed()
            return output

        return step

    def _scaled_step(self, optimizer: Optimizer, closure: Callable[[], Any], model: Any, **kwargs: Any) -> Any:
        self._last_step = self.clock.iteration
        with scaled_rates(optimizer, self._client_factor if self.in_turns else 1.0):
            return super().optimizer_step(optimizer, closure, model, **kwargs)

    def _quick_step(self, optimizer: Optimizer, closure: Any) -> Any:
        self._last_step = self.clock.iteration
        with scaled_rates(optimizer, self._client_factor):
            return quick_step(
                self._module, optimizer, closure, self._local_training_step, self.client_algorithm.before_step
            )

    def _local_training_step(self) -> Any:
        return self._module.training_step(*self._step_arguments(self._num_arguments))

    def _run_turn(self, step: Callable[[], Any], outputs: Callable[[Any], Any]) -> Any:
        turn, output = self._turn, None
        assert turn is not None
        if turn.is_idle:
            if turn.is_last:
                self._end_round()
            return None
        try:
            with self._switches.restored_on_error():
                output = self._iterate(turn, step, outputs)
                self.exchange.settle(self.communication_interval)
                if self._call_turn_end(completed=True):  # the hook may have changed what is sent
                    self.exchange.settle(self.communication_interval)
        except Exception as error:
            self._leave_out(turn, error)
            self._call_turn_end(completed=False)
            self._close_turn(turn, completed=False)
        else:
            self._end_turn(turn)
        finally:
            self._local_batch = turn.current = None
        if turn.is_last:
            self._end_round()
        return output

    def _iterate(self, turn: Turn, step: Callable[[], Any], outputs: Callable[[Any], Any]) -> Any:
        """The client's local iterations; gives back the last one's output."""
        output, done = None, self._memory.iterations.get(turn.client, 0)
        clock, hooks, schedules, results = self.clock, self._hooks, self._schedules, self._module.trainer._results
        assert hooks is not None
        assert schedules is not None
        with clock.within():
            for i, batch in enumerate(self._batches.batches_of(turn)):
                self._local_batch = turn.current = batch = self._moved(batch)
                self._batches.show(batch)
                clock.iteration, self.client_iteration = i, done + i
                self._batch_idx = i if self.batch_idx == "round" else done + i
                results.batch, results.batch_size = batch, None  # of which `log` takes its weight
                if hooks.start(batch, self._batch_idx) == -1:
                    break
                output = step()
                if schedules and not clock.accumulates:
                    schedules.move(i)
                if hooks.wants_outputs:
                    hooks.end(outputs(output), batch, self._batch_idx)
        self._warn_of_remainder()
        return output

    def _moved(self, batch: Any) -> Any:
        if self._moves_plainly:
            return move_data_to_device(batch, self.root_device)
        return super().batch_to_device(self.precision_plugin.convert_input(batch))

    def _warn_of_remainder(self) -> None:
        """Warns where a module accumulates gradients by hand and a turn ends before a step is due."""
        optimized = (p for optimizer in self._local.optimizers for p in parameters_of(optimizer))
        steps_by_hand = not self._module.automatic_optimization and self._last_step not in (-1, self.clock.iteration)
        if steps_by_hand and any(p.grad is not None and bool(p.grad.any()) for p in optimized):
            warn_of_remainder(self.communication_interval, self.clock.iteration - self._last_step)

    def _leave_out(self, turn: Turn, error: Exception) -> None:
        self._errors.append(error)
        self.exchange.restore_forms()
        free_memory(error)
        self._memory.leave_out(make_entry(turn, error))

    def _end_turn(self, turn: Turn) -> None:
        exchange, done = self.exchange, self._memory.iterations.get(turn.client, 0)
        self._memory.complete(turn.client, done + self.communication_interval)
        if self._last_step < 0:
            warn_unseen_steps(self.client_algorithm, self.client_schedule)
        weight = weight_of(turn.num_examples, self.client_weights)
        self.client_algorithm.end_turn(turn.client, self._trainable, self.communication_interval)
        if self.local_only:
            self._call_round_end(turn.client)
        self._grow()
        with torch.no_grad():
            self.aggregator.add(turn.client, list(exchange.shared.values()), weight)
        self._counters.add(exchange.counters, exchange.server)
        self._close_turn(turn, completed=True)
        self._memory.keep_personal(turn.client, exchange)
        self._local.end_turn(turn.client, weight)

    def _close_turn(self, turn: Turn, completed: bool) -> None:
        """Puts back what the turn changed beside saved tensors, and counts it."""
        weight = weight_of(turn.num_examples, self.client_weights)
        self._logged.end_turn(self._module.trainer._results, weight, completed)
        self.outside.end_turn(turn.client, weight, completed)
        self.clock.end_turn(completed)
        self._switches.restore()

    def _grow(self, names: Sequence[str] | None = None) -> None:
        """Lets tensors travel that a turn has changed and that did not before."""
        exchange, personal = self.exchange, len(self.exchange.personal)
        if grown := exchange.grow(names):
            places = [place for place, name in enumerate(exchange.shared) if name in set(grown)]
            self.aggregator.grow([exchange.server[name] for name in grown], places)
        if len(exchange.personal) > personal:
            self._memory.match_personal(exchange)

    def _news(self) -> dict[str, Any]:
        """What other ranks do not know of the round."""
        return {
            "memory": self._memory.news(),
            "local": self._local.news(),
            "found": self.exchange.found,
            "counters": self._counters.news(),
            "outside": self.outside.news(),
            "clock": self.clock.news(),
            "logged": self._logged.news(self._module.trainer._results) if self._ranks.size > 1 else {},
        }

    def _hear(self, told: Sequence[Mapping[str, Any]]) -> None:
        """Takes every rank's `_news`."""
        for part, name in ((self._counters, "counters"), (self.outside, "outside"), (self.clock, "clock")):
            part.hear([one[name] for one in told])
        self._local.hear([one["local"] for one in told])
        self._grow(sorted({name for one in told for name in one["found"]}))
        self._logged.hear([one["logged"] for one in told], self._module.trainer._results, self.root_device)

    def _end_round(self) -> None:
        assert self._server_update is not None
        told = self._ranks.gather(self._news())
        if not self._memory.hear([one["memory"] for one in told]):
            self.drop_round()
            error = next(iter(self._errors), None)
            raise loss_of_round(self._module.current_epoch, self._memory.lost, error)
        self._hear(told)
        self._merge()
        if why := self.aggregator.shortfall():
            self._pass_over(why)
            return
        round, data = self._module.current_epoch, getattr(self._module.trainer, "datamodule", None)
        combined = self.aggregator.result()
        remarks = make_entries(round, self.aggregator.remarks(), data, REMARK)
        tell_remarks(remarks)
        self._memory.remark(remarks)
        factor = factor_in(self.server_schedule, round)
        self._server_update.apply(list(self.exchange.shared), combined, factor)
        self._counters.end_round(self.exchange.server, self.communication_interval)
        self.exchange.load_server()
        self.outside.end_round()
        self._local.end_round()
        self._move_schedules()
        self.clock.end_round()
        self._switches.clear_gradients()
        self.client_algorithm.end_round()
        self._explain()
        self._turn, self.in_round = None, False
        if not self.local_only:
            self._call_round_end()

    def _move_schedules(self) -> None:
        """Nothing: schedules that count iterations have moved in the turns."""

    def _pass_over(self, why: str) -> None:
        """Ends a round that is whole and of which nothing can be made: the server's model and state stay."""
        round, data = self._module.current_epoch, getattr(self._module.trainer, "datamodule", None)
        rank_zero_warn(f"round {round} is dropped and the server's model stays as it was: {why}")
        self._memory.left_out += make_entries(
            round, dict.fromkeys(self._memory.took_part, f"the round was dropped: {why}"), data
        )
        self.drop_round()
        self._switches.clear_gradients()
        self.in_round = False

    def _merge(self) -> None:
        """Brings together what clients have sent and done, wherever they were."""
        for part in (self.aggregator, self._local, self.client_algorithm):
            part.merge(self._ranks, self.root_device)

    def _explain(self) -> None:
        """Says once what was found of the module's state."""
        if not self._has_explained:
            self._has_explained = True
            tell_state(self.state_table())
            if unmatched := self._rules.unmatched:
                rank_zero_warn(
                    f"rules for {', '.join(map(repr, unmatched))} have matched nothing of the module's state in the"
                    " first round; strategy.state_table() has the names"
                )

    def state_table(self) -> list[StateRow]:
        """What becomes of the module's state: what travels, is averaged, reset, kept by clients, or not isolated."""
        require_round(self._has_explained)
        return state_rows(self.exchange, self._counters, self.outside)

    def _call_turn_start(self, turn: Turn) -> None:
        if callable(hook := getattr(self._module, "on_turn_start", None)):
            hook(turn)

    def _call_turn_end(self, completed: bool) -> bool:
        """Tells the module, if it wants to know; whether it does."""
        if callable(hook := getattr(self._module, "on_turn_end", None)):
            hook(completed)
            return True
        return False

    def _call_round_end(self, *client: int) -> None:
        if callable(hook := getattr(self._module, "on_round_end", None)):
            seed_all(self.seed, "server", self._module.current_epoch, *client)
            hook(self.communication_interval)

    def drop_round(self) -> None:
        """Restores the server's model and optimizer state of before the round."""
        self.exchange.restore_forms()
        self.exchange.load_server()
        self._local.end_round(dropped=True)
        self.clock.end_round(dropped=True)
        self.outside.drop_round()
        self._switches.restore()
        self._turn, self._awaits_step = None, False

    @contextmanager
    def client_model(self, client: int) -> Iterator[None]:
        """The module as the client sees it (what it keeps to itself in place); for use within `fit`, between rounds.

        What the block makes of the module is put back: tensors, other state, training modes and requires_grad.
        """
        if (owner := self._owners.get(client, self._ranks.rank)) != self._ranks.rank:
            raise MisconfigurationException(
                f"the model of client {client} is on rank {owner} and not on rank {self._ranks.rank}; what looks into"
                " clients' own models runs in one process: pass Trainer(devices=1, num_nodes=1)"
            )
        exchange = self.exchange
        exchange.snapshot()
        self._switches.start_turn()
        with self.outside.seen_by(client):
            self._memory.load_personal(client, exchange)
            try:
                yield
            finally:
                exchange.restore_forms()
                exchange.load_server()
                self._switches.restore()

    def is_of_clients(self, exception: BaseException) -> bool:
        """Whether an exception is one that clients of this round met, raised as it is since all met it."""
        return any(exception is error for error in self._errors)

    def on_exception(self, exception: BaseException) -> None:
        if self.in_round and self._exchange is not None:
            self.drop_round()
        super().on_exception(exception)

    def lightning_module_state_dict(self) -> dict[str, Any]:
        state = super().lightning_module_state_dict()
        if self.in_round and self._turn is not None:
            first, server = self.exchange.first_names, self.exchange.server
            state = {name: server.get(first.get(name, name), value) for name, value in state.items()}
        return state

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        trainer = self._module.trainer
        if (kept := self._last_round.instead_of(checkpoint, trainer)) is not None:
            super().save_checkpoint(kept, filepath, storage_options)
            return
        if self.in_round and trainer.training:
            rank_zero_warn(f"{filepath} is not written: checkpoints hold whole rounds, and this one is not finished")
            return
        super().save_checkpoint(self._complete(checkpoint), filepath, storage_options)

    def _complete(self, checkpoint: dict[str, Any]) -> dict[str, Any]:
        """Lightning's checkpoint with the federation's state, if it is not one of weights alone."""
        if self._exchange is not None and "optimizer_states" in checkpoint:
            state = pack_state(self._memory, self._stateful)
            if self._ranks.size > 1:
                state = merge_states(self._ranks.gather(move_data_to_device(state, "cpu")), self._owners)
            checkpoint[CHECKPOINT_KEY] = {**state, "plateau": self._plateaus.state_dict(self._module.trainer)}
        return settle_loops(checkpoint)

    def keep_last_round(self) -> None:
        """Before a round: keeps what `OnExceptionCheckpoint` is to write if the round is interrupted."""
        self._last_round.keep(self._module.trainer, self._complete)

    @property
    def _stateful(self) -> dict[str, Any]:
        """What a checkpoint holds of the federation beside the clients' memory."""
        return {
            "local": self._local,
            "server_optimizer": self._server_update,
            "algorithm": self.client_algorithm,
            "aggregator": self.aggregator,
            "clock": self.clock,
            "outside": self.outside,
            "exchange": self.exchange,
        }

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        with self._naming_checkpoint():
            state = checkpoint.get("state_dict")
            if not isinstance(state, Mapping) or not all(isinstance(name, str) for name in state):
                raise ValueError("it holds no model: its state_dict is none")
            with naming_difference(self._module.state_dict(), state):
                check_state(self._module, state)
                super().load_model_state_dict(checkpoint, strict)

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        with self._naming_checkpoint():
            states, own = checkpoint["optimizer_states"], len(self.optimizers)
            found = len(states) if isinstance(states, list) else 0
            if found != own:
                raise ValueError(f"it holds the states of {found} optimizers and the model has {own}")
            for optimizer, state in zip(self.optimizers, states):
                check_optimizer_state(optimizer, state)
            super().load_optimizer_state_dict(checkpoint)
            leave_ended_round(self._module.trainer)
            if CHECKPOINT_KEY not in checkpoint:  # of ordinary training: the federation starts from its weights
                self.aggregator.load_state_dict({})
                return
            state = checkpoint[CHECKPOINT_KEY]
            if isinstance(state, Mapping):
                state = {"aggregator": None, "exchange": {"moving": []}, **state}  # older checkpoints have none
                if state.get("version") == OLD_CLOCKS:
                    state = self._with_clock(state)
            if self._trains_others():  # since the setup: callbacks go on where layers had thawed
                self._make_exchange()
            unpack_state(state, self._memory, self._stateful, self.exchange)
            self._plateaus.load_state_dict(state)

    def _with_clock(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """The state of a checkpoint from before `global_step` was one client's count, which it is made here.

        Raises:
            MisconfigurationException: for a module that may have used the old counts.
        """
        if self.batch_idx != "client" and not isinstance(self._module, RoundClock):
            raise MisconfigurationException(
                "it was written before version 0.2, when batch_idx counted a client's iterations over all rounds and"
                " global_step the steps of all clients; pass FedAvgStrategy(batch_idx='client') to go on with the old"
                " batch_idx (global_step becomes one client's count), or begin another run from its weights"
            )
        total, iterations = self.clock.steps, sum(state["iterations"].values())
        rounds = self._module.trainer.fit_loop.epoch_progress.current.processed
        if iterations:
            self.clock.set_steps(round(total * rounds * self.communication_interval / iterations))
        return {**state, "clock": {"total_steps": total}, "outside": {"values": {}, "personal": {}}}

    @contextmanager
    def _naming_checkpoint(self) -> Iterator[None]:
        """Says in errors which checkpoint they are about."""
        try:
            yield
        except (ValueError, MisconfigurationException) as error:
            raise MisconfigurationException(f"{self._module.trainer.ckpt_path}: {error}") from error


def _outputs_of(closure: Closure) -> dict[str, Any]:
    """What Lightning tells hooks of a step's result."""
    return {} if closure._result is None or closure._result.loss is None else closure._result.asdict()
