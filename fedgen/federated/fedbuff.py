"""FedBuff, buffered asynchronous rounds on a simulated clock."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch import Tensor

from fedgen.clients.samplers.sampler import CohortSampler
from fedgen.clients.turn import Turn
from fedgen.data.optional_attributes import optional
from fedgen.federated.aggregators.mean import ClientWeights, wide
from fedgen.federated.client_state.exchange import copy_tensors
from fedgen.federated.lightning.checks import refuses
from fedgen.federated.round import Round
from fedgen.federated.server_model import ServerModel
from fedgen.federated.simulated_clock import BufferedClock, ClientSpeeds
from fedgen.federated.strategy import FedAvgStrategy, started
from fedgen.models.optional_hooks import FederatedData, data_module_of
from fedgen.seeds import numpy_generator


class FedBuffStrategy(FedAvgStrategy):
    """Trains over clients of different speeds without waiting for the slow ones, on a simulated clock.

    FedBuff (Nguyen et al. 2022, "Federated Learning with Buffered Asynchronous Aggregation", arXiv 2106.06639). At any
    time `concurrency` clients are under way, each from the server's weights of the moment it started. The server waits
    for `buffer_size` updates, weighs each by (1 + tau)^-staleness_power for the tau steps that it has taken since the
    update's start, and goes on from there: w += mean_i s(tau_i) delta_i. A round, Lightning's epoch, is one such step,
    so evaluations, checkpoints and `max_epochs` count them. Turns run one after the other on this machine; the clock
    gives their arrivals. Logged are "simulated_seconds" and "staleness", the mean tau of the round.

    All else is as under `FedAvgStrategy`, whose arguments it takes; docs/asynchronous.md says what differs. A learning
    rate of the server is that of its optimizer, e.g. `server_optimizer=lambda p: torch.optim.SGD(p, lr=0.5)`.

    Args:
        buffer_size: updates to a step of the server, K of the paper.
        concurrency: clients under way at once.
        staleness_power: of the discount; 0.5 in the paper, 0 for none.
        speeds: how long turns take; `ClientSpeeds()` by default.
        client_weights: "uniform" as in the paper, or "examples".
        sampler: None, or an `AvailabilitySampler`, whose rounds are the server's steps; a client that has started
            arrives.
        settings: the other arguments of `FedAvgStrategy`, without `cohort_size`.

    Raises:
        ValueError: for settings out of range.
        MisconfigurationException: before training, for more clients in the buffer or under way than there are, for
            several processes, and for settings that need every client of a round to start from the same weights.

    Examples:
        >>> from fedgen.federated import ClientSpeeds, FedBuffStrategy
        >>> slow_and_fast = ClientSpeeds(seconds=0.1, distribution="half-normal")
        >>> strategy = FedBuffStrategy(buffer_size=3, concurrency=6, speeds=slow_and_fast, communication_interval=20)
        >>> strategy.buffer_size, strategy.concurrency
        (3, 6)
    """

    strategy_name = "fedbuff"

    def __init__(
        self,
        buffer_size: int = 10,
        concurrency: int = 20,
        staleness_power: float = 0.5,
        speeds: ClientSpeeds | None = None,
        client_weights: ClientWeights = "uniform",
        sampler: CohortSampler | None = None,
        **settings: Any,
    ) -> None:
        for name, value in (("buffer_size", buffer_size), ("concurrency", concurrency)):
            if value < 1:
                raise ValueError(f"{name}={value}: at least one client")
        if not 0 <= staleness_power < math.inf:
            raise ValueError(f"staleness_power={staleness_power}: give 0 for no discount, or a positive number")
        super().__init__(
            cohort_size=buffer_size, client_weights=client_weights, sampler=sampler, speeds=speeds or ClientSpeeds(),
            **settings,
        )  # fmt: skip
        self.buffer_size, self.concurrency, self.staleness_power = buffer_size, concurrency, staleness_power

    def _start_fit(self, trainer: Trainer) -> None:
        self._check_asynchronous(len(optional(data_module_of(trainer), FederatedData, "clients") or ()))
        super()._start_fit(trainer)
        self._check_exchange()

    def _make_simulated(self, round: Round, clients: int) -> dict[str, Any]:
        found = super()._make_simulated(round, clients)
        seconds = started(self.speeds).of_turns(round.exchange, self.communication_interval, self.seed)
        clock = BufferedClock(seconds, clients, self.concurrency, self.buffer_size, self._draw_starting)
        versions = ServerVersions(round.model, clock, self.staleness_power)
        round.snapshots = versions
        return {**found, "simulated": clock, "versions": versions}

    def on_train_start(self) -> None:
        self._simulated["simulated"].begin_at(self._module.current_epoch)
        super().on_train_start()

    def sample_cohort(self, num_clients: int, round: int) -> list[int]:
        """Return the clients whose updates the server takes in a round, in the order of their arrival."""
        clock = self._simulated.get("simulated")
        if clock is None:  # batches may be looked at before fitting has started
            return super().sample_cohort(num_clients, round)
        return [] if round < clock.next else [turn.client for turn in clock.buffer_of(round).arrived]

    def share(self, cohort: Sequence[int], sizes: Sequence[int]) -> list[int | None]:
        return [*cohort, *[None] * (self.buffer_size - len(cohort))]

    def _draw_starting(self, free: list[int], places: int, round: int, draws: int) -> list[int]:
        """Draw at most `places` clients to start; the first draw of a round is FedAvg's where all are free."""
        present = free if self.sampler is None else self.sampler.available(free, round)
        if len(present) <= places:
            return present
        path = (round, draws) if draws else (round,)
        found = numpy_generator(self.seed, "cohort", *path).choice(np.asarray(present), places, replace=False)
        return sorted(int(client) for client in found)

    def end_simulated_round(self) -> None:
        super().end_simulated_round()
        self._simulated["versions"].end_round()

    @refuses
    def _check_asynchronous(self, clients: int) -> Iterator[str]:
        for name, value in (("buffer_size", self.buffer_size), ("concurrency", self.concurrency)):
            if value > clients:
                yield f"{name}={value}, but {clients} clients train; choose 1 to {clients}"
        aggregator, ranks = type(self.aggregator).__name__, self._shares.ranks.size
        if ranks > 1:
            yield f"FedBuffStrategy runs in one process, not {ranks}: pass Trainer(devices=1, num_nodes=1)"
        if self.aggregator.private:
            yield f"{aggregator} counts clients that are drawn uniformly, and here speed decides: use FedAvgStrategy"
        if self.aggregator.needs_losses:
            yield f"{aggregator} compares clients' losses at the same weights, and here they differ: use FedAvgStrategy"
        if self._settings.optimizer_state == "average":
            yield "optimizer_state='average' gives clients of different rounds one state: pass 'reset' or 'keep'"
        if self.sampler is not None and not self.sampler.draws_uniformly:
            sampler = type(self.sampler).__name__
            yield f"sampler={sampler} draws whole cohorts, and here clients start one by one: use AvailabilitySampler"

    @refuses
    def _check_exchange(self) -> Iterator[str]:
        """Refuse a model of which nothing travels, and messages beside it that belong to one round."""
        if self.exchange.is_empty:
            yield "every tensor is personal, so that there are no updates to weigh: train under FedAvgStrategy"
        if self.exchange.beside:
            algorithm = type(self.client_algorithm).__name__
            yield f"client_algorithm={algorithm} adds up what clients send in the same round: use FedAvgStrategy"


