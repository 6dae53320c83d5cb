"""The server's side of FedAvg: rounds, averages and checkpoints as ever, with turns that clients elsewhere take."""

from collections import Counter
from typing import Any

from flwr.app import MessageType
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from fedgen.data.optional_attributes import optional
from fedgen.federated import FedAvgStrategy
from fedgen.federated.left_out import LONGEST_REASON, shorten
from fedgen.federated.local_training import Driver
from fedgen.federated.round import Round
from fedgen.federated.trainer_patches import StepSchedules
from fedgen.flower.server.connection import Connection, require
from fedgen.flower.server.remote_rounds import RemoteRounds
from fedgen.flower.wire.messages import Answer, Task
from fedgen.flower.wire.sending import Silence
from fedgen.io.tensor_files import bytes_of
from fedgen.models.optional_hooks import FederatedModule


class FlowerStrategy(FedAvgStrategy):
    """FedAvg over clients that Flower reaches; arguments as for `FedAvgStrategy`.

    Cohorts, averages, server optimizers, schedules, checkpoints and what is left out are those of `FedAvgStrategy` with
    the same arguments, and so is the model for the same seed. Personal tensors and kept optimizer states stay with the
    clients. A client that is not there, does not answer within the deadline, or answers with what does not fit is left
    out of the round. A round in which nothing comes from anybody is asked for again.

    Settings of optimizers and schedulers are the server's own in every round: what a client's steps make of them, such
    as a learning rate that they move, ends with its turn, of which a warning tells once.
    """

    def __init__(self, _connection: Connection | None = None, **settings: Any) -> None:
        super().__init__(**settings)
        self._connection = require(_connection, type(self).__name__)
        self._transport = self._connection.transport

    def _drive(self, round: Round, schedules: StepSchedules) -> Driver:
        if self.aggregator.private and self.aggregator.noise != "secret":
            name = type(self.aggregator).__name__
            raise MisconfigurationException(
                f"{name} draws its noise from the recipe's seed, and every client has the recipe: who knows the noise"
                " takes it off, so the logged epsilon would hold for nobody. Pass noise='secret' to deploy it"
            )
        promised = self.aggregator.private or self._connection.statistics.privacy is not None
        if promised and self.aggregator.needs_losses:
            raise MisconfigurationException(
                f"{type(self.aggregator).__name__} has each client tell its loss, which has no noise, and this run"
                " promises privacy (statistics-epsilon): leave one of the two out"
            )
        return RemoteRounds(round, self.clock, schedules, self._answers, self._module.trainer, promised)

    def _answers(self, round: int) -> dict[int, Answer | str]:
        """Return the answers of a round's cohort; none where nobody is drawn."""
        cohort = list(self._drawn(round))
        return self._ask_until_heard(cohort, round) if cohort else {}

    def _drawn(self, round: int) -> Counter[int]:
        """The clients of a round, and how often each was drawn."""
        return Counter(self.sample_cohort(len(self._transport.registry.clients), round))

    def _ask_until_heard(self, cohort: list[int], round: int) -> dict[int, Answer | str]:
        """The cohort's answers; a server whose line was cut goes on, and no round passes without clients."""

        def say(answers: dict[int, Answer | str]) -> str:
            why = sorted({shorten(str(answer), LONGEST_REASON) for answer in answers.values()})
            return f"nothing came from any client of round {round} ({'; '.join(why)}); it is asked for again"

        return self._transport.retry_until_reply(
            lambda: self._ask(cohort, round),
            lambda answers: not all(isinstance(answer, Silence) for answer in answers.values()),
            say,
        )

    def _ask(self, cohort: list[int], round: int) -> dict[int, Answer | str]:
        """Return each answer of the cohort's clients, or why there is none."""
        return self._transport.send(self._tasks(cohort, round), MessageType.TRAIN, Answer, f"round {round}")

    def _tasks(self, cohort: list[int], round: int) -> dict[int, Task]:
        names, personal = self.exchange.first_names, self.exchange.personal
        round_state, at_server = self.round, tuple(optional(self._module, FederatedModule, "server_only"))
        weights = {
            name: tensor
            for name, tensor in self._module.state_dict().items()
            if names.get(name, name) not in personal and not name.startswith(at_server)
        }
        round_state.state_bytes = bytes_of(weights.values())
        fingerprints = dict(optional(self._module, FederatedModule, "fingerprints"))
        shares = self._client_shares(self._module.trainer) or []
        data: Any = self._module.trainer.datamodule
        times = self._drawn(round)
        local, algorithm = round_state.local.server_state(), round_state.algorithm.server_state()
        return {
            client: Task(
                weights=weights,
                round=round,
                client=client,
                clients=len(shares),
                share=shares[client],
                times=times[client],
                classes=data.classes,
                local=local,
                algorithm=algorithm,
                fingerprints=fingerprints,
                iterations=self._memory.iterations.get(client, 0),
                steps=self.clock.server_steps,
                rounds=max(0, self.clock.rounds),
                fixed=round_state.settings.fixed,
                counts=round_state.messages.server_counts,
                means=round_state.messages.server_means,
            )
            for client in cohort
        }
