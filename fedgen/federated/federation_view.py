"""The properties of a federation that trains, or has trained, that callbacks and users read, and its checkpoints."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from lightning.pytorch.utilities.rank_zero import rank_zero_info
from torch import Tensor

from fedgen.clients.data_module import ClientBatches
from fedgen.federated.client_state.exchange import Exchange, copy_tensors
from fedgen.federated.client_state.local_state import plain_part
from fedgen.federated.client_state.memory import ClientMemory
from fedgen.federated.federation_state import overlay
from fedgen.federated.left_out import Entry
from fedgen.federated.lightning.checkpoints import (
    RoundCheckpoints,
    check_optimizers,
    check_schedule_lengths,
    checked_weights,
    naming_checkpoint,
    settle_loops,
)
from fedgen.federated.lightning.checks import check_limits
from fedgen.federated.lightning.one_or_many import OneOrManyProcesses, RankShares
from fedgen.federated.local_training import LocalTraining
from fedgen.federated.round import Round
from fedgen.federated.schedules import factor_in
from fedgen.federated.simulated_clock import SimulatedClock
from fedgen.federated.state_table import NoRoundError, StateRow, state_rows, table_of, warn_of_state
from fedgen.federated.trainer_patches import TurnClock
from fedgen.io.files import in_bytes
from fedgen.io.tensor_files import bytes_of

Part = TypeVar("Part")


class FederationView(OneOrManyProcesses):
    """The rounds and clients of a federation, as callbacks read them, and its part in Lightning's checkpoints."""

    batch_idx: str
    _checkpoints: RoundCheckpoints | None = None
    _memory: ClientMemory
    _shares: RankShares
    _simulated: Mapping[str, Any]
    _round: Round | None = None
    _clock: TurnClock | None = None
    _loop: LocalTraining | None = None
    has_logged_state, _logs_table = False, True  # of the module's state

    @property
    def round(self) -> Round:
        """The federation's rounds; made when fitting starts."""
        return started(self._round)

    @property
    def clock(self) -> TurnClock:
        """Counts of the fit that runs, or ran last."""
        return started(self._clock)

    @property
    def client_iteration(self) -> int:
        """The iteration of the client that trains, since training began."""
        return 0 if self._loop is None else self._loop.client_iteration

    @property
    def client_lr_factor(self) -> float:
        """The factor on the learning rates of the client that trains, for modules that set their own rates."""
        return 1.0 if self._round is None else self._round.factor

    @property
    def exchange(self) -> Exchange:
        """The tensors that travel; known when fitting starts."""
        return self.round.exchange

    @property
    def simulated_clock(self) -> SimulatedClock | None:
        """The clock of a simulation in which clients differ in speed; None without `speeds`."""
        return self._simulated.get("simulated")

    def process_dataloader(self, dataloader: object) -> object:
        """Return the turns of clients' batches, for Lightning's loops: users and callbacks see one client's batches."""
        return dataloader.turns if isinstance(dataloader, ClientBatches) else dataloader

    @property
    def in_round(self) -> bool:
        """Whether the model is not the server's, or not of a whole round."""
        return self._round is not None and self._round.is_open

    @property
    def in_turns(self) -> bool:
        """Whether a round has begun and its last turn is not over."""
        return self._round is not None and self._round.turn is not None

    @property
    def left_out(self) -> list[Entry]:
        """The clients left out so far: round, client, name and reason of each; of a great many the earliest folded."""
        return self._memory.left_out

    @property
    def report(self) -> list[Entry]:
        """`left_out`, and the latest of what the aggregator remarked on clients that were part of their round."""
        return [*self._memory.left_out, *self._memory.remarks]

    @property
    def local_only(self) -> bool:
        """Whether nothing is exchanged: every client trains alone."""
        return self.exchange.is_empty

    @property
    def personal_tensors(self) -> Mapping[int, Mapping[str, Tensor]]:
        """Tensors of clients' own models, by client and name: of those that have trained in this process."""
        models = {} if self._round is None else self._round.algorithm.own_models
        return overlay(self._memory.personal, models)

    @property
    def own_tensors(self) -> Mapping[str, Tensor]:
        """The tensors in which clients' own models differ from the server's, by name."""
        exchange, algorithm = self.exchange, self.round.algorithm
        return exchange.personal | (exchange.trainable if algorithm.scores_own else {})

    @property
    def metrics(self) -> dict[str, float]:
        """The values logged of the present round: schedules' factors, those of the aggregator, simulated time."""
        round, settings = self.round, self.round.settings
        schedules = {"client_lr_factor": settings.client_schedule, "server_lr_factor": settings.server_schedule}
        factors = {
            name: factor_in(schedule, round.number) for name, schedule in schedules.items() if schedule is not None
        }
        steps = {"total_steps": float(round.clock.total_steps)}
        simulated = {} if self.simulated_clock is None else self.simulated_clock.metrics
        return factors | steps | round.model.aggregator.metrics(round.number + 1) | simulated

    def is_of_clients(self, exception: BaseException) -> bool:
        """Return whether clients of this round met an exception, which is raised as it is since all of them did."""
        return self._round is not None and any(exception is error for error in self._round.errors)

    def state_table(self) -> list[StateRow]:
        """Return what becomes of the module's state: what travels, is averaged, reset, kept or not isolated."""
        if self._round is None or not self._round.is_known:
            raise NoRoundError(
                "state_table() shows what clients' turns were found to change, and this strategy has trained no whole"
                " round yet: call it after trainer.fit(...), or in a callback's on_train_epoch_end"
            )
        return state_rows(self._round)

    def silence_state_table(self) -> None:
        """Keep the short state table out of the log, for a callback that shows all of it; within `fit`."""
        self._logs_table = False

    def log_state_table(self) -> None:
        """Log once, when the first round is over, what clients send and what becomes of the module's state; warn."""
        round = self.round
        if self.has_logged_state or not round.is_known:
            return
        self.has_logged_state, rows = True, state_rows(round)
        sent, received = in_bytes(sum(row.num_bytes for row in rows)), in_bytes(self.bytes_received)
        rank_zero_info(f"each client sends {sent} a round and receives {received}")
        if self._logs_table:
            rank_zero_info(f"what becomes of the module's state in clients' turns:\n{table_of(rows)}")
        warn_of_state(rows, round.model.rules.unmatched, round.outside.remedies)

    @property
    def bytes_sent(self) -> int:
        """The bytes of all tensors that a client sends to the server in a round, as far as turns have shown them."""
        return sum(row.num_bytes for row in state_rows(self.round))

    @property
    def bytes_received(self) -> int:
        """The bytes of all tensors that the server sends to a client in a round."""
        round, exchange = self.round, self.exchange
        model = exchange.num_bytes_down if round.state_bytes is None else exchange.beside + round.state_bytes
        return model + round.local.bytes_received + bytes_of(round.messages.server_means.values())

    @contextmanager
    def client_model(self, client: int) -> Iterator[None]:
        """Make the module what the client sees, with what it keeps in place; within `fit`, between rounds."""
        self._shares.check_is_here(client)
        round = self.round
        round.model.start_round()  # turns may have filled a buffer since the round began
        exchange = round.exchange
        round.model.switches.start_turn()
        with round.outside.seen_by(client):
            round.memory.load_personal(client, exchange)
            own, live = round.algorithm.own_models.get(client, {}), exchange.live
            copy_tensors([live[name] for name in own if name in live], [own[name] for name in own if name in live])
            try:
                yield
            finally:
                exchange.restore_forms()
                exchange.load_server()
                round.model.switches.restore()

    @property
    def checkpoints(self) -> RoundCheckpoints:
        """The federation's part in checkpoints, once fitting has started."""
        if self._checkpoints is None:
            parts = self.clock.trainer, self.round, self.clock, self._shares
            self._checkpoints = RoundCheckpoints(*parts, self.batch_idx == "round", self._simulated)
        return self._checkpoints

    def on_train_start(self) -> None:
        trainer = self.clock.trainer
        check_limits(trainer)
        if self._checkpoints is not None:  # one has been loaded
            self._checkpoints.plateaus.apply(trainer)
        super().on_train_start()

    def lightning_module_state_dict(self) -> dict[str, Any]:
        state = super().lightning_module_state_dict()
        if not (self.in_round and self.in_turns):
            return state
        first, server = self.exchange.first_names, self.exchange.server  # in place of the client's tensors
        return {name: server.get(first.get(name, name), value) for name, value in state.items()}

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        has_started = self._round is not None
        written = self.checkpoints.to_write(checkpoint, filepath) if has_started else settle_loops(checkpoint)
        if written is not None:
            if "lr_schedulers" in written:
                written["lr_schedulers"] = plain_part(written["lr_schedulers"])
            super().save_checkpoint(written, filepath, storage_options)

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        with naming_checkpoint(self._module.trainer), checked_weights(self._module, checkpoint):
            super().load_model_state_dict(checkpoint, strict)

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        with naming_checkpoint(self._module.trainer):
            check_optimizers(self.optimizers, checkpoint)
            check_schedule_lengths([config.scheduler for config in self.lr_scheduler_configs], checkpoint)
            super().load_optimizer_state_dict(checkpoint)
            self.checkpoints.load(checkpoint)


def started(part: Part | None) -> Part:
    """Return what is made when fitting starts."""
    if part is None:
        raise RuntimeError("the strategy has not started fitting yet")
    return part
