"""Rounds of federated averaging, step by step: begin, a turn for each client, close or drop.

Who drives it decides where turns are taken: `FedAvgStrategy` from Lightning's hooks in this process, a Flower server
from clients' messages.
"""

import signal
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.utilities.exceptions import SIGTERMException
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from torch import Tensor

from fedgen.clients.turn import Turn
from fedgen.federated.aggregators.mean import Federation
from fedgen.federated.client_state.exchange import Exchange
from fedgen.federated.client_state.local_state import LocalState
from fedgen.federated.client_state.memory import ClientMemory
from fedgen.federated.client_state.outside_messages import OutsideMessages
from fedgen.federated.client_state.outside_state import OutsideState
from fedgen.federated.compressed_updates import CompressedUpdates
from fedgen.federated.left_out import REMARK, free_memory, log_remarks, loss_of_round, make_entries, make_entry
from fedgen.federated.schedules import factor_in
from fedgen.federated.server_model import RoundSettings, ServerModel
from fedgen.federated.trainer_patches import LoggedValues, TurnClock
from fedgen.models.optional_hooks import data_module_of
from fedgen.own_code import rank_zero_warn
from fedgen.ranks import Ranks, alone
from fedgen.seeds import seed_all


@contextmanager
def exits_fail() -> Iterator[None]:
    """Turn a `SystemExit` of a client's code, which would end the run, into a failure; a signal's ends it."""
    try:
        yield
    except SystemExit as error:
        # Lightning's exit after Ctrl-C or SIGTERM, or that of the user's own handler of a signal
        handlers = map(signal.getsignal, signal.valid_signals())
        codes = {getattr(one, "__code__", None) for one in handlers}  # a handler may be an object
        of_handler = any(frame.f_code in codes for frame, _ in traceback.walk_tb(error.__traceback__))
        if of_handler or isinstance(error, SIGTERMException) or isinstance(error.__context__, KeyboardInterrupt):
            raise
        raise RuntimeError(f"SystemExit: {error}").with_traceback(error.__traceback__) from error


