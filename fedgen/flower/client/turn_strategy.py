"""A client's side of FedAvg: one turn of one round, begun from what a server sent, its outcome kept to be sent back."""

from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from fedgen.federated import FedAvgStrategy
from fedgen.federated.aggregators.mean import Mean
from fedgen.federated.client_state.exchange import copy_tensors, describe_difference
from fedgen.federated.federation_state import pack_state, unpack_state
from fedgen.flower.client.replies import Recorder
from fedgen.flower.wire.messages import Answer, Task


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
        self.answer = Answer(failure="the turn has not been taken")
        self.kept: dict[str, Any] = {}

    def _shares(self, trainer: Trainer) -> list[float]:
        shares = [0.0] * self._task.clients  # of the others it knows nothing
        shares[self._task.client] = self._task.share
        return shares

    def _check_cohort(self) -> None:
        """Nothing: a client sees itself alone, and the server checks."""

    def _start_fit(self, trainer: Trainer) -> None:
        super()._start_fit(trainer)
        self.aggregator = Mean()  # the recipe's is the server's: what it knows of rounds before is not here
        self._check_embeddings()
        self._load_weights()
        if self._before is not None:
            unpack_state(self._before, self._memory, self._stateful, self.exchange)
        self._local.load_server_state(self._task.local)
        self.clock.set_steps(self._task.steps)
        self.outside.begin_with(self._task.counts, self._task.means)
        own = self.client_algorithm.state_dict()
        self.client_algorithm.load_state_dict({**own, **_without_clients(self._task.algorithm)})
        self._ranks = Recorder()
        progress = trainer.fit_loop.epoch_progress.current
        progress.ready = progress.started = progress.processed = progress.completed = self._task.round

    def _check_embeddings(self) -> None:
        own = dict(getattr(self._module, "fingerprints", {}))
        for name, fingerprint in self._task.fingerprints.items():
            if own.get(name) != fingerprint:
                raise MisconfigurationException(
                    f"embedding {name} is another one here; install the same release and weights"
                )

    def _load_weights(self) -> None:
        at_server = tuple(getattr(self._module, "server_only", ()))
        own = {name: tensor for name, tensor in self._module.state_dict().items() if not name.startswith(at_server)}
        personal = {name for name in own if self.exchange.first_names.get(name, name) in self.exchange.personal}
        wanted, sent = {name: own[name] for name in own if name not in personal}, dict(self._task.weights)
        if wanted.keys() != sent.keys() or any(wanted[name].shape != sent[name].shape for name in wanted):
            raise MisconfigurationException(
                f"the server trains another model than this client: {describe_difference(wanted, sent)}"
            )
        copy_tensors(wanted.values(), [tensor.to(wanted[name].device) for name, tensor in sorted_as(wanted, sent)])

    @property
    def metrics(self) -> dict[str, float]:
        """Nothing: of a round's schedules and privacy the server knows, and one client would have them wrong."""
        return {}

    @property
    def _stateful(self) -> dict[str, Any]:
        return {"local": self._local, "algorithm": self.client_algorithm, "outside": self.outside}

    def _end_round(self) -> None:
        """Keeps what is to be sent; the round itself ends at the server."""
        client = self._task.client
        if not self._memory.completed:
            self.answer = Answer(failure=self._memory.left_out[-1]["reason"])
        else:
            assert isinstance(self._ranks, Recorder)
            self._local.merge(self._ranks, torch.device("cpu"))
            self.client_algorithm.merge(self._ranks, torch.device("cpu"))
            self.client_algorithm.end_round()
            assert self._turn is not None
            self.answer = Answer(
                {name: tensor.detach().cpu().clone() for name, tensor in self._sent().items()},
                self._turn.num_examples,
                self._memory.iterations[client],
                self._ranks.told,
                moved=self._local.moved and not self._schedules,
                steps=self.clock.turn_steps,
                counts=self.outside.counts,
                means=self.outside.means,
            )
            self.kept = pack_state(self._memory, self._stateful)
        self._turn, self.in_round = None, False

    def _sent(self) -> dict[str, torch.Tensor]:
        """What travels: trained tensors, others that the turn changed, and counters that it raised."""
        exchange = self.exchange
        if self._fixed_exchange:
            return exchange.shared
        counters = [name for name in self._counters.changed if name not in exchange.advancing]
        return exchange.shared | {name: exchange.counters[name] for name in counters}


def sorted_as(wanted: dict[str, Any], found: dict[str, Any]) -> list[tuple[str, Any]]:
    """The items of one mapping in the order of another's keys."""
    return [(name, found[name]) for name in wanted]


def _without_clients(state: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in state.items() if name != "clients"}
