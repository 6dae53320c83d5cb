"""Federated averaging computed from ordinary Lightning fits: what `FedAvgStrategy` must make of any module.

Each client's turn is a fit of its own: a plain `lightning.Trainer` on a copy of the server's whole module, over the
batches that the client has in that round, in their order, with the random state of its turn. Then the server's module
takes what the rules say from the clients' copies (`tests.foreign.merging`). Nothing of the strategy is used but two
definitions that both sides must share: a turn's batches (`Turn.batches`), and its seeds (`seed_all` at "turn", round
and client).

What goes on from round to round in one long ordinary fit is given to each short fit by `Continuation`: the epoch, the
global step, the optimizers' settings (their states are empty, as the strategy's default has it) and the schedules.
"""

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import lightning as L
from lightning.pytorch import Callback
from torch.utils.data import DataLoader

from fedgen.clients import FederatedDataModule
from fedgen.clients.turn import Turn
from fedgen.seeds import seed_all
from tests.foreign.merging import ClientState, merge, rules_of, transplant
from tests.trainers import quiet_trainer

Settings = tuple[list[list[dict[str, Any]]], list[dict[str, Any]]]  # of optimizers' parameter groups, of schedules


@dataclass
class Clock:
    """How far training is when a round begins: epochs, iterations of one client, its optimizer steps, the settings."""

    round: int = 0
    iterations: int = 0
    steps: int = 0
    settings: Settings | None = None  # None before the first turn


class Continuation(Callback):
    """Makes a fit one epoch of a longer one: it begins where the clock stands and ends after its epoch.

    Lightning's own way to go on is a checkpoint. It would put optimizer states back, too, and a fit that goes on from
    a checkpoint skips parts of the epoch that it was written in; hence the counters are set directly.

    Args:
        clock: where the round begins.
        seeds: the path of names that the turn's random state comes from, after the seed itself.
    """

    def __init__(self, clock: Clock, seed: int, *seeds: int | str) -> None:
        self._clock, self._seeds = clock, (seed, *seeds)

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        clock, loop = self._clock, trainer.fit_loop.epoch_loop
        epochs, batches = trainer.fit_loop.epoch_progress, loop.batch_progress.total
        for progress in (epochs.current, epochs.total):
            progress.ready = progress.started = progress.processed = progress.completed = clock.round
        batches.ready = batches.started = batches.processed = batches.completed = clock.iterations
        steps = loop.automatic_optimization.optim_progress.optimizer.step, loop.manual_optimization.optim_step_progress
        for counter in steps:
            counter.total.ready = counter.total.completed = clock.steps
        loop._batches_that_stepped = clock.iterations

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self._clock.settings is None:  # the first round begins as optimizers and schedules are made
            self._clock.settings = read_settings(trainer)
        write_settings(trainer, self._clock.settings)

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if batch_idx == 0:  # here, since making the loader's iterator draws a number
            seed_all(*self._seeds)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        trainer.should_stop = True


def read_settings(trainer: L.Trainer) -> Settings:
    """What optimizers and schedules stand at, without the optimizers' states."""
    groups = [
        [{name: copy.deepcopy(value) for name, value in group.items() if name != "params"} for group in o.param_groups]
        for o in trainer.optimizers
    ]
    return groups, [copy.deepcopy(config.scheduler.state_dict()) for config in trainer.lr_scheduler_configs]


def write_settings(trainer: L.Trainer, settings: Settings) -> None:
    """Puts optimizers and schedules where `read_settings` found them."""
    for optimizer, groups in zip(trainer.optimizers, settings[0], strict=True):
        for group, values in zip(optimizer.param_groups, groups, strict=True):
            group.update(copy.deepcopy(values))
    for config, state in zip(trainer.lr_scheduler_configs, settings[1], strict=True):
        config.scheduler.load_state_dict(copy.deepcopy(state))


