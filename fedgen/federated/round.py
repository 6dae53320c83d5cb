"""Rounds of federated averaging, step by step and without a trainer: begin, a turn for each client, close or drop.

Who drives it decides where turns are taken: `FedAvgStrategy` from Lightning's hooks in this process, a Flower server
from clients' messages.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from torch import Tensor, nn

from fedgen.clients.turn import Turn
from fedgen.federated.aggregators.mean import Federation
from fedgen.federated.client_state.exchange import Exchange
from fedgen.federated.client_state.local_state import LocalState
from fedgen.federated.client_state.memory import ClientMemory
from fedgen.federated.client_state.outside_state import OutsideState
from fedgen.federated.compressed_updates import CompressedUpdates
from fedgen.federated.left_out import (
    REMARK,
    exits_fail,
    free_memory,
    loss_of_round,
    make_entries,
    make_entry,
    tell_remarks,
    warn_of_dropped_round,
)
from fedgen.federated.schedules import factor_in
from fedgen.federated.server_model import RoundSettings, ServerModel
from fedgen.models.optional_hooks import of_module
from fedgen.ranks import Ranks, alone
from fedgen.seeds import seed_all


class StartPoints:
    """The server's present tensors, from which every turn of a synchronous round starts."""

    def start_round(self, number: int) -> None:
        """Before the first turn of a round, with the server's tensors taken."""

    def start_turn(self, turn: Turn) -> bool:
        """Make the server's tensors those that a client starts from; whether the module holds them, too."""
        return False

    def round_of(self, turn: Turn) -> int:
        """Return the round in which a turn has started."""
        return turn.round

    def rebase(self, update: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return what a turn's tensors mean to the server of this round."""
        return update

    def end_turn(self) -> None:
        """Put the server's present tensors back in place, whatever became of the turn; any number of times."""


Result = TypeVar("Result")


class StepCount(Protocol):
    """A count of optimizer steps, whose words within a turn are one client's."""

    total_steps: int  # of all clients, since training began

    def start_round(self) -> None: ...
    def start_turn(self) -> None: ...
    def end_turn(self, completed: bool) -> None: ...
    def news(self) -> Any: ...
    def hear(self, told: Sequence[Any]) -> None: ...
    def end_round(self, dropped: bool = False) -> None: ...


class LoggedSums(Protocol):
    """Values that turns log, weighed as clients are."""

    def start_turn(self) -> None: ...
    def end_turn(self, weight: float, completed: bool) -> None: ...
    def news(self) -> Mapping[str, Any]: ...
    def hear(self, told: Sequence[Any], device: torch.device) -> None: ...


def _nothing() -> None:
    """Do nothing."""


class Round:
    """The rounds of one federation, one after the other, over a module that holds a client's weights in its turn.

    Args:
        logged: values that turns log.
        ranks: the processes, each of which takes some of the turns.
        data: the data module, whose `clients` have names, if it has any.

    Attributes:
        number: of the round that is open or was last.
        turn: the present client's, or its that was last; None before the first and once the round is over.
        is_open: whether the model is not the server's, or not of a whole round.
        compressed: what of clients' updates is sent.
        errors: of clients that were left out of the round.
        factor: on the clients' learning rates.
        starts: the server's tensors that turns start from.
        loss: of the present turn at the weights it began with, where the aggregator needs it and the module gives one.
        is_known: whether a whole round is over, in which it was found what becomes of the module's state.
        state_bytes: that the server's messages have for the model, with constants; None where there are no messages.
    """

    def __init__(
        self,
        module: nn.Module,
        model: ServerModel,
        settings: RoundSettings,
        memory: ClientMemory,
        local: LocalState,
        outside: OutsideState,
        clock: StepCount,
        logged: LoggedSums,
        ranks: Ranks,
        device: torch.device,
        seed: int,
        data: Any,
    ) -> None:
        self._hooks, self.model, self.settings, self.memory = of_module(module), model, settings, memory
        self.local, self.outside, self.clock, self.logged = local, outside, clock, logged
        self.ranks, self.device, self._seed, self._data = ranks, device, seed, data
        self.algorithm = settings.client_algorithm
        self.compressed = CompressedUpdates(settings.compression, model, memory, seed)
        self.number, self.factor = 0, 1.0
        self.starts = StartPoints()
        self.loss: float | None = None
        self.state_bytes: int | None = None
        self.turn: Turn | None = None
        self._is_servers = False  # whether the module holds the server's tensors, so that a turn need not load them
        self.is_open = self.is_known = False
        self.errors: list[Exception] = []

    @property
    def exchange(self) -> Exchange:
        """The tensors that travel."""
        return self.model.exchange

    # ---- a round's beginning ----

    def begin(self, number: int, clients: int, cohort: int, folder: Path) -> None:
        """Open a round from the module's present weights."""
        self.model.start_round()
        self.starts.start_round(number)
        self.number = number
        self.model.aggregator.announce(Federation(self._seed, number, clients, cohort, folder))
        self.model.aggregator.start([self.exchange.server[name] for name in self.exchange.shared])
        per_round = (self.algorithm, self.memory, self.model.counters, self.outside, self.clock, self.compressed)
        for part in per_round:
            part.start_round()
        self.local.start_round(self.outside.continuing)
        self.errors = []
        self.factor = factor_in(self.settings.client_schedule, number)
        self.is_open = self._is_servers = True

    # ---- turns ----

    @alone()
    def begin_turn(self, turn: Turn) -> None:
        """Make the module what the client starts from: the server's, and what is the client's own."""
        self.loss, turn.is_left_out = None, False
        if not turn.is_elsewhere:
            if not (self.starts.start_turn(turn) or self._is_servers):
                self.exchange.load_server()
            self._is_servers = False
            self.factor = factor_in(self.settings.client_schedule, self.starts.round_of(turn))
            self.memory.load_personal(turn.client, self.exchange)
            self.local.start_turn(turn.client)
            self.model.switches.start_turn()
            self.model.switches.clear_gradients()
            self.outside.start_turn(turn.round, turn.client)
            self.clock.start_turn()
            self.logged.start_turn()
            seed_all(self._seed, "turn", turn.round, turn.client)
            self.algorithm.start_turn(turn.client, self.model.trainable, self.exchange.server)
        self.turn = turn
        if self._hooks.on_turn_start is not None:
            self._hooks.on_turn_start(turn)

    @alone()
    def take(self, turn: Turn, train: Callable[[], Any]) -> Any:
        """Take a turn in this process."""
        interval = self.settings.interval

        def work() -> tuple[Any, Mapping[str, Tensor]]:
            if self.algorithm.trains_own:
                self._train_own(turn, train)
            output = train()
            self.local.settle()
            self.model.aggregator.tell_loss(turn.client, self.loss)
            self.exchange.settle(interval)
            if self.tell_turn_end(completed=True):  # the hook may have changed what is sent
                self.exchange.settle(interval)
            return output, self.compressed.compress(turn.client, turn.round) if self.settings.compression else {}

        try:
            output, received = self.attempt(turn, work) or (None, None)
            if received is not None:
                self._complete(turn, received)
        finally:
            turn.current = None
        return output

    def attempt(self, turn: Turn, work: Callable[[], Result]) -> Result | None:
        """Do a client's part of the round, here or with what it sent; a client whose part raises is left out.

        The one place that decides what becomes of a client that fails, wherever it trains: the module is the server's
        again before anything else runs, the client has no part in the round, and the error is kept for its report.
        """
        try:
            with exits_fail():
                return work()
        except Exception as error:
            turn.is_left_out = True
            self.starts.end_turn()
            self.exchange.restore_forms()
            self.exchange.load_server()
            self.model.switches.restore()
            self.model.switches.clear_gradients()
            free_memory(error)
            self.errors.append(error)
            self.algorithm.leave_out(turn.client)
            self.memory.leave_out(make_entry(turn, error))
            self.tell_turn_end(completed=False)
            if not turn.is_elsewhere:
                self._close_turn(turn, completed=False)
        return None

    def _train_own(self, turn: Turn, train: Callable[[], Any]) -> None:
        """Have the client's own model trained, as in a turn that is left out, and begin the turn anew."""
        self.local.forget_states()
        self.algorithm.start_own(turn.client, self.exchange.live)
        train()
        self.local.settle()
        self.exchange.settle(self.settings.interval)
        if self.tell_turn_end(completed=False):
            self.exchange.settle(self.settings.interval)
        self.algorithm.end_own(turn.client, self.exchange.of_turn)
        self._close_turn(turn, completed=False)
        self.begin_turn(turn)

    def tell_turn_end(self, completed: bool) -> bool:
        """Tell the module that a turn is over, if it wants to know; whether it does."""
        if self._hooks.on_turn_end is None:
            return False
        self._hooks.on_turn_end(completed)
        return True

    def _complete(self, turn: Turn, received: Mapping[str, Tensor]) -> None:
        """Take in the module as a client's turn left it, with what the server received of compressed parameters."""
        interval, weight = self.settings.interval, self.weight_of(turn)
        self.memory.complete(turn.client, self.memory.iterations.get(turn.client, 0) + interval)
        self.algorithm.end_turn(turn.client, self.model.trainable, interval)
        if self.exchange.is_empty:
            self._tell_round_end(turn.client)
        self.model.grow()
        update = [received.get(name, tensor) for name, tensor in self.exchange.shared.items()]
        self.add(turn.client, self.starts.rebase(update), self.exchange.counters, weight)
        self._close_turn(turn, completed=True)
        self.memory.keep_personal(turn.client, self.exchange)
        self.local.end_turn(turn.client, weight)

    def weight_of(self, turn: Turn) -> float:
        """Return what the client of a turn weighs in the round."""
        return self.settings.weight_of(turn.num_examples) * turn.times

    def add(self, client: int, update: Sequence[Tensor], counters: Mapping[str, Tensor], weight: float) -> None:
        """Give a client's tensors to the aggregator, and its counters to those of the round."""
        with torch.no_grad():
            self.model.aggregator.add(client, update, weight)
        if counters:
            self.model.counters.add(counters, self.exchange.server)

    def _close_turn(self, turn: Turn, completed: bool) -> None:
        """Put back what the turn changed beside saved tensors, and count it."""
        self.starts.end_turn()
        weight = self.weight_of(turn)
        self.logged.end_turn(weight, completed)
        self.outside.end_turn(turn.client, weight, completed)
        self.clock.end_turn(completed)
        self.model.switches.restore()

    # ---- a round's end ----

    def close(self, heard: Ranks | None = None, move_schedules: Callable[[], None] = _nothing) -> None:
        """Make the server's new model of what clients sent, wherever they were, and load it into the module.

        Raises:
            RuntimeError: when the round lost every client; or an error of the user's own code that all of them met.
        """
        several = self.ranks.size > 1
        told = self.ranks.gather(news_of(self)) if several else [{"memory": self.memory.news()}]
        if not self.memory.hear([one["memory"] for one in told]):
            if not self.memory.lost:
                rank_zero_info(f"round {self.number} passes without training: no client is available")
                self._end_unchanged()
                return
            self.drop()
            raise loss_of_round(self.number, self.memory.lost, next(iter(self.errors), None))
        if several:
            hear(self, told)
        self.model.aggregator.merge(self.ranks, self.device)
        self.merge(self.ranks if heard is None else heard)
        if why := self.model.aggregator.shortfall():
            self._pass_over(why)
            return
        combined = self.model.aggregator.result()
        if found := self.model.aggregator.remarks():
            remarks = make_entries(self.number, found, self._data, REMARK)
            tell_remarks(remarks)
            self.memory.remark(remarks)
        self.model.apply(combined, self.number)
        self.outside.end_round()
        self.local.end_round()
        move_schedules()
        self.clock.end_round()
        self.model.switches.clear_gradients()
        self.algorithm.end_round()
        if self.settings.compression:
            self.compressed.end_round()
        self.is_known = True
        self.leave()
        if not self.exchange.is_empty:
            self._tell_round_end()

    def leave(self) -> None:
        """Take the round as over: here, or for a client whose server closes it."""
        self.turn, self.is_open = None, False

    def merge(self, ranks: Ranks) -> None:
        """Bring together what clients' optimizers and algorithms tell of the round."""
        self.local.merge(ranks, self.device)
        self.algorithm.merge(ranks, self.device)
        if ranks is not self.ranks:
            self.local.merge_continuing(ranks)

    def _pass_over(self, why: str) -> None:
        """End a round that is whole and of which nothing can be made: the server's model and state stay."""
        warn_of_dropped_round(self.number, why)
        reasons = dict.fromkeys(self.memory.took_part, f"the round was dropped: {why}")
        self.memory.left_out += make_entries(self.number, reasons, self._data)
        self._end_unchanged()

    def _end_unchanged(self) -> None:
        """End a round that is whole, with the server's model and state of before."""
        self.drop()
        self.model.switches.clear_gradients()
        self.is_open = False

    def _tell_round_end(self, *client: int) -> None:
        if self._hooks.on_round_end is not None:
            seed_all(self._seed, "server", self.number, *client)
            self._hooks.on_round_end(self.settings.interval)

    def drop(self) -> None:
        """Restore the server's model and optimizer state of before the round."""
        self.starts.end_turn()
        self.exchange.restore_forms()
        self.exchange.load_server()
        self.local.end_round(dropped=True)
        self.clock.end_round(dropped=True)
        self.outside.drop_round()
        self.model.switches.restore()
        self.turn = None

    # ---- what can be seen of it ----

    @property
    def keeps_clients(self) -> bool:
        """Whether something is remembered of each client, which then trains in one process for good."""
        by_parts = self.model.rules.keep_clients or self.algorithm.keeps_clients or self.compressed.keeps_clients
        return bool(self.exchange.personal) or by_parts or self.settings.optimizer_state == "keep"


def news_of(round: Round) -> dict[str, Any]:
    """Return what other ranks do not know of a round."""
    return {
        "memory": round.memory.news(),
        "local": round.local.news(),
        "found": round.exchange.found,
        "counters": round.model.counters.news(),
        "outside": round.outside.news(),
        "clock": round.clock.news(),
        "logged": round.logged.news(),
    }


def hear(round: Round, told: Sequence[Mapping[str, Any]]) -> None:
    """Take every rank's `news_of` into a round, but what is told of the memory, which decides whether it is one."""
    for part, name in ((round.model.counters, "counters"), (round.outside, "outside"), (round.clock, "clock")):
        part.hear([one[name] for one in told])
    round.local.hear([one["local"] for one in told])
    round.model.grow(sorted({name for one in told for name in one["found"]}))
    round.logged.hear([one["logged"] for one in told], round.device)
