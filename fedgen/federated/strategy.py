"""Federated averaging (McMahan et al. 2017) as a Lightning strategy: an epoch is a round, a batch a client's turn."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.core.mixins import HyperparametersMixin
from lightning.pytorch.strategies import Strategy
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from torch import Tensor
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from fedgen.clients.data_module import ClientBatches
from fedgen.clients.samplers.sampler import CohortDraws, CohortSampler
from fedgen.clients.turn import Turn
from fedgen.data.optional_attributes import optional
from fedgen.federated.aggregators.mean import Aggregator, ClientWeights, Mean, shares_of
from fedgen.federated.algorithms.algorithm import ClientAlgorithm
from fedgen.federated.client_state.exchange import Exchange, Rule, check_rules, copy_tensors, parameters_of
from fedgen.federated.client_state.local_state import LocalState, OptimizerState, plain_part
from fedgen.federated.client_state.memory import ClientMemory
from fedgen.federated.client_state.outside_state import OutsideState
from fedgen.federated.compression.compressors import Compressor
from fedgen.federated.federation_state import overlay
from fedgen.federated.left_out import Entry
from fedgen.federated.lightning import checks
from fedgen.federated.lightning.checkpoints import (
    AtomicCheckpointIO,
    RoundCheckpoints,
    check_optimizers,
    checked_weights,
    naming_checkpoint,
    plain,
    settle_loops,
)
from fedgen.federated.lightning.lazy_parameters import materialise
from fedgen.federated.lightning.lightning_internals import end_restart, explain_other_lightning, optimizers_of
from fedgen.federated.lightning.one_or_many import OneOrManyProcesses, RankShares, keep_freed_memory
from fedgen.federated.local_training import Driver, LocalTraining, RoundBoundary
from fedgen.federated.round import Round
from fedgen.federated.schedules import Schedule, check_rates, factor_in
from fedgen.federated.server_model import RoundSettings, ServerModel
from fedgen.federated.simulated_clock import ClientSpeeds, SimulatedClock
from fedgen.federated.state_table import NoRoundError, StateRow, state_rows, table_of, warn_of_state
from fedgen.federated.trainer_patches import StepSchedules, TurnClock, patch_trainer, unpatch_trainer
from fedgen.federated.vectorised.vectorised_turns import VectorisedTraining, VectorisedTurns
from fedgen.io.files import in_bytes
from fedgen.io.tensor_files import bytes_of, objects_in
from fedgen.models.optional_hooks import FederatedData, FederatedModule, data_module_of, scaler_of
from fedgen.own_code import rank_zero_warn
from fedgen.ranks import Ranks, alone
from fedgen.seeds import resolve

Part = TypeVar("Part")


class FedAvgStrategy(OneOrManyProcesses):
    """Trains any LightningModule over many simulated clients by federated averaging.

    `Trainer(strategy=FedAvgStrategy(communication_interval=160))` with a `FederatedDataModule`. In each round every
    client of the cohort starts from the server's weights, takes `communication_interval` local iterations (each one
    `training_step` of the unchanged module, automatic or manual optimisation) and sends its weights back; after the
    last turn the module holds the server's new model, and all that Lightning does at the end of an epoch sees it.

    A turn is isolated: what it changes is exchanged, personal or reset, and within it Lightning's terms mean what they
    mean in an ordinary fit on one client. A client whose turn fails is left out of the round. Several processes share a
    round's clients. Checkpoints hold whole rounds. `docs/state-in-turns.md` and `docs/concepts.md` explain the details:
    rules, terms, draws, the server's optimizers, hooks, clients left out.

    Args:
        communication_interval: local iterations per client and round (the papers use 160).
        cohort_size: clients per round, drawn uniformly; None takes all.
        client_weights: "examples" weighs a client by its training examples (n_i / n), "uniform" equally.
        server_optimizer: makes the server's optimizer from a list of parameters, e.g. `FedAdam` or
            `lambda p: torch.optim.SGD(p, lr=1.0)`; None takes the average as it is (FedAvg).
        optimizer_state: clients' optimizers start a turn "reset" (empty), "keep" (as the client left them; memory
            grows with the clients) or "average" (the mean over the last round's clients).
        personal: shell patterns of tensor names that never leave a client, e.g. ["critic.*"]; ["*"] is local training
            without any exchange. Evaluations score clients with what they keep.
        rules: how state is treated, by shell patterns of dotted names, e.g. {"queue*": "personal", "ema.*": "mean"}:
            "mean", "max", "server" (reset), "personal" or "advance" (by the interval); see
            `fedgen.federated.client_state.exchange`.
        aggregator: how clients' tensors are combined; `Mean` by default, `Median`, `TrimmedMean`, `Krum` or
            `NormClipping` against bad updates, `QFedAvg` for more equal losses.
        client_algorithm: hooks around local steps, e.g. `FedProx(mu=0.1)`, `Scaffold()` or `Ditto()`; none by default.
        client_schedule: a factor per round on the learning rates of the clients' optimizers, e.g.
            `ExponentialDecay(0.5, rounds=100)`; the module's own schedules still apply. It acts within optimizer steps,
            so `LearningRateMonitor` does not show it; "client_lr_factor" is logged.
        server_schedule: the same for the server optimizer; without one the server moves by this factor towards the
            average. "server_lr_factor" is logged.
        seed: None takes the seed of `seed_everything`, else 0.
        batch_idx: what a `training_step` receives: its iteration of the "round" (from 0, as in an epoch of Lightning),
            or of the "client" since training began, as before version 0.2.
        checkpoint_io: `AtomicCheckpointIO` by default.
        compression: compresses clients' updates on the way to the server, e.g. `QSGD(bits=8)`; None sends them whole.
            See `fedgen.federated.compression`.
        sampler: draws the cohorts, instead of the uniform draw, e.g. `SizeSampler()` or
            `AvailabilitySampler("trace.csv")` of `fedgen.clients.samplers`.
        speeds: clients' speeds for a simulated clock: a round lasts as long as its slowest client's turn and messages,
            and "simulated_seconds" since the start are logged. `FedBuffStrategy` does not wait for slow clients.
        vectorised_turns: `VectorisedTurns()` trains small clients at once; None trains clients one by one.
        kwargs: as for `DDPStrategy`.

    Raises:
        ValueError: for settings out of range.
        MisconfigurationException: for Trainer settings that would cut rounds.
        RuntimeError: when a round loses every client, from the first client's error. If all clients meet the same error
            in the user's own code, that error is raised, with a note.
        LostRankError: when another process has ended; the remaining ones can resume from a checkpoint.

    Examples:
        >>> from fedgen import FedAvgStrategy
        >>> strategy = FedAvgStrategy(communication_interval=20, cohort_size=5)  # for Trainer(strategy=...)
        >>> strategy.communication_interval, strategy.cohort_size
        (20, 5)
    """

    strategy_name = "fedavg"
    _planned_rounds: int | None = None  # where the trainer's `max_epochs` does not say
    _fixed_exchange = False  # see `RoundSettings.fixed`
    calls_round_end = True  # says to modules that their `on_round_end(iterations)` is called by the strategy

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
        compression: Compressor | None = None,
        sampler: CohortSampler | None = None,
        speeds: ClientSpeeds | None = None,
        vectorised_turns: VectorisedTurns | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(checkpoint_io=checkpoint_io or AtomicCheckpointIO(), **kwargs)
        explain_other_lightning()
        checks.check_settings(communication_interval, cohort_size, client_weights, optimizer_state, batch_idx)
        check_rules("rules", rules or {})
        self.communication_interval, self.cohort_size, self.batch_idx = communication_interval, cohort_size, batch_idx
        self.aggregator, self.client_algorithm = aggregator or Mean(), client_algorithm or ClientAlgorithm()
        self.client_schedule, self.server_schedule, self.compression = client_schedule, server_schedule, compression
        self.sampler, self.personal, self.speeds = sampler, list(personal), speeds
        self.vectorised_turns = vectorised_turns
        checks.check_sampler(sampler, self.aggregator, client_weights)
        self._settings = RoundSettings(
            communication_interval, client_weights, server_optimizer, optimizer_state, self.personal, dict(rules or {}),
            self.aggregator, self.client_algorithm, client_schedule, server_schedule, compression,
        )  # fmt: skip
        self._given_seed = seed
        self._memory = ClientMemory()
        self._reset_fit()

    @cached_property
    def seed(self) -> int:
        """The base of all draws; read when first used, so that `seed_everything` may come after construction."""
        return resolve(self._given_seed)

    def _reset_fit(self) -> None:
        self._shares = RankShares(Ranks())
        self._clock: TurnClock | None = None
        self._round: Round | None = None
        self._loop: LocalTraining | None = None
        self._checkpoints: RoundCheckpoints | None = None
        self._schedules: StepSchedules | None = None
        self.has_logged_state, self._logs_table = False, True
        self._clients: Sequence[Any] | None = None  # as far as the data name them
        self._simulated: dict[str, Any] = {}  # the simulated clock, and what belongs to it
        self._cohorts = CohortDraws(self.cohort_size, self.sampler)

    def setup(self, trainer: Trainer) -> None:
        fits = trainer.state.fn == TrainerFn.FITTING
        if fits:
            checks.run_whole_rounds(trainer)
            checks.check_trainer(trainer)
            self._release()
            total = 0 if self._clock is None else self._clock.total_steps
            self._reset_fit()
            self._clock = TurnClock(trainer, self.communication_interval, self._planned_rounds)
            patch_trainer(trainer, self._clock)
            memory, self._memory = self._memory, self._memory.of(self._module)
            if memory is self._memory:
                self._clock.total_steps = total  # training goes on
            else:
                self.client_algorithm.reset()
        Strategy.setup(self, trainer)
        if fits:
            self._start_fit(trainer)

    def setup_optimizers(self, trainer: Trainer) -> None:
        with alone(), self.clock.within():  # one client's batches and steps
            super().setup_optimizers(trainer)

    def _start_fit(self, trainer: Trainer) -> None:
        self._round = round = self._make_round(trainer)
        self._check_cohort()
        clients = optional(data_module_of(trainer), FederatedData, "clients") or ()
        self._simulated = self._make_simulated(round, len(clients))
        self._schedules = StepSchedules(trainer)
        self._driver = self._drive(round, self._schedules)
        others = [callback for callback in trainer.callbacks if not isinstance(callback, RoundBoundary)]
        trainer.callbacks = [RoundBoundary(self, others), *others]
        parts = round, self._driver, self._schedules, self.batch_idx == "round", self._batch_to_device
        at_once = self.vectorised_turns
        self._loop = LocalTraining(*parts) if at_once is None else VectorisedTraining(at_once, self.seed, *parts)

    def _make_round(self, trainer: Trainer) -> Round:
        settings, ranks = replace(self._settings, fixed=self._fixed_exchange), self._shares.ranks
        module, aggregator, algorithm = trainer.lightning_module, settings.aggregator, settings.client_algorithm
        warn_of_objects(trainer)
        if self.root_device.type == "cpu":
            keep_freed_memory()
        checks.check_plateaus(trainer)
        aggregator.check_ranks(ranks)
        checks.check_compression(settings.compression, aggregator, settings.fixed)
        tensors = [*module.parameters(), *module.buffers()]
        if any(map(is_lazy, tensors)) or any(isinstance(part, LazyModuleMixin) for part in module.modules()):
            materialise(trainer, self.seed)
        ranks.copy_first(module.state_dict().values())
        model = ServerModel(module, self.optimizers, settings, self._memory)
        schedulers = [config.scheduler for config in self.lr_scheduler_configs]
        parts = [*self.optimizers, *optimizers_of(trainer), *schedulers]
        outside = OutsideState(module, model.rules, [self, trainer, data_module_of(trainer), *parts], self.seed)
        # a Python counter of one client's would go around what private and robust rules promise
        outside.exchanges = not (aggregator.private or aggregator.robust or settings.fixed)
        # clients' optimizers are not the server's: some of their parameters are exchanged or personal
        served = {self.optimizers[place] for place in optional(module, FederatedModule, "server_optimizers")}
        live = {id(tensor) for tensor in model.exchange.live.values()}
        own = [o for o in self.optimizers if o not in served and any(id(p) in live for p in parameters_of(o))]
        local = LocalState(own, schedulers, scaler_of(trainer), settings.optimizer_state, optimizers_of(trainer))
        if settings.client_schedule is not None:
            check_rates(settings.client_schedule, local.optimizers)
        algorithm.start_fit(model.trainable, local.optimizers, self._client_shares(trainer))
        mode, exchange = settings.optimizer_state, model.exchange
        checks.check_aggregator(aggregator, settings.client_weights, mode, exchange, module, algorithm)
        return Round(self.clock, model, settings, self._memory, local, outside, ranks, self.seed)

    def _client_shares(self, trainer: Trainer) -> list[float] | None:
        """Return every client's weight in the mean over the whole federation; None if the data name no clients."""
        return shares_of(data_module_of(trainer), self._settings.client_weights)

    def _check_cohort(self) -> None:
        self._clients = clients = optional(data_module_of(self._module.trainer), FederatedData, "clients")
        self._cohorts.start(clients, self.clock.rounds)
        if clients:
            self.aggregator.check_cohort(self._sizes()[1])

    def _make_simulated(self, round: Round, clients: int) -> dict[str, Any]:
        """Return the parts of the federation that a simulated clock needs, by their names in checkpoints."""
        if self.speeds is None:
            return {}
        self.speeds.check_clients(clients)
        seconds = self.speeds.of_turns(round.exchange, self.communication_interval, self.seed)
        return {"simulated": SimulatedClock(seconds)}

    def _drive(self, round: Round, schedules: StepSchedules) -> Driver:
        """Return what decides where turns are taken: the round itself, which takes them in this process."""
        return round

    def _sizes(self) -> tuple[int, int]:
        """Return the number of clients, as far as the data name them, and of clients that a round draws."""
        return self._cohorts.sizes(self._clients)

    def teardown(self) -> None:
        self._release()
        super().teardown()

    def _release(self) -> None:
        """Give trainer, module, callbacks and schedules back as they were before the fit."""
        for part in (self._loop, self._schedules, self._clock):
            if part is not None:
                part.release()
        if self._round is not None:
            self._round.local.release()
        if self._clock is not None:
            unpatch_trainer(self._clock.trainer)

    def sample_cohort(self, num_clients: int, round: int) -> list[int]:
        """Return the clients of a round, one that counts several times as often; the data module asks."""
        return self._cohorts.draw(num_clients, self.seed, round)

    def share(self, cohort: Sequence[int], sizes: Sequence[int]) -> list[int | None]:
        """Return the clients of a round that train on this rank; the data module asks. See `RankShares.share`."""
        # before fitting has started a user may look at the batches
        if self._round is None or (self._shares.ranks.size == 1 and self.sampler is None):
            return list(cohort)
        most = len(cohort) if self.sampler is None else self._sizes()[1]  # a custom sampler's rounds may differ in size
        return self._shares.share(cohort, sizes, self._round.keeps_clients, most)

    def on_train_batch_start(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        if not isinstance(batch, Turn):
            checks.refuse_batch(batch)
        if batch.is_first:
            assert self._clock is not None
            trainer = self._clock.trainer
            if trainer.fit_loop.restarting:
                end_restart(trainer)
            self._driver.begin(trainer.current_epoch, *self._sizes(), Path(trainer.default_root_dir))
        assert self._loop is not None
        self._loop.begin_turn(batch)

    def batch_to_device(self, batch: Any, device: torch.device | None = None, dataloader_idx: int = 0) -> Any:
        # a turn's batches are moved one by one, when they are cut
        return batch if isinstance(batch, Turn) else super().batch_to_device(batch, device, dataloader_idx)

    def _batch_to_device(self, batch: Any) -> Any:
        return super().batch_to_device(self.precision_plugin.convert_input(batch))

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        plain = super().training_step
        return plain(*args, **kwargs) if self._loop is None else self._loop.training_step(plain, args, kwargs)

    def optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any], model: Any = None, **kwargs: Any) -> Any:
        plain = partial(super().optimizer_step, model=model, **kwargs)
        if self._loop is None:
            return plain(optimizer, closure)
        return self._loop.optimizer_step(plain, optimizer, closure, not kwargs)

    def end_simulated_round(self) -> None:
        """Let a whole round's time pass on the simulated clock, if there is one."""
        if (clock := self.simulated_clock) is not None:
            round = self._module.current_epoch
            clock.end_round(round, self.sample_cohort(self._sizes()[0], round))

    def drop_round(self) -> None:
        """Restore the server's model and optimizer state of before the round."""
        self.round.drop()
        started(self._loop).awaits_step = False

    def on_exception(self, exception: BaseException) -> None:
        if self.in_round:
            self.drop_round()
        super().on_exception(exception)

    @property
    def round(self) -> Round:
        """The federation's rounds; made when fitting starts."""
        return started(self._round)

    @property
    def clock(self) -> TurnClock:
        """Counts of the fit that runs, or ran last."""
        return started(self._clock)

    @property
    def client_iteration(self) -> int | None:
        """The iteration of the client that trains, since training began; None where none does."""
        return None if self._loop is None else self._loop.client_iteration

    @property
    def client_lr_factor(self) -> float:
        """The factor on the learning rates of the client that trains, for modules that set their own rates."""
        return 1.0 if self._round is None else self._round.factor

    @property
    def exchange(self) -> Exchange:
        """The tensors that travel; known when fitting starts."""
        return self.round.exchange

    @property
    def simulated_clock(self) -> SimulatedClock | None:
        """The clock of a simulation in which clients differ in speed; None without `speeds`."""
        return self._simulated.get("simulated")

    def process_dataloader(self, dataloader: object) -> object:
        """Return the turns of clients' batches, for Lightning's loops: users and callbacks see one client's batches."""
        return dataloader.turns if isinstance(dataloader, ClientBatches) else dataloader

    @property
    def in_round(self) -> bool:
        """Whether the model is not the server's, or not of a whole round."""
        return self._round is not None and self._round.is_open

    @property
    def in_turns(self) -> bool:
        """Whether a round has begun and its last turn is not over."""
        return self._round is not None and self._round.turn is not None

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
        """Tensors of clients' own models, by client and name: of those that have trained in this process."""
        models = {} if self._round is None else self._round.algorithm.own_models
        return overlay(self._memory.personal, models)

    @property
    def own_tensors(self) -> Mapping[str, Tensor]:
        """The tensors in which clients' own models differ from the server's, by name."""
        exchange, algorithm = self.exchange, self.round.algorithm
        return exchange.personal | (exchange.trainable if algorithm.scores_own else {})

    @property
    def metrics(self) -> dict[str, float]:
        """The values logged of the present round: schedules' factors, those of the aggregator, simulated time."""
        round, settings = self.round, self.round.settings
        schedules = {"client_lr_factor": settings.client_schedule, "server_lr_factor": settings.server_schedule}
        found = {name: factor_in(one, round.number) for name, one in schedules.items() if one is not None}
        found["total_steps"] = float(round.clock.total_steps)
        simulated = {} if self.simulated_clock is None else self.simulated_clock.metrics
        return found | round.model.aggregator.metrics(round.number + 1) | simulated

    def is_of_clients(self, exception: BaseException) -> bool:
        """Return whether clients of this round met an exception, which is raised as it is since all of them did."""
        return self._round is not None and any(exception is error for error in self._round.errors)

    def state_table(self) -> list[StateRow]:
        """Return what becomes of the module's state: what travels, is averaged, reset, kept or not isolated."""
        if self._round is None or not self._round.is_known:
            raise NoRoundError(
                "state_table() shows what clients' turns were found to change, and this strategy has trained no whole"
                " round yet: call it after trainer.fit(...), or in a callback's on_train_epoch_end"
            )
        return state_rows(self._round)

    def silence_state_table(self) -> None:
        """Keep the short state table out of the log, for a callback that shows all of it; within `fit`."""
        self._logs_table = False

    def log_state_table(self) -> None:
        """Log once, when the first round is over, what clients send and what becomes of the module's state; warn."""
        round = self.round
        if self.has_logged_state or not round.is_known:
            return
        self.has_logged_state, rows = True, state_rows(round)
        sent, received = in_bytes(sum(row.num_bytes for row in rows)), in_bytes(self.bytes_received)
        rank_zero_info(f"each client sends {sent} a round and receives {received}")
        if self._logs_table:
            rank_zero_info(f"what becomes of the module's state in clients' turns:\n{table_of(rows)}")
        warn_of_state(rows, round.model.rules.unmatched, round.outside.remedies)

    @property
    def bytes_sent(self) -> int:
        """The bytes of all tensors that a client sends to the server in a round, as far as turns have shown them."""
        return sum(row.num_bytes for row in state_rows(self.round))

    @property
    def bytes_received(self) -> int:
        """The bytes of all tensors that the server sends to a client in a round."""
        round, exchange = self.round, self.exchange
        model = exchange.num_bytes_down if round.state_bytes is None else exchange.beside + round.state_bytes
        return model + round.local.bytes_received + bytes_of(round.messages.server_means.values())

    @contextmanager
    def client_model(self, client: int) -> Iterator[None]:
        """Make the module what the client sees, with what it keeps in place; within `fit`, between rounds."""
        self._shares.check_is_here(client)
        round = self.round
        round.model.start_round()  # turns may have filled a buffer since the round began
        exchange = round.exchange
        round.model.switches.start_turn()
        with round.outside.seen_by(client):
            round.memory.load_personal(client, exchange)
            own, live = round.algorithm.own_models.get(client, {}), exchange.live
            copy_tensors([live[name] for name in own if name in live], [own[name] for name in own if name in live])
            try:
                yield
            finally:
                exchange.restore_forms()
                exchange.load_server()
                round.model.switches.restore()

    @property
    def checkpoints(self) -> RoundCheckpoints:
        """The federation's part in checkpoints, once fitting has started."""
        if self._checkpoints is None:
            by_round = self.batch_idx == "round"
            self._checkpoints = RoundCheckpoints(self.round, self._shares, by_round, self._simulated)
        return self._checkpoints

    def on_train_start(self) -> None:
        trainer = self.clock.trainer
        checks.check_limits(trainer)
        if self._checkpoints is not None:  # one has been loaded
            self._checkpoints.update_plateaus()
        super().on_train_start()

    def lightning_module_state_dict(self) -> dict[str, Any]:
        state = super().lightning_module_state_dict()
        if not self.in_turns:
            return state
        first, server = self.exchange.first_names, self.exchange.server  # in place of the client's tensors
        return {name: server.get(first.get(name, name), value) for name, value in state.items()}

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        has_started = self._round is not None
        written = self.checkpoints.to_write(checkpoint, filepath) if has_started else settle_loops(checkpoint)
        if written is not None:
            if "lr_schedulers" in written:
                written["lr_schedulers"] = plain_part(written["lr_schedulers"])
            super().save_checkpoint(written, filepath, storage_options)

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        with naming_checkpoint(self._module.trainer), checked_weights(self._module, checkpoint):
            super().load_model_state_dict(checkpoint, strict)

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        with naming_checkpoint(self._module.trainer):
            check_optimizers(self.optimizers, [config.scheduler for config in self.lr_scheduler_configs], checkpoint)
            super().load_optimizer_state_dict(checkpoint)
            self.checkpoints.load(checkpoint)


def started(part: Part | None) -> Part:
    """Return what is made when fitting starts."""
    if part is None:
        raise RuntimeError("the strategy has not started fitting yet")
    return part


def warn_of_objects(trainer: Trainer) -> None:
    """Warn, when fitting starts, of hyperparameters that make the run's checkpoints unreadable."""
    if not trainer.checkpoint_callbacks or not isinstance(trainer.strategy.checkpoint_io, AtomicCheckpointIO):
        return
    for owner in (trainer.lightning_module, data_module_of(trainer)):
        for name, value in plain(owner.hparams if isinstance(owner, HyperparametersMixin) else {}).items():
            who, kind = type(owner).__name__, f"{type(value).__module__}.{type(value).__qualname__}"
            if objects_in(value):  # Lightning has taken out what cannot be pickled
                rank_zero_warn(
                    f"the hyperparameter {name!r} of {who} is of class {kind}: checkpoints with it are refused when"
                    " they are read, to resume or to evaluate, as reading unpickles no objects; write"
                    f" self.save_hyperparameters(ignore=[{name!r}]) in {who}"
                )
