"""A module by others, how it is trained here, and how far the strategy's result is from the reference's."""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import lightning as L
import numpy as np
import torch
from torch import Tensor

from fedgen.clients import FederatedDataModule
from fedgen.clients.partitions import Partition
from fedgen.data import Examples
from fedgen.federated import FedAvgStrategy
from tests.foreign.merging import attributes, deviations
from tests.foreign.reference import fit_by_turns
from tests.trainers import quiet_trainer

SIZES = (12, 20, 7)
# what the strategy says of state for which nothing is declared; that is what some cases are about
STATE_IS_RESET = "clients' turns change state"


class InOrder(Partition):
    """Clients of given sizes, one after another."""

    @property
    def num_clients(self) -> int:
        return len(SIZES)

    def assign(self, examples: Examples, seed: int) -> list[Any]:
        return np.split(np.arange(sum(SIZES)), np.cumsum(SIZES)[:-1])


def _dealt(inputs: Tensor, name: str) -> FederatedDataModule:
    labels = torch.arange(len(inputs)) % 3
    examples = Examples(inputs, labels, f"{name}/train", ("a", "b", "c"))
    return FederatedDataModule(examples, InOrder(), batch_size=4, held_out=0.0, seed=0)


def images(channels: int = 1, size: int = 8) -> FederatedDataModule:
    """Blurred noise, uint8 [39, channels, size, size], darker from client to client."""
    draws = torch.Generator().manual_seed(7)
    rough = torch.rand(sum(SIZES), channels, 4, 4, generator=draws)
    smooth = torch.nn.functional.interpolate(rough, size=(size, size), mode="bilinear")
    levels = torch.linspace(1.0, 0.4, sum(SIZES)).view(-1, 1, 1, 1)
    return _dealt((smooth * levels * 255).to(torch.uint8), "noise")


def points(length: int = 6) -> FederatedDataModule:
    """Normal points [39, length], further from the origin from client to client."""
    draws = torch.Generator().manual_seed(7)
    shifts = torch.linspace(-1.0, 1.0, sum(SIZES)).view(-1, 1)
    return _dealt(torch.randn(sum(SIZES), length, generator=draws) + shifts, "points")


def tokens(length: int = 10, vocabulary: int = 17) -> FederatedDataModule:
    """Numbers of tokens as floats [39, length], in [0, vocabulary)."""
    draws = torch.Generator().manual_seed(7)
    return _dealt(torch.randint(vocabulary, (sum(SIZES), length), generator=draws).float(), "tokens")


@dataclass(frozen=True)
class Case:
    """One module, unchanged, under the strategy.

    Args:
        name: of the method and its implementation.
        source: where the module, its hooks and its state are from.
        state: the kinds of state that it has beside trained weights.
        make: makes the module.
        data: makes the clients.
        rules: what is declared of its state.
        moves: patterns of state that must be another after training than before: what the case is about.
        python: patterns of attributes beside the `state_dict` that must agree, too.
        interval: local iterations a turn.
        rounds: as many.
        options: of the Trainer, on both sides.
        warns: beginnings of warnings that the module or its libraries raise in any training.
        tolerance: the largest deviation allowed, beside integers, which are equal.
    """

    name: str
    source: str
    state: str
    make: Callable[[], L.LightningModule]
    data: Callable[[], FederatedDataModule] = images
    rules: Mapping[str, str] = field(default_factory=dict)
    moves: tuple[str, ...] = ()
    python: tuple[str, ...] = ()
    interval: int = 4
    rounds: int = 2
    options: Mapping[str, Any] = field(default_factory=dict)
    warns: tuple[str, ...] = ()
    tolerance: float = 2e-5

    def made(self) -> L.LightningModule:
        """The module with the weights that both sides start from."""
        torch.manual_seed(1)
        return self.make()

    def federated(self) -> L.LightningModule:
        """The module after `FedAvgStrategy`."""
        rules = {"rules": dict(self.rules)} if self.rules else {}
        with self.without(*self.warns, STATE_IS_RESET):
            module, strategy = self.made(), FedAvgStrategy(self.interval, seed=0, **rules)
            make_trainer(strategy, self.rounds, **self.options).fit(module, self.data())
        return module

    def reference(self) -> L.LightningModule:
        """The module after ordinary fits."""
        with self.without(*self.warns):
            return fit_by_turns(self.made, self.data(), self.interval, self.rounds, self.rules, **self.options)

    @staticmethod
    @contextmanager
    def without(*messages: str) -> Iterator[None]:
        """Ignores warnings by the beginnings of their messages."""
        with warnings.catch_warnings():
            for message in messages:
                warnings.filterwarnings("ignore", message)
            yield

    def snapshot(self, module: L.LightningModule) -> dict[str, Any]:
        """What is compared: the `state_dict`, and the attributes that the case names."""
        own = attributes(module)
        for pattern in self.python:  # a counter may live on the class until it first moves
            if hasattr(module, pattern):
                own.setdefault(pattern, getattr(module, pattern))
        chosen = {name: value for name, value in own.items() if _fits(name, self.python)}
        return {**module.state_dict(), **chosen}


def make_trainer(strategy: Any, rounds: int, **options: Any) -> L.Trainer:
    """A trainer on one CPU that writes nothing."""
    return quiet_trainer(rounds, strategy=strategy, **{"limit_val_batches": 0, **options})


def _fits(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def compare(case: Case) -> dict[str, float]:
    """The largest deviation of the strategy's result from the reference's, by name of state.

    Raises:
        AssertionError: if the reference leaves state as it was that the case is about.
    """
    expected = case.snapshot(case.reference())
    with case.without(*case.warns):
        before = case.snapshot(case.made())
    for pattern in case.moves:
        moved = [
            n for n in expected if fnmatchcase(n, pattern) and any(d for _, d in deviations(expected[n], before.get(n)))
        ]
        assert moved, f"{case.name}: no state {pattern} moved, of {sorted(expected)}"
    found = case.snapshot(case.federated())
    assert found.keys() == expected.keys()
    return {n: max((d for _, d in deviations(found[n], expected[n])), default=0.0) for n in expected}


def check(case: Case) -> None:
    """Raises an AssertionError that names what deviates, if the strategy's result is not the reference's."""
    expected = compare(case)
    wrong = {name: value for name, value in expected.items() if not value <= case.tolerance}
    assert not wrong, f"{case.name}: {wrong}"
