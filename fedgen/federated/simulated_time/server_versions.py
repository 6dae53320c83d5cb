"""Older versions of the server's tensors, from which clients that are still under way have started."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch import Tensor

from fedgen.clients.turn import Turn
from fedgen.federated.aggregators.mean import wide
from fedgen.federated.client_state.exchange import Exchange, copy_tensors
from fedgen.federated.server_model import ServerModel
from fedgen.federated.simulated_time.buffered_clock import BufferedClock


class ServerVersions:
    """The server's tensors of each round in which a turn has started that has not arrived yet.

    A turn that started in round v and arrives in round t has staleness tau = t - v. It trains when it arrives, from the
    server's tensors of round v, and what its parameters add to those counts by s(tau) = (1 + tau)^-power on top of the
    server's present ones: w_t + s(tau) (y - w_v), with y as the turn left them (Nguyen et al. 2022; power 1/2 there).
    Without staleness y is taken as it is. Tensors that travel and do not train, such as running variances, are taken
    as they are, too: added on top they could become negative.

    Args:
        model: the server's part of the module.
        clock: knows which turns a round takes, and in which they have started.
        power: of the discount.
    """

    def __init__(self, model: ServerModel, clock: BufferedClock, power: float) -> None:
        self._model, self._clock, self._power = model, clock, power
        self._kept: dict[int, dict[str, Tensor]] = {}
        self._started: dict[int, int] = {}  # of this round, the round of each client's start
        self._present: dict[str, Tensor] | None = None  # the server's, while a turn has older ones in their place
        self._staleness = 0

    @property
    def _exchange(self) -> Exchange:
        return self._model.exchange

    # ---- rounds ----

    def start_round(self, number: int) -> None:
        """Before the first turn of a round, with the server's tensors taken."""
        self.end_turn()
        plan = self._clock.buffer_of(number)
        self._started = {turn.client: turn.version for turn in plan.arrived}
        if any(turn.version == number for turn in plan.under_way):
            last = self._kept.get(max(self._kept, default=number), {})
            self._kept[number] = {name: _kept(t, last.get(name)) for name, t in self._exchange.server.items()}

    def end_round(self) -> None:
        """After a whole round: forget versions that nobody under way has started from."""
        needed = {turn.version for turn in self._clock.under_way}
        self._kept = {version: kept for version, kept in self._kept.items() if version in needed}

    # ---- turns ----

    def round_of(self, turn: Turn) -> int:
        """Return the round in which a turn has started."""
        return self._started.get(turn.client, turn.round)

    def start_turn(self, turn: Turn) -> bool:
        """Make the server's tensors those that a client starts from; whether the module holds them, too."""
        self.end_turn()
        version, exchange = self.round_of(turn), self._exchange
        self._staleness = turn.round - version
        if not self._staleness:
            return False
        _check_same(self._kept[version], exchange.live)
        self._present, exchange.server = exchange.server, self._kept[version]
        copy_tensors(exchange.live.values(), [exchange.server[name] for name in exchange.live])
        return True

    @torch.no_grad()
    def rebase(self, update: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return what a turn's tensors mean to the server of this round."""
        if self._present is None:
            return update
        start, present, trained = self._exchange.server, self._present, self._exchange.trained
        scale = (1 + self._staleness) ** -self._power
        return [
            wide(present[name]) + scale * (wide(tensor) - wide(start[name])) if name in trained else tensor
            for name, tensor in zip(self._exchange.shared, update, strict=True)
        ]

    def end_turn(self) -> None:
        """Put the server's present tensors back in place, whatever became of the turn; any number of times."""
        if self._present is None:
            return
        exchange = self._exchange
        exchange.server, self._present = self._present, None
        # the module's others are loaded before every turn
        copy_tensors(exchange.quiet.values(), [exchange.server[name] for name in exchange.quiet])

    # ---- checkpoints ----

    def state_dict(self) -> dict[str, Any]:
        """Return the versions that turns under way have started from."""
        return {"versions": {version: dict(kept) for version, kept in self._kept.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state_dict`, with tensors where the model's are; after the clock's.

        Raises:
            ValueError: if it lacks a version that somebody under way has started from.
            MisconfigurationException: if it is of another model.
        """
        live = self._exchange.live
        kept = {int(version): dict(tensors) for version, tensors in state["versions"].items()}
        if missing := {turn.version for turn in self._clock.under_way} - kept.keys():
            raise ValueError(f"it lacks the server's tensors of round {min(missing)}, from which clients have started")
        for tensors in kept.values():
            _check_same(tensors, live)
        self._kept = {v: {n: tensors[n].to(live[n].device) for n in live} for v, tensors in kept.items()}


def _kept(tensor: Tensor, last: Tensor | None) -> Tensor:
    """Return a copy, or what the version before has where it is the same."""
    return last if last is not None and torch.equal(last, tensor) else tensor.clone()


def _check_same(kept: Mapping[str, Tensor], live: Mapping[str, Tensor]) -> None:
    """Refuse a version of other tensors than the module has.

    Raises:
        MisconfigurationException: naming the first.
    """
    for name, tensor in live.items():
        if name not in kept or kept[name].shape != tensor.shape or kept[name].dtype != tensor.dtype:
            raise MisconfigurationException(
                f"clients are under way that have started from a model without {name} {list(tensor.shape)}: tensors"
                " cannot come or grow under FedBuffStrategy; train with FedAvgStrategy"
            )
