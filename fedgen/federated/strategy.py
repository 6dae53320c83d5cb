"""Federated averaging (McMahan et al. 2017) as a Lightning strategy: an epoch is a round, a batch a client's turn."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.core.mixins import HyperparametersMixin
from lightning.pytorch.strategies import Strategy
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from fedgen.clients.samplers.sampler import CohortDraws, CohortSampler
from fedgen.clients.turn import Turn
from fedgen.data.optional_attributes import optional
from fedgen.federated.aggregators.mean import Aggregator, ClientWeights, Mean, shares_of
from fedgen.federated.algorithms.algorithm import ClientAlgorithm
from fedgen.federated.client_state.exchange import Rule, check_rules, parameters_of
from fedgen.federated.client_state.local_state import LocalState, OptimizerState
from fedgen.federated.client_state.memory import ClientMemory
from fedgen.federated.client_state.outside_state import OutsideState
from fedgen.federated.compression.compressor import Compressor
from fedgen.federated.federation_view import FederationView, started
from fedgen.federated.lightning.checkpoint_io import AtomicCheckpointIO, plain
from fedgen.federated.lightning.checks import (
    check_compression,
    check_plateaus,
    check_privacy,
    check_robustness,
    check_sampler,
    check_settings,
    check_trainer,
    refuse_batch,
    run_whole_rounds,
)
from fedgen.federated.lightning.lazy_parameters import materialise
from fedgen.federated.lightning.lightning_internals import end_restart, explain_other_lightning, optimizers_of
from fedgen.federated.lightning.one_or_many import RankShares, keep_freed_memory
from fedgen.federated.local_training import Driver, LocalTraining, RoundBoundary
from fedgen.federated.round import Round
from fedgen.federated.schedules import Schedule, check_rates
from fedgen.federated.server_model import RoundSettings, ServerModel
from fedgen.federated.simulated_clock import ClientSpeeds, SimulatedClock
from fedgen.federated.trainer_patches import StepSchedules, TurnClock, patch_trainer, unpatch_trainer
from fedgen.federated.vectorised.vectorised_turns import VectorisedTraining, VectorisedTurns
from fedgen.io.tensor_files import objects_in
from fedgen.models.optional_hooks import FederatedData, FederatedModule, data_module_of, scaler_of
from fedgen.own_code import rank_zero_warn
from fedgen.ranks import Ranks, alone
from fedgen.seeds import resolve


class FedAvgStrategy(FederationView):
    """Trains any LightningModule over many simulated clients by federated averaging.

    `Trainer(strategy=FedAvgStrategy(communication_interval=160))` with a `FederatedDataModule`. In each round every
    client of the cohort starts from the server's weights, takes `communication_interval` local iterations (each one
    `training_step` of the unchanged module, automatic or manual optimisation) and sends its weights back; after the
    last turn the module holds the server's new model, and all that Lightning does at the end of an epoch sees it.

    A turn is isolated: what it changes is exchanged, personal or reset, and to what runs in it Lightning's words mean
    what they mean in an ordinary fit of one client. A client whose turn fails is left out of the round. Several
    processes share a round's clients. Checkpoints hold whole rounds. `docs/state-in-turns.md` and
    `docs/concepts.md` say all of this at length: rules, words, draws, the server's optimizers, hooks, clients left out.

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
            `fedgen.federated.client_state.exchange`.
        aggregator: how clients' tensors are combined; `Mean` by default, `Median`, `TrimmedMean`, `Krum` or
            `NormClipping` against clients that send bad updates, `QFedAvg` for losses that are more alike.
        client_algorithm: hooks around local steps, e.g. `FedProx(mu=0.1)`, `Scaffold()` or `Ditto()`; none by default.
        client_schedule: a factor by round on the learning rates of the clients' optimizers, e.g.
            `ExponentialDecay(0.5, rounds=100)`; beside the module's own schedules, which go on. It acts within
            optimizer steps, so what `LearningRateMonitor` shows is without it; "client_lr_factor" is logged.
        server_schedule: likewise on the server optimizer's; without one the server goes the factor's part of the way
            to the average. "server_lr_factor" is logged.
        seed: None takes what `seed_everything` was given, else 0.
        batch_idx: what a `training_step` receives: its iteration of the "round" (from 0, as in an epoch of Lightning),
            or of the "client" since training began, as before version 0.2.
        checkpoint_io: `AtomicCheckpointIO` by default.
        compression: of what clients' turns added to the parameters, on its way to the server, e.g. `QSGD(bits=8)`;
            None sends it whole. See `fedgen.federated.compression`.
        sampler: draws the cohorts in place of the uniform draw, e.g. `SizeSampler()` or
            `AvailabilitySampler("trace.csv")` of `fedgen.clients.samplers`.
        speeds: of clients, for a simulated clock: a round lasts as long as its slowest client's turn and messages, and
            "simulated_seconds" since the start are logged. `FedBuffStrategy` does not wait for slow clients.
        vectorised_turns: trains small clients at once, `VectorisedTurns()`; None takes turns one by one.
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
    calls_round_end = True  # tells modules that their `on_round_end(iterations)` is called by the strategy

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
        check_settings(communication_interval, cohort_size, client_weights, optimizer_state, batch_idx)
        check_rules("rules", rules or {})
        self.communication_interval, self.cohort_size, self.batch_idx = communication_interval, cohort_size, batch_idx
        self.aggregator, self.client_algorithm = aggregator or Mean(), client_algorithm or ClientAlgorithm()
        self.client_schedule, self.server_schedule, self.compression = client_schedule, server_schedule, compression
        self.sampler, self.personal, self.speeds = sampler, list(personal), speeds
        self.vectorised_turns = vectorised_turns
        check_sampler(sampler, self.aggregator, client_weights)
        self._settings = RoundSettings(
            communication_interval, client_weights, server_optimizer, optimizer_state, self.personal, dict(rules or {}),
            self.aggregator, self.client_algorithm, client_schedule, server_schedule, compression=compression,
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
        self._clock = self._round = self._loop = self._checkpoints = None
        self._schedules: StepSchedules | None = None
        self.has_logged_state, self._logs_table = False, True
        self._clients: Sequence[Any] | None = None  # as far as the data name them
        self._simulated: dict[str, Any] = {}  # the simulated clock, and what belongs to it
        self._cohorts = CohortDraws(self.cohort_size, self.sampler)

    def setup(self, trainer: Trainer) -> None:
        fits = trainer.state.fn == TrainerFn.FITTING
        if fits:
            run_whole_rounds(trainer)
            check_trainer(trainer)
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
        settings = replace(self._settings, fixed=self._fixed_exchange)
        shares, ranks = self._client_shares(trainer), self._shares.ranks
        self._round = round = make_round(self.clock, settings, self._memory, ranks, self.seed, shares)
        self._check_cohort()
        clients = optional(data_module_of(trainer), FederatedData, "clients") or ()
        self._simulated = self._make_simulated(round, len(clients))
        self._schedules = StepSchedules(trainer)
        self._driver = self._drive(round, self._schedules)
        others = [callback for callback in trainer.callbacks if not isinstance(callback, RoundBoundary)]
        trainer.callbacks = [RoundBoundary(self, others), *others]
        by_round = self.batch_idx == "round"
        parts = round, self._driver, self._schedules, by_round, self._batch_to_device
        at_once = self.vectorised_turns
        self._loop = LocalTraining(*parts) if at_once is None else VectorisedTraining(at_once, self.seed, *parts)

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
            refuse_batch(batch)
        if batch.is_first:
            assert self._clock is not None
            trainer = self._clock.trainer
            if trainer.fit_loop.restarting:
                end_restart(trainer)
            self._driver.begin(trainer.current_epoch, *self._sizes(), Path(trainer.default_root_dir))
        assert self._loop is not None
        self._loop.begin_turn(batch)

    def batch_to_device(self, batch: Any, device: torch.device | None = None, dataloader_idx: int = 0) -> Any:
        if isinstance(batch, Turn):
            return batch  # its batches are moved one by one, when they are cut
        return super().batch_to_device(batch, device, dataloader_idx)

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


def make_round(
    clock: TurnClock,
    settings: RoundSettings,
    memory: ClientMemory,
    ranks: Ranks,
    seed: int,
    shares: Sequence[float] | None,
) -> Round:
    """Return the rounds of a federation over a trainer's module, whose optimizers have been made."""
    trainer = clock.trainer
    strategy, module = trainer.strategy, trainer.lightning_module
    aggregator, algorithm = settings.aggregator, settings.client_algorithm
    warn_of_objects(trainer)
    if strategy.root_device.type == "cpu":
        keep_freed_memory()
    check_plateaus(trainer)
    aggregator.check_ranks(ranks)
    check_compression(settings.compression, aggregator, settings.fixed)
    tensors = [*module.parameters(), *module.buffers()]
    if any(map(is_lazy, tensors)) or any(isinstance(part, LazyModuleMixin) for part in module.modules()):
        materialise(trainer, seed)
    ranks.copy_first(module.state_dict().values())
    model = ServerModel(module, strategy.optimizers, settings, memory)
    schedulers = [config.scheduler for config in strategy.lr_scheduler_configs]
    parts = [*strategy.optimizers, *optimizers_of(trainer), *schedulers]
    outside = OutsideState(module, model.rules, [strategy, trainer, data_module_of(trainer), *parts], seed)
    # a Python counter of one client's would go around what private and robust rules promise
    outside.exchanges = not (aggregator.private or aggregator.robust or settings.fixed)
    # not the server's: some of a client's optimizer's parameters are exchanged or personal
    served = {strategy.optimizers[place] for place in optional(module, FederatedModule, "server_optimizers")}
    live = {id(tensor) for tensor in model.exchange.live.values()}
    own = [o for o in strategy.optimizers if o not in served and any(id(p) in live for p in parameters_of(o))]
    local = LocalState(own, schedulers, scaler_of(trainer), settings.optimizer_state, optimizers_of(trainer))
    if settings.client_schedule is not None:
        check_rates(settings.client_schedule, local.optimizers)
    algorithm.start_fit(model.trainable, local.optimizers, shares)
    check_privacy(aggregator, settings.client_weights, settings.optimizer_state, model.exchange, module, algorithm)
    check_robustness(aggregator, settings.optimizer_state, model.exchange)
    return Round(clock, model, settings, memory, local, outside, ranks, seed)
