"""A client's side of FedAvg: one turn of one round, begun from what a server sent, its outcome kept to be sent back."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch import Tensor

from fedgen.clients.turn import Turn
from fedgen.data.optional_attributes import optional
from fedgen.federated import FedAvgStrategy
from fedgen.federated.aggregators.mean import Mean
from fedgen.federated.client_state.exchange import copy_tensors, describe_difference
from fedgen.federated.client_state.outside_messages import ReceivedStateError
from fedgen.federated.federation_state import pack_state, unpack_state
from fedgen.federated.round import Round
from fedgen.federated.trainer_patches import StepSchedules, TurnClock
from fedgen.flower.client.policy import RefusedError
from fedgen.flower.wire.messages import Answer, Task
from fedgen.models.optional_hooks import FederatedModule
from fedgen.own_code import rank_zero_warn
from fedgen.ranks import Name, Ranks


class TurnStrategy(FedAvgStrategy):
    """Trains one client for one round; arguments as for `FedAvgStrategy`, of which the server's have no effect here.

    `begin` gives it a task before `fit`; afterwards `answer` says what came of it and `kept` what the client needs for
    its next turn.
    """

    def begin(self, task: Task, kept: dict[str, Any] | None) -> None:
        """The next fit takes this turn.

        Args:
            task: the server's.
            kept: what this client kept of its last turn; None before its first.
        """
        self._task, self._before = task, kept
        self._fixed_exchange, self._planned_rounds = task.fixed, task.rounds or -1
        self._outcome: OneTurn | None = None

    @property
    def answer(self) -> Answer:
        """The answer that is sent to the server."""
        return Answer(failure="the turn has not been taken") if self._outcome is None else self._outcome.answer

    @property
    def kept(self) -> dict[str, Any]:
        """The state that the client keeps of the turn."""
        return {} if self._outcome is None else self._outcome.kept

    def weight_of(self, examples: int) -> float:
        """Return the weight of a client of so many training examples in the mean."""
        return self._settings.weight_of(examples)

    def _client_shares(self, trainer: Trainer) -> list[float]:
        shares = [0.0] * self._task.clients  # of the others it knows nothing
        shares[self._task.client] = self._task.share
        return shares

    def _check_cohort(self) -> None:
        """Check nothing: a client sees itself alone, and the server checks."""

    def _drive(self, round: Round, schedules: StepSchedules) -> "OneTurn":
        round.model.aggregator = Mean()  # the recipe's is the server's: what it knows of rounds before is not here
        self._outcome = OneTurn(round, self._task, self.clock, schedules)
        self._check_embeddings()
        self._load_weights(round)
        if self._before is not None:
            before = {"compression": {"clients": {}}, **self._before}  # older releases kept none
            unpack_state(before, round.memory, self._outcome.parts, round.exchange)
        self._outcome.load_server_state()
        progress = self._module.trainer.fit_loop.epoch_progress.current
        progress.ready = progress.started = progress.processed = progress.completed = self._task.round
        return self._outcome

    def _check_embeddings(self) -> None:
        own = optional(self._module, FederatedModule, "fingerprints")
        for name, fingerprint in self._task.fingerprints.items():
            if own.get(name) != fingerprint:
                raise MisconfigurationException(
                    f"frozen network {name} is another one here; install the same release and weights"
                )

    def _load_weights(self, round: Round) -> None:
        at_server, exchange = tuple(optional(self._module, FederatedModule, "server_only")), round.exchange
        own = {name: tensor for name, tensor in self._module.state_dict().items() if not name.startswith(at_server)}
        personal = {name for name in own if exchange.first_names.get(name, name) in exchange.personal}
        wanted, sent = {name: own[name] for name in own if name not in personal}, dict(self._task.weights)
        if wanted.keys() != sent.keys() or any(wanted[name].shape != sent[name].shape for name in wanted):
            raise MisconfigurationException(
                f"the server trains another model than this client: {describe_difference(wanted, sent)}"
            )
        copy_tensors(wanted.values(), [sent[name].to(tensor.device) for name, tensor in wanted.items()])

    @property
    def metrics(self) -> dict[str, float]:
        """No values: of a round's schedules and privacy the server knows, and one client would have them wrong."""
        return {}