class Round:
    """The rounds of one federation, one after the other, over a module that holds a client's weights in its turn."""

    def __init__(
        self,
        clock: TurnClock,
        model: ServerModel,
        settings: RoundSettings,
        memory: ClientMemory,
        local: LocalState,
        outside: OutsideState,
        ranks: Ranks,
        seed: int,
    ) -> None:
        trainer: Any = clock.trainer
        self._module, self._data, self._seed = trainer.lightning_module, data_module_of(trainer), seed
        self.clock, self.model, self.settings, self.memory = clock, model, settings, memory
        self.local, self.outside, self.ranks, self.device = local, outside, ranks, trainer.strategy.root_device
        self.algorithm, self.logged = settings.client_algorithm, LoggedValues(clock)
        self.messages = OutsideMessages(outside)
        self.number, self.factor = 0, 1.0
        self.snapshots: Any = None  # `ServerVersions`, where clients are under way over several rounds
        self.loss: float | None = None
        self.state_bytes: int | None = None
        self.turn: Turn | None = None
        self._is_servers = False  # whether the module holds the server's tensors, so that a turn need not load them
        self.is_open = self.is_known = False
        self.errors: list[Exception] = []

    @cached_property
    def compressed(self) -> CompressedUpdates:
        """The part of clients' updates that is sent; made when it is needed, as few federations compress."""
        return CompressedUpdates(self.settings.compression, self.model, self.memory, self._seed)

    @property
    def exchange(self) -> Exchange:
        return self.model.exchange

    def begin(self, number: int, clients: int, cohort: int, folder: Path) -> None:
        """Open a round from the module's present weights."""
        model = self.model
        model.start_round()
        if self.snapshots is not None:
            self.snapshots.start_round(number)
        self.number = number
        model.aggregator.begin_round(Federation(self._seed, number, clients, cohort, folder))
        model.aggregator.start([model.exchange.server[name] for name in model.exchange.shared])
        for part in (self.algorithm, self.memory, self.outside, self.clock):
            part.start_round()
        if model.exchange.counters:
            model.counters.start_round()
        if self.settings.compression is not None:
            self.compressed.start_round()
        self.local.start_round(self.outside.continuing)
        self.errors = []
        self.factor = factor_in(self.settings.client_schedule, number) if self.settings.client_schedule else 1.0
        self.is_open = self._is_servers = True

    def begin_turn(self, turn: Turn) -> None:
        """Make the module what the client starts from: the server's, and what is the client's own."""
        with alone() if self.ranks.size > 1 else nullcontext():
            self.loss, turn.is_left_out = None, False
            if not turn.is_remote:
                self._load_start(turn)
            self.turn = turn
            if (hook := getattr(self._module, "on_turn_start", None)) is not None:  # of `FederatedModule`
                hook(turn)

    def _load_start(self, turn: Turn) -> None:
        snapshots, exchange = self.snapshots, self.model.exchange
        if not ((snapshots is not None and snapshots.start_turn(turn)) or self._is_servers):
            exchange.load_server()
        self._is_servers = False
        if (schedule := self.settings.client_schedule) is not None:
            self.factor = factor_in(schedule, turn.round if snapshots is None else snapshots.round_of(turn))
        if exchange.personal:
            self.memory.load_personal(turn.client, exchange)
        self.local.start_turn(turn.client)
        self.model.switches.start_turn()
        self.model.switches.clear_gradients()
        self.outside.start_turn(turn.round, turn.client)
        self.clock.start_turn()
        self.logged.start_turn()
        seed_all(self._seed, "turn", turn.round, turn.client)
        self.algorithm.start_turn(turn.client, self.model.trainable, exchange.server)

    def take(self, turn: Turn, train: Callable[[], Any]) -> Any:
        output, received, interval = None, None, self.settings.interval
        try:
            with alone() if self.ranks.size > 1 else nullcontext(), self.attempt(turn):
                if self.algorithm.trains_own:
                    self._train_own(turn, train)
                output = train()
                self.local.settle()
                self.model.aggregator.take_loss(turn.client, self.loss)
                self.model.exchange.settle(interval)
                if self.call_turn_end_hook(completed=True):  # the hook may have changed what is sent
                    self.model.exchange.settle(interval)
                received = self.compressed.compress(turn.client, turn.round) if self.settings.compression else {}
            if received is None:
                return None
            self._complete(turn, received)
        finally:
            turn.current = None
        return output

    @contextmanager
    def attempt(self, turn: Turn) -> Iterator[None]:
        """Leave the client out of the round if the block, its turn here or its remote answer, fails."""
        try:
            with exits_fail():
                yield
        except Exception as error:
            turn.is_left_out = True
            if self.snapshots is not None:
                self.snapshots.end_turn()
            self.exchange.restore_forms()
            self.exchange.load_server()
            self.model.switches.restore()
            self.model.switches.clear_gradients()
            free_memory(error)
            self.errors.append(error)
            self.algorithm.leave_out(turn.client)
            self.memory.leave_out(make_entry(turn, error))
            self.call_turn_end_hook(completed=False)
            if not turn.is_remote:
                self._close_turn(turn, 0.0, completed=False)

    def _train_own(self, turn: Turn, train: Callable[[], Any]) -> None:
        """Have the client's own model trained, as in a turn that is left out, and begin the turn anew."""
        self.local.forget_states()
        self.algorithm.start_own(turn.client, self.exchange.live)
        train()
        self.local.settle()
        self.exchange.settle(self.settings.interval)
        if self.call_turn_end_hook(completed=False):
            self.exchange.settle(self.settings.interval)
        self.algorithm.end_own(turn.client, self.exchange.of_turn)
        self._close_turn(turn, 0.0, completed=False)
        self.begin_turn(turn)

    def call_turn_end_hook(self, completed: bool) -> bool:
        """Call the module's `on_turn_end`, if it has one; return whether it has."""
        if (hook := getattr(self._module, "on_turn_end", None)) is not None:  # of `FederatedModule`
            hook(completed)
        return hook is not None

    def _complete(self, turn: Turn, received: Mapping[str, Tensor]) -> None:
        """Take in the module as a client's turn left it, with what the server received of compressed parameters."""
        interval, weight, exchange = self.settings.interval, self.weight_of(turn), self.model.exchange
        self.memory.complete(turn.client, self.memory.iterations.get(turn.client, 0) + interval)
        self.algorithm.end_turn(turn.client, self.model.trainable, interval)
        if exchange.is_empty:
            self._call_round_end_hook(turn.client)
        if exchange.changed:
            self.model.grow()
        update: Sequence[Tensor] = [received.get(name, tensor) for name, tensor in exchange.shared.items()]
        if self.snapshots is not None:
            update = self.snapshots.rebase(update)
        self.add(turn.client, update, exchange.counters, weight)
        self._close_turn(turn, weight, completed=True)
        if exchange.personal:
            self.memory.keep_personal(turn.client, exchange)
        self.local.end_turn(turn.client, weight)

    def weight_of(self, turn: Turn) -> float:
        return self.settings.weight_of(turn.num_examples) * turn.times

    def add(self, client: int, update: Sequence[Tensor], counters: Mapping[str, Tensor], weight: float) -> None:
        """Give a client's tensors to the aggregator, and its counters to those of the round."""
        with torch.no_grad():
            self.model.aggregator.add(client, update, weight)
        if counters:
            self.model.counters.add(counters, self.exchange.server)

    def _close_turn(self, turn: Turn, weight: float, completed: bool) -> None:
        """Put back what the turn changed beside saved tensors, and count it."""
        if self.snapshots is not None:
            self.snapshots.end_turn()
        self.logged.end_turn(weight, completed)
        self.outside.end_turn(turn.client, weight, completed)
        self.clock.end_turn(completed)
        self.model.switches.restore()

    def close(self, heard: Ranks | None = None, move_schedules: Callable[[], None] | None = None) -> None:
        """Make the server's new model of what clients sent, wherever they were, and load it into the module."""
        several = self.ranks.size > 1
        parts = self._parts() if several else {"memory": self.memory}
        own = {name: part.local_summary() for name, part in parts.items()}, self.model.exchange.found
        gathered = self.ranks.gather(own) if several else [own]
        summaries = {name: [of_rank[name] for of_rank, _ in gathered] for name in parts}
        if not self.memory.merge_summaries(summaries.pop("memory")):
            if not self.memory.lost:
                rank_zero_info(f"round {self.number} passes without training: no client is available")
                self._end_unchanged()
                return
            self.drop()
            raise loss_of_round(self.number, self.memory.lost, next(iter(self.errors), None))
        for name, of_ranks in summaries.items():
            parts[name].merge_summaries(of_ranks)
        if several:
            self.model.grow(sorted({name for _, found in gathered for name in found}))
        self.model.aggregator.merge(self.ranks, self.device)
        self.merge(self.ranks if heard is None else heard)
        if why := self.model.aggregator.shortfall():
            self._pass_over(why)
            return
        combined = self.model.aggregator.result()
        if found := self.model.aggregator.remarks():
            remarks = make_entries(self.number, found, self._data, REMARK)
            log_remarks(remarks)
            self.memory.remark(remarks)
        self.model.apply(combined, self.number)
        self.outside.end_round()
        self.local.end_round()
        if move_schedules is not None:
            move_schedules()
        self.clock.end_round()
        self.model.switches.clear_gradients()
        self.algorithm.end_round()
        if self.settings.compression:
            self.compressed.end_round()
        self.is_known = True
        self.leave()
        if not self.exchange.is_empty:
            self._call_round_end_hook()

    def _parts(self) -> dict[str, Any]:
        """Return the parts that summarise the round on each rank (`local_summary`) and merge all ranks' summaries."""
        return {
            "memory": self.memory,
            "counters": self.model.counters,
            "outside": self.outside,
            "clock": self.clock,
            "local": self.local,
            "logged": self.logged,
        }

    def leave(self) -> None:
        """Take the round as over: here, or for a client whose server closes it."""
        self.turn, self.is_open = None, False

    def merge(self, ranks: Ranks) -> None:
        """Merge what clients' optimizers and algorithms have summed up in the round."""
        self.local.merge(ranks, self.device)
        self.algorithm.merge(ranks, self.device)
        if ranks is not self.ranks:
            self.local.merge_continuing(ranks)

    def _pass_over(self, why: str) -> None:
        """End a round that is whole and of which nothing can be made: the server's model and state stay."""
        rank_zero_warn(f"round {self.number} is dropped and the server's model stays as it was: {why}")
        reasons = dict.fromkeys(self.memory.took_part, f"the round was dropped: {why}")
        self.memory.left_out += make_entries(self.number, reasons, self._data)
        self._end_unchanged()

    def _end_unchanged(self) -> None:
        """End a round that is whole, with the server's model and state of before."""
        self.drop()
        self.model.switches.clear_gradients()
        self.is_open = False

    def _call_round_end_hook(self, *client: int) -> None:
        if (hook := getattr(self._module, "on_round_end", None)) is not None:  # of `FederatedModule`
            seed_all(self._seed, "server", self.number, *client)
            hook(self.settings.interval)

    def drop(self) -> None:
        """Restore the server's model and optimizer state of before the round."""
        if self.snapshots is not None:
            self.snapshots.end_turn()
        self.exchange.restore_forms()
        self.exchange.load_server()
        self.local.end_round(dropped=True)
        self.clock.end_round(dropped=True)
        self.outside.drop_round()
        self.model.switches.restore()
        self.turn = None

    @property
    def keeps_clients(self) -> bool:
        """Whether something is remembered of each client, which then trains in one process for good."""
        by_parts = self.model.rules.keep_clients or self.algorithm.keeps_clients or self.compressed.keeps_clients
        return (
            bool(self.exchange.personal or self.exchange.becomes_personal)
            or by_parts
            or self.settings.optimizer_state == "keep"
        )
