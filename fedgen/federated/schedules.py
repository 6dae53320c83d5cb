"""Learning-rate schedules over rounds, for clients and for the server.

A schedule is a factor on a learning rate: a function of the round t = 0, 1, ... alone, so it has no state and a resumed
run goes on with it. But for `Cooldown` the forms are those of the released code of Yuan et al. 2022, "What Do We Mean
by Generalization in Federated Learning?", with the optimizer's own rate as base.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from torch.optim import Optimizer


class Schedule(ABC):
    """A factor on a learning rate that depends on the round.

    Examples:
        >>> from fedgen.federated import Schedule
        >>> class Halved(Schedule):
        ...     def factor(self, round):
        ...         return 1.0 if round < 50 else 0.5
        >>> [Halved().factor(round) for round in (0, 49, 50)]
        [1.0, 1.0, 0.5]
    """

    @abstractmethod
    def factor(self, round: int) -> float:
        """Return the factor of the rate in a round (from 0): finite, not negative."""


class Constant(Schedule):
    """1 in every round.

    Examples:
        >>> from fedgen.federated import Constant
        >>> Constant().factor(100)
        1.0
    """

    def factor(self, round: int) -> float:
        return 1.0


class _Decay(Schedule):
    def __init__(self, rate: float, rounds: int, staircase: bool = False) -> None:
        if not 0 < rate < math.inf:
            raise ValueError(f"rate={rate}: a decay rate is positive and finite")
        if rounds < 1:
            raise ValueError(f"rounds={rounds}: a period has at least one round")
        self.rate, self.rounds, self.staircase = rate, rounds, staircase

    def _periods(self, round: int) -> float:
        return float(round // self.rounds) if self.staircase else round / self.rounds


class ExponentialDecay(_Decay):
    """rate^(t / rounds).

    Args:
        rate: what remains after `rounds` rounds, in (0, 1].
        rounds: rounds a period.
        staircase: whether the factor changes only at the ends of periods: t / rounds is rounded down.

    Raises:
        ValueError: for a value out of range.

    Examples:
        >>> from fedgen.federated import ExponentialDecay
        >>> [ExponentialDecay(rate=0.5, rounds=10).factor(round) for round in (0, 10, 20)]
        [1.0, 0.5, 0.25]
    """

    def __init__(self, rate: float, rounds: int, staircase: bool = False) -> None:
        super().__init__(rate, rounds, staircase)
        if rate > 1:
            raise ValueError(f"rate={rate}: the rate would grow; choose a value in (0, 1]")

    def factor(self, round: int) -> float:
        return float(self.rate ** self._periods(round))


class InverseLinear(_Decay):
    """1 / (1 + rate t / rounds).

    Args:
        rate: positive; with 1 a half remains after `rounds` rounds.
        rounds: rounds a period.
        staircase: whether t / rounds is rounded down.

    Raises:
        ValueError: for a value out of range.

    Examples:
        >>> from fedgen.federated import InverseLinear
        >>> [InverseLinear(rate=1.0, rounds=10).factor(round) for round in (0, 10, 30)]
        [1.0, 0.5, 0.25]
    """

    def factor(self, round: int) -> float:
        return 1 / (1 + self.rate * self._periods(round))


class InverseSquareRoot(_Decay):
    """1 / sqrt(1 + rate t / rounds).

    Args:
        rate: positive; with 3 a half remains after `rounds` rounds.
        rounds: rounds a period.
        staircase: whether t / rounds is rounded down.

    Raises:
        ValueError: for a value out of range.

    Examples:
        >>> from fedgen.federated import InverseSquareRoot
        >>> [InverseSquareRoot(rate=1.0, rounds=10).factor(round) for round in (0, 30)]
        [1.0, 0.5]
    """

    def factor(self, round: int) -> float:
        return 1 / math.sqrt(1 + self.rate * self._periods(round))


class WarmUp(Schedule):
    """(t + 1) / rounds in the first `rounds` rounds, then another schedule, whose round 0 is the first after them.

    Args:
        rounds: how many rounds the rate rises; the last of them has all of it. 0 is no warm-up.
        then: what follows; constant by default.

    Raises:
        ValueError: for a negative number of rounds.

    Examples:
        >>> from fedgen.federated import WarmUp
        >>> [WarmUp(rounds=4).factor(round) for round in range(5)]
        [0.25, 0.5, 0.75, 1.0, 1.0]
    """

    def __init__(self, rounds: int, then: Schedule | None = None) -> None:
        if rounds < 0:
            raise ValueError(f"rounds={rounds}: a warm-up takes 0 rounds or more")
        self.rounds, self.then = rounds, then or Constant()

    def factor(self, round: int) -> float:
        return (round + 1) / self.rounds if round < self.rounds else self.then.factor(round - self.rounds)


class Cooldown(Schedule):
    """1 until a round, then down to 0 in equal steps.

    A constant rate may be trained with for as long as wanted, and the cooldown added at the end: together they gain
    what a rate that falls all the time does, whose number of rounds must be known from the start (Hägele et al. 2024,
    arXiv 2405.18392). Small steps at the end also keep clients near each other.

    Args:
        start: the round of the cooldown's first factor, which is still 1.
        rounds: of the cooldown; the last of them has 1 / rounds, and later ones 0.

    Raises:
        ValueError: for a negative start, or no round of cooldown.

    Examples:
        >>> from fedgen.federated import Cooldown
        >>> [Cooldown(start=100, rounds=4).factor(round) for round in (0, 99, 100, 101, 103, 104)]
        [1.0, 1.0, 1.0, 0.75, 0.25, 0.0]
    """

    def __init__(self, start: int, rounds: int) -> None:
        if start < 0:
            raise ValueError(f"start={start}: a cooldown starts in round 0 or later")
        if rounds < 1:
            raise ValueError(f"rounds={rounds}: a cooldown takes at least one round")
        self.start, self.rounds = start, rounds

    def factor(self, round: int) -> float:
        return min(1.0, max(0.0, 1 - (round - self.start) / self.rounds))


def factor_in(schedule: Schedule, round: int) -> float:
    factor = float(schedule.factor(round))
    if not 0 <= factor < math.inf:
        raise ValueError(
            f"{type(schedule).__name__}.factor({round}) is {factor}; a schedule multiplies a learning rate by a finite"
            " number that is not negative"
        )
    return factor


def check_rates(schedule: Schedule, optimizers: Iterable[Optimizer | None]) -> None:
    for optimizer in optimizers:
        if optimizer is not None and not all("lr" in group for group in optimizer.param_groups):
            raise ValueError(
                f"{type(optimizer).__name__} has no learning rate `lr`, which {type(schedule).__name__} could multiply;"
                " leave the schedule out or choose another optimizer"
            )


@contextmanager
def scaled_rates(optimizer: Optimizer, factor: float) -> Iterator[None]:
    """Multiply an optimizer's learning rates within the block; after it they are what they were, to the bit."""
    rates = [(group, group["lr"], group["lr"] * factor) for group in optimizer.param_groups]
    for group, _, scaled in rates:
        group["lr"] = scaled
    try:
        yield
    finally:
        for group, before, scaled in rates:
            if group["lr"] is scaled:
                group["lr"] = before
