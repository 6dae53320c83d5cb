"""The smallest trainable modules, shared by the tests of the strategy."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import lightning as L
import torch
from jsonargparse import ArgumentParser
from torch import Tensor, nn

from fedgen.clients import FederatedDataModule
from fedgen.clients.partitions import Partition
from fedgen.data import Examples
from tests.trainers import quiet_trainer


class Contiguous(Partition):
    """Clients of given sizes, one after another."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        self.sizes = sizes

    @property
    def num_clients(self) -> int:
        return len(self.sizes)

    def assign(self, examples: Examples, seed: int) -> list[Any]:
        import numpy as np

        return np.split(np.arange(sum(self.sizes)), np.cumsum(self.sizes)[:-1])


def make_data(
    sizes: tuple[int, ...] = (12, 20, 8), batch_size: int = 4, seed: int = 0, **options: Any
) -> FederatedDataModule:
    """Points [N, 3] with labels, dealt to clients of unequal sizes."""
    draws = torch.Generator().manual_seed(1)
    count = sum(sizes)
    points = Examples(torch.randn(count, 3, generator=draws), torch.arange(count) % 2, "points/train", ("a", "b"))
    return FederatedDataModule(
        points, Contiguous(sizes), batch_size=batch_size, seed=seed, **{"held_out": 0.0, **options}
    )


class Automatic(L.LightningModule):
    """A net with BatchNorm and dropout under one optimizer, automatic optimisation."""

    def __init__(self, optimizer: str = "Adam") -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 2))
        self.optimizer = optimizer

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        x, y = batch
        return nn.functional.cross_entropy(self.net(x), y)

    def configure_optimizers(self) -> Any:
        options = {"momentum": 0.9} if self.optimizer == "SGD" else {}
        return getattr(torch.optim, self.optimizer)(self.net.parameters(), lr=0.05, **options)


class Manual(Automatic):
    """The same net, manual optimisation."""

    def __init__(self, optimizer: str = "Adam") -> None:
        super().__init__(optimizer)
        self.automatic_optimization = False

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        optimizer = self.optimizers()
        loss = super().training_step(batch, batch_idx)
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()


class TwoOptimizers(L.LightningModule):
    """A pair of nets trained in turn, the second every third iteration, as a GAN's are.

    Args:
        seen: takes each `batch_idx`; a list of the module's own would be state, which turns start anew.
    """

    def __init__(self, seen: list[int] | None = None) -> None:
        super().__init__()
        self.note = ([] if seen is None else seen).append
        self.automatic_optimization = False
        self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 2)

    def losses(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        x, y = batch
        noise = torch.randn_like(x)
        return nn.functional.cross_entropy(self.b(torch.tanh(self.a(x + 0.1 * noise))), y)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self.note(batch_idx)
        first, second = self.optimizers()
        for optimizer in [first] if batch_idx % 3 else [first, second]:
            loss = self.losses(batch)
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.a.parameters(), lr=0.02), torch.optim.SGD(
            self.b.parameters(), lr=0.1, momentum=0.5
        )


def make_trainer(strategy: Any, rounds: int, **options: Any) -> L.Trainer:
    """A quiet CPU trainer."""
    return quiet_trainer(rounds, strategy=strategy, **options)


@cache
def trainer_parser() -> ArgumentParser:
    """Of a recipe's trainer: made once, as it looks through all that Lightning can be given."""
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(L.Trainer, "trainer", fail_untyped=False)
    return parser


def strategy_of(trainer: dict[str, Any]) -> Any:
    """The strategy of a recipe's settings of the trainer."""
    settings = trainer_parser().parse_object({"trainer": {**trainer, "devices": 1, "logger": False}})
    return trainer_parser().instantiate(settings).trainer.strategy


def weights(module: nn.Module) -> dict[str, Tensor]:
    """A copy of the module's state."""
    return {name: value.clone() for name, value in module.state_dict().items()}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    """Whether two states are equal to the bit."""
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


class Quadratic(L.LightningModule):
    """One number w under a client's loss a / 2 (w - b)^2, by SGD with rate 0.1 from w = 1; its gradient is a (w - b).

    Args:
        make: makes the optimizer of [w]; SGD with rate 0.1 by default.
    """

    def __init__(self, make: Callable[[list[Tensor]], torch.optim.Optimizer] | None = None) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(1, dtype=torch.float64))
        self.make = make or (lambda parameters: torch.optim.SGD(parameters, lr=0.1))

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        a, b = batch[0][0, 0].double(), batch[0][0, 1].double()
        return (a / 2 * (self.w - b) ** 2).sum()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return self.make([self.w])


def make_quadratics(
    terms: Sequence[tuple[float, float]] = ((1.0, 0.0), (3.0, 4.0)), sizes: tuple[int, ...] = (2, 2)
) -> FederatedDataModule:
    """Clients of given sizes, each with one pair (a, b)."""
    rows = torch.tensor([[a, b, 0.0] for (a, b), size in zip(terms, sizes) for _ in range(size)])
    points = Examples(rows, torch.zeros(len(rows), dtype=torch.int64), "quadratics/train", ("only",))
    return FederatedDataModule(points, Contiguous(sizes), batch_size=1, seed=0, held_out=0.0)