@dataclass
class Federation:
    """The server's module between rounds, and what clients keep to themselves."""

    make: Callable[[], L.LightningModule]
    module: L.LightningModule
    clock: Clock = field(default_factory=Clock)
    personal: dict[int, ClientState] = field(default_factory=dict)

    def copy(self) -> L.LightningModule:
        """A module made anew and given the server's whole state; not every module can be copied by `copy.deepcopy`."""
        module = self.make()
        transplant(self.module, module)
        return module


def fit_turn(
    federation: Federation, client: int, batches: Sequence[Any], seed: int, rounds: int, **options: Any
) -> tuple[L.LightningModule, L.Trainer]:
    """One client's turn: an ordinary fit of a copy of the server's module; the copy and its trainer."""
    module, clock = federation.copy(), federation.clock
    if client in federation.personal:
        federation.personal[client].put_into(module)
    own = {"limit_val_batches": 0, "callbacks": [Continuation(clock, seed, "turn", clock.round, client)]}
    trainer = quiet_trainer(rounds, **(own | options))
    loader = DataLoader(list(batches), batch_size=None, collate_fn=_as_it_is)  # type: ignore[arg-type]
    with warnings.catch_warnings():
        # a copy of trained modules begins its fit as it was left, e.g. with a teacher in evaluation mode
        warnings.filterwarnings("ignore", "Found .* module.s. in eval mode")
        trainer.fit(module, loader)
    return module, trainer


def _as_it_is(batch: Any) -> Any:
    return batch


def fit_by_turns(
    make: Callable[[], L.LightningModule],
    data: FederatedDataModule,
    interval: int,
    rounds: int,
    rules: Mapping[str, str] | None = None,
    seed: int = 0,
    **options: Any,
) -> L.LightningModule:
    """The server's module after a number of rounds in which every client takes part.

    Args:
        make: makes the module, each time with the weights and constants that the server starts from.
        data: the clients.
        interval: local iterations a turn.
        rounds: as many.
        rules: what becomes of state, by shell patterns of dotted names: "mean", "max", "server" or "personal".
        seed: the strategy's.
        options: of every fit's `Trainer`.
    """
    federation = Federation(make, make())
    sizes = [len(client.train) for client in data.clients]
    shares = [size / sum(sizes) for size in sizes]
    for round in range(rounds):
        fits = []
        for number, client in enumerate(data.clients):
            turn = Turn(client.data, client.train, data.batch_size, seed, number, client.name, round)
            fits.append(fit_turn(federation, number, list(turn.batches(interval)), seed, rounds, **options))
        _close_round(federation, fits, shares, interval, rules or {})
    return federation.module


def _close_round(
    federation: Federation,
    fits: Sequence[tuple[L.LightningModule, L.Trainer]],
    shares: Sequence[float],
    interval: int,
    rules: Mapping[str, str],
) -> None:
    modules = [module for module, _ in fits]
    declared = rules_of(federation.module, rules)
    for client, module in enumerate(modules):
        federation.personal[client] = ClientState.take_from(module, declared)
    merge(federation.module, modules, shares, declared)
    clock, trainers = federation.clock, [trainer for _, trainer in fits]
    federation.clock = Clock(
        round=clock.round + 1,
        iterations=clock.iterations + interval,
        steps=max(trainer.global_step for trainer in trainers),
        settings=_settings_after(trainers, clock.settings, shares),
    )


def _settings_after(trainers: Sequence[L.Trainer], before: Settings | None, shares: Sequence[float]) -> Settings:
    """Those of one turn; a schedule that looks at a metric looks at the clients' weighted mean of it, once a round."""
    trainer = trainers[-1]
    assert before is not None
    for number, config in enumerate(trainer.lr_scheduler_configs):
        if config.reduce_on_plateau and trainer.lightning_module.automatic_optimization:
            for group, values in zip(config.scheduler.optimizer.param_groups, before[0][0], strict=True):
                group.update(copy.deepcopy(values))
            config.scheduler.load_state_dict(copy.deepcopy(before[1][number]))
            values = [float(one.callback_metrics[config.monitor]) for one in trainers]
            config.scheduler.step(sum(share * value for share, value in zip(shares, values, strict=True)))
    return read_settings(trainer)