class ServerVersions:
    """The server's tensors of each round in which a turn has started that has not arrived yet."""

    def __init__(self, model: ServerModel, clock: BufferedClock, power: float) -> None:
        self._model, self._clock, self._power = model, clock, power
        self._kept: dict[int, dict[str, Tensor]] = {}
        self._started: dict[int, int] = {}  # of this round, the round of each client's start
        self._present: dict[str, Tensor] | None = None  # the server's, while a turn has older ones in their place
        self._staleness = 0

    def start_round(self, number: int) -> None:
        """Keep the server's tensors, before the first turn of a round, for turns that start now and arrive later."""
        self.end_turn()
        plan, server = self._clock.buffer_of(number), self._model.exchange.server
        self._started = {turn.client: turn.version for turn in plan.arrived}
        if any(turn.version == number for turn in plan.under_way):
            last = self._kept.get(max(self._kept, default=number), {})  # shares the tensors that have not changed
            same = {name for name, tensor in server.items() if name in last and torch.equal(last[name], tensor)}
            self._kept[number] = {n: last[n] if n in same else tensor.clone() for n, tensor in server.items()}

    def end_round(self) -> None:
        """After a whole round, forget versions from which no turn under way has started."""
        needed = {turn.version for turn in self._clock.under_way}
        self._kept = {version: kept for version, kept in self._kept.items() if version in needed}

    def round_of(self, turn: Turn) -> int:
        """Return the round in which a turn has started."""
        return self._started.get(turn.client, turn.round)

    def start_turn(self, turn: Turn) -> bool:
        """Make the server's tensors those that a client starts from; True if the module holds them, too."""
        self.end_turn()
        version, exchange = self.round_of(turn), self._model.exchange
        self._staleness = turn.round - version
        if not self._staleness:
            return False
        _check_same(self._kept[version], exchange.live)
        self._present, exchange.server = exchange.server, self._kept[version]
        copy_tensors(exchange.live.values(), [exchange.server[name] for name in exchange.live])
        return True

    @torch.no_grad()
    def rebase(self, update: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return a turn's tensors as an update of the server's of this round."""
        if self._present is None:
            return update
        exchange, present = self._model.exchange, self._present
        scale = (1 + self._staleness) ** -self._power
        return [
            wide(present[n]) + scale * (wide(tensor) - wide(exchange.server[n])) if n in exchange.trained else tensor
            for n, tensor in zip(exchange.shared, update, strict=True)
        ]

    def end_turn(self) -> None:
        """Put the server's present tensors back in place, if a turn has older ones there."""
        if self._present is None:
            return
        exchange = self._model.exchange
        exchange.server, self._present = self._present, None
        # the module's others are loaded before every turn
        copy_tensors(exchange.quiet.values(), [exchange.server[name] for name in exchange.quiet])

    def state_dict(self) -> dict[str, Any]:
        return {"versions": {version: dict(kept) for version, kept in self._kept.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state_dict`, with tensors where the model's are; after the clock's."""
        live = self._model.exchange.live
        kept = {int(version): dict(tensors) for version, tensors in state["versions"].items()}
        if missing := {turn.version for turn in self._clock.under_way} - kept.keys():
            raise ValueError(f"it lacks the server's tensors of round {min(missing)}, from which clients have started")
        for tensors in kept.values():
            _check_same(tensors, live)
        self._kept = {v: {n: tensors[n].to(live[n].device) for n in live} for v, tensors in kept.items()}


def _check_same(kept: Mapping[str, Tensor], live: Mapping[str, Tensor]) -> None:
    for name, tensor in live.items():
        if name not in kept or kept[name].shape != tensor.shape or kept[name].dtype != tensor.dtype:
            raise MisconfigurationException(
                f"clients are under way that have started from a model without {name} {list(tensor.shape)}: tensors"
                " cannot come or grow under FedBuffStrategy; train with FedAvgStrategy"
            )