class Recorder(Ranks):
    """A client as one rank of a job, which hears itself alone: `told` is what it would tell the others, in order."""

    def __init__(self) -> None:
        self.size, self.rank = 2, 1
        self.told: list[Any] = []

    def gather(self, value: Any) -> list[Any]:
        self.told.append(value)
        return [value]

    def add(self, tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
        self.told.append([tensor.detach().cpu() for tensor in tensors])
        return list(tensors)

    def add_named(self, tensors: Mapping[Name, Tensor], device: torch.device) -> dict[Name, Tensor]:
        self.told.append({name: tensor.detach().cpu() for name, tensor in tensors.items()})
        return dict(tensors)


class OneTurn:
    """Drives a round of one turn, which ends at the server: `answer` is sent, and `kept` what the next turn needs."""

    def __init__(self, round: Round, task: Task, clock: TurnClock, schedules: StepSchedules) -> None:
        self._round, self._task, self._clock, self._schedules = round, task, clock, schedules
        self.answer = Answer(failure="the turn has not been taken")
        self.kept: dict[str, Any] = {}

    @property
    def parts(self) -> dict[str, Any]:
        """The parts that are kept of a turn beside the client's memory, by name."""
        round = self._round
        kept = {"local": round.local, "algorithm": round.algorithm, "outside": round.outside}
        return {**kept, "compression": round.compressed}

    def load_server_state(self) -> None:
        """Takes what the task says of the round beside weights."""
        round, task = self._round, self._task
        round.local.load_server_state(task.local)
        self._clock.set_steps(task.steps)
        round.messages.begin_with(task.counts, task.means)
        of_server = {name: value for name, value in task.algorithm.items() if name != "clients"}
        round.algorithm.load_state_dict({**round.algorithm.state_dict(), **of_server})

    def begin(self, number: int, clients: int, cohort: int, folder: Path) -> None:
        """Opens the round."""
        try:
            self._round.begin(number, clients, cohort, folder)
        except ReceivedStateError as error:
            rank_zero_warn(f"refused: {error}")
            raise RefusedError(str(error)) from error

    def take(self, turn: Turn, train: Callable[[], Any]) -> Any:
        """Takes the turn in this process."""
        self._num_examples, turn.times = turn.num_examples, self._task.times
        return self._round.take(turn, train)

    def close(self) -> None:
        """Keeps what is to be sent; the round itself ends at the server."""
        round = self._round
        if not round.memory.completed:
            self.answer = Answer(failure=round.memory.left_out[-1]["reason"])
        else:
            recorder = Recorder()
            round.merge(recorder)
            round.algorithm.end_round()
            round.compressed.end_round()
            self.answer = Answer(
                {name: tensor.detach().cpu().clone() for name, tensor in self._sent().items()},
                self._num_examples,
                round.memory.iterations[self._task.client],
                recorder.told,
                moved=round.local.moved and not self._schedules,
                steps=self._clock.turn_steps,
                counts=round.messages.counts,
                means=round.messages.means,
                compressed={
                    name: {part: tensor.detach().cpu() for part, tensor in payload.items()}
                    for name, payload in round.compressed.payloads.items()
                },
                loss=round.loss,
            )
            self.kept = pack_state(round.memory, self.parts)
        round.leave()

    def _sent(self) -> dict[str, torch.Tensor]:
        """Return what travels as it is: trained tensors not compressed, others that changed, and raised counters."""
        exchange = self._round.exchange
        if self._round.settings.fixed:
            return exchange.shared
        counters = [name for name in self._round.model.counters.changed if name not in exchange.advancing]
        whole = {name: t for name, t in exchange.shared.items() if name not in self._round.compressed.payloads}
        return whole | {name: exchange.counters[name] for name in counters}
