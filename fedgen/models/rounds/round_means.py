"""Means that a model logs at a round's end, over the steps of all clients' turns."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

Step = tuple[str, ...]


class RoundMeans:
    """Means over a round's steps; sums are kept on the values' device and read once.

    Steps are collected by turn. A turn that `end_turn` says was not completed leaves no trace; one in which a value is
    not finite is left out as well, all of it, and if nothing else is left, the mean is NaN.

    Args:
        names: of all that can be added, in the order in which processes sum it.
    """

    def __init__(self, *names: str) -> None:
        self.names = list(names)
        self._turn: dict[Step, tuple[Tensor, int]] = {}  # values that come together: their sums, and of how many steps
        self._round: Tensor | None = None  # [3, names]: sums, steps in them, steps at all

    def add(self, values: Mapping[str, Tensor], steps: int = 1) -> None:
        """Adds values of a step, scalars of any precision, or sums of several steps."""
        if not values or not steps:
            return
        key = tuple(values)
        new = torch.stack([value.detach().float() for value in values.values()])
        sums, before = self._turn.get(key, (None, 0))
        self._turn[key] = new if sums is None else sums.add_(new), before + steps

    def end_turn(self, completed: bool = True) -> None:
        """Counts what was added since the last turn, or forgets it if the turn was not completed."""
        turn, self._turn = self._turn, {}
        if not turn or not completed:
            return
        found = torch.zeros(3, len(self.names), dtype=torch.float32, device=next(iter(turn.values()))[0].device)
        for key, (sums, steps) in turn.items():
            places = [self.names.index(name) for name in key]
            found[0, places] += sums
            found[1:, places] += steps
        finite = found[0].isfinite().all()
        found[:2] = torch.where(finite, found[:2], 0.0)
        self._round = found if self._round is None else self._round.add_(found)

    def take(self, reduce: Callable[[Tensor], Tensor], device: torch.device) -> dict[str, float]:
        """The means by name since the last call, of those that had a step.

        Args:
            reduce: sums a tensor over processes.
            device: of the sums where this process has none.
        """
        self.end_turn()
        mine = torch.zeros(3, len(self.names), dtype=torch.float32, device=device)
        mine, self._round = mine if self._round is None else self._round, None
        sums, counted, steps = reduce(mine).tolist()
        return {
            name: sums[i] / counted[i] if counted[i] else float("nan") for i, name in enumerate(self.names) if steps[i]
        }
