"""The second definition of what `FedAvgStrategy` does with optimizers and schedules: one plain Lightning fit.

Where each round has a single client, the server's weights are those that it trained, so R rounds of k iterations are an
ordinary fit of R epochs of k batches. `optimizer_state="reset"` has new optimizers by `configure_optimizers` in each
epoch, "keep" those of the epoch's client, new ones in its first; schedules, and the hyperparameters that they set, go
on. Nothing of the strategy is used but a turn's batches (`Turn.batches`) and seeds (`seed_all`).
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import lightning as L
import torch
from lightning.pytorch import Callback
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, IterableDataset

from fedgen.clients import FederatedDataModule
from fedgen.clients.turn import Turn
from fedgen.federated import FedAvgStrategy
from fedgen.seeds import seed_all
from tests.trainers import quiet_trainer

Make = Callable[[], L.LightningModule]


class RoundsOfOne(IterableDataset):
    """The batches of each epoch's client.

    Args:
        data: the clients.
        cohort: the client of each epoch.
        interval: batches an epoch.
        seed: the strategy's.
    """

    def __init__(self, data: FederatedDataModule, cohort: Sequence[int], interval: int, seed: int) -> None:
        self._data, self._cohort, self._interval, self.seed, self.round = data, cohort, interval, seed, 0

    def __iter__(self) -> Iterator[Any]:
        number = self._cohort[self.round]
        client = self._data.clients[number]
        turn = Turn(client.data, client.train, self._data.batch_size, self.seed, number, client.name, self.round)
        return turn.batches(self._interval)


class OptimizersByClient(Callback):
    """Gives each epoch the optimizers of its client, or new ones.

    Args:
        batches: of the epochs.
        cohort: the client of each epoch.
        mode: "reset" or "keep".
        carried: names of hyperparameters that schedules set.
    """

    def __init__(self, batches: RoundsOfOne, cohort: Sequence[int], mode: str, carried: Sequence[str]) -> None:
        self._batches, self._cohort, self._mode, self._carried = batches, cohort, mode, carried
        self._known: dict[int, list[Optimizer]] = {}

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        # schedulers made for optimizers that are never used warn of it
        warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step", UserWarning)

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        round = self._batches.round = trainer.current_epoch
        if round == 0:
            self._known[self._cohort[0]] = trainer.optimizers
        elif self._mode == "reset" or self._cohort[round] not in self._known:
            self._known[self._cohort[round]] = made_optimizers(pl_module)
        use(trainer, self._known[self._cohort[round]], self._carried)

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if batch_idx == 0:
            seed_all(self._batches.seed, "turn", trainer.current_epoch, self._cohort[trainer.current_epoch])


def made_optimizers(module: L.LightningModule) -> list[Optimizer]:
    """What a module's `configure_optimizers` gives, without its schedules."""
    made: Any = module.configure_optimizers()
    made = made["optimizer"] if isinstance(made, dict) else made
    made = made[0] if isinstance(made, tuple) and isinstance(made[0], list) else made
    return list(made) if isinstance(made, (list, tuple)) else [made]


def use(trainer: L.Trainer, optimizers: list[Optimizer], carried: Sequence[str]) -> None:
    """Trains with these optimizers from now on, at the hyperparameters that schedules have set."""
    for before, after in zip(trainer.optimizers, optimizers, strict=True):
        for own, group in zip(before.param_groups, after.param_groups, strict=True):
            group.update({name: own[name] for name in carried if name in own})
    moved = dict(zip(map(id, trainer.optimizers), optimizers))
    trainer.strategy.optimizers = optimizers
    left = [config.scheduler for config in trainer.lr_scheduler_configs]
    left += [one for one in vars(trainer.lightning_module).values() if isinstance(one, LRScheduler)]
    while left:  # schedulers of schedulers, too
        scheduler = left.pop()
        scheduler.optimizer = moved.get(id(scheduler.optimizer), scheduler.optimizer)
        left += vars(scheduler).get("_schedulers", [])


def plain(
    make: Make,
    data: FederatedDataModule,
    cohort: Sequence[int],
    interval: int,
    mode: str,
    carried: Sequence[str] = (),
    seed: int = 0,
    **options: Any,
) -> L.LightningModule:
    """The module after an ordinary fit of an epoch for each of the cohort."""
    torch.manual_seed(1)
    module, batches = make(), RoundsOfOne(data, cohort, interval, seed)
    own = {"limit_val_batches": 0, "callbacks": [OptimizersByClient(batches, cohort, mode, carried)]}
    trainer = quiet_trainer(len(cohort), limit_train_batches=interval, **own, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.fit(module, DataLoader(batches, batch_size=None, collate_fn=lambda batch: batch))
    return module


def federated(
    make: Make, data: FederatedDataModule, rounds: int, interval: int, mode: str, seed: int = 0, **options: Any
) -> tuple[L.LightningModule, list[int]]:
    """The module after rounds of one client each, and who that was."""
    torch.manual_seed(1)
    module, strategy = make(), FedAvgStrategy(interval, cohort_size=1, optimizer_state=mode, seed=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quiet_trainer(rounds, strategy=strategy, limit_val_batches=0, **options).fit(module, data)
    return module, [strategy.sample_cohort(len(data.clients), round)[0] for round in range(rounds)]


def deviation(found: nn.Module, expected: nn.Module) -> float:
    """The largest difference of any number of two modules' state."""
    state = found.state_dict()
    pairs = [(state[name].double(), value.double()) for name, value in expected.state_dict().items()]
    return max(float((one - other).abs().max()) for one, other in pairs if isinstance(other, Tensor))
