"""The connection of a server to its clients: each is sent its message, and answers or does not."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from flwr.app import Message
from flwr.serverapp import Grid

from fedgen.federated.left_out import LONGEST_REASON, shorten
from fedgen.flower.app.run_config import RunLabels
from fedgen.flower.secure_aggregation.secure_mean import MOST_OF_THEM, Masked, SecureMean, secure_mean
from fedgen.flower.server.client_registry import ClientRegistry
from fedgen.flower.wire.answer_forms import Ranges
from fedgen.flower.wire.flower_records import WEIGHTS, Silence, from_records, replies_to, to_records
from fedgen.flower.wire.messages import Hello, LossQuestion, Question, Task
from fedgen.own_code import rank_zero_warn
from fedgen.statistics import Privacy
from fedgen.statistics.statistic_messages import MessageError

T = TypeVar("T")
AGAIN = 1.0  # seconds before what nobody answered is asked again
LEAST = 0.5  # of the clients' weight must answer, unless the run's config says otherwise
AWAY, ALONE = Silence("it is not connected"), "a sum over fewer than two clients would show one"


class UnansweredError(MessageError):
    """A question that one client does not answer, and all must; the reason may be the client's own words."""

    def __init__(self, client: int, name: str, why: str) -> None:
        self.client, self.why = client, shorten(why, LONGEST_REASON)
        super().__init__(f"client {name!r}: {self.why}")


@dataclass(frozen=True, eq=False)
class Connection:
    """A connection to all clients of a federation, by number, with what the run's config says of them."""

    grid: Grid
    registry: ClientRegistry
    deadline: float | None = None  # seconds that clients have to answer; None waits for all that are there
    hidden: bool = False  # whether a single client's answer is hidden from the server
    patience: float = 0.0  # seconds for which a question is asked again while nothing comes from anybody
    labels: RunLabels = field(default_factory=RunLabels)  # of the clients' images
    least: float = LEAST  # the part of the clients' weight that must answer what a loss asks
    update_range: float = 0.0  # the largest change of an entry in a turn, under secure aggregation
    ranges: Ranges = field(default_factory=Ranges)  # of clients' statistics
    privacy: Privacy | None = None  # of sums with noise, for one embedding and a client's message; None without noise

    @property
    def clients(self) -> Sequence[Hello]:
        """The clients, in their numbers' order."""
        return self.registry.clients

    def retry_until_reply(self, ask: Callable[[], T], heard: Callable[[T], bool], say: Callable[[T], str]) -> T:
        """Ask until a client was heard, for `patience`: a cut line may be back; `say` warns before each repetition."""
        start = time.monotonic()
        while not heard(found := ask()) and time.monotonic() - start < self.patience:
            rank_zero_warn(say(found))
            time.sleep(AGAIN)
        return found

    def present(self, clients: Iterable[int]) -> dict[int, int]:
        """The nodes of those clients that are connected now."""
        self.registry.refresh()
        return {client: node for client, node in self.registry.nodes_of(clients).items() if node is not None}

    def send(
        self, messages: Mapping[int, Task | Question | LossQuestion], kind: str, reply: type[Any], what: str
    ) -> dict[int, Any | str]:
        """Sends each client its message, all with the same weights; what each answers, or why it does not."""
        nodes, found = self.present(messages), dict[int, Any | str](dict.fromkeys(messages, AWAY))
        sent: dict[int, Message] = {}
        for client, node in nodes.items():
            found[client] = Silence.within(self.deadline)
            weights = next(iter(sent.values())).content.array_records[WEIGHTS] if sent else None
            sent[client] = Message(to_records(messages[client], weights), node, kind)
        for client, answer in replies_to(self.grid, sent, self.deadline, what):
            try:
                found[client] = from_records(reply, answer)
            except MessageError as error:
                found[client] = str(error)
        return found

    def masked_mean(
        self,
        clients: Iterable[int],
        write: Callable[[int, dict[str, str]], Masked],
        round: int,
        whole: bool,
        alone: str = ALONE,
        missing: str = "",
    ) -> SecureMean:
        """One secure aggregation, by client, of what `write` makes for a client and the names of all, by node."""
        # none over fewer than two, which would show one (`alone`), nor over fewer than all if `whole` (`missing`)
        asked = list(clients)
        nodes = self.present(asked)
        away: dict[int, str] = dict.fromkeys([client for client in asked if client not in nodes], AWAY)
        if len(nodes) < 2 or (whole and away):
            return SecureMean(failures=away | dict.fromkeys(nodes, alone if len(nodes) < 2 else missing))
        names = {str(node): self.clients[client].name for client, node in nodes.items()}
        sent = {node: write(client, names) for client, node in nodes.items()}
        found = secure_mean(self.grid, sent, round, self.deadline, 1.0 if whole else MOST_OF_THEM)
        by_node = {node: client for client, node in nodes.items()}
        rests = {by_node[node]: rest for node, rest in found.rests.items()}
        return replace(found, rests=rests, failures={by_node[n]: why for n, why in found.failures.items()} | away)


def require(connection: Connection | None, whose: str) -> Connection:
    """Return the connection that a server gives to what it makes of a recipe; TypeError if it was made elsewhere."""
    if connection is None:
        raise TypeError(
            f"{whose} is for a deployment's server, which connects it to clients: start the app that `fedgen deploy`"
            " writes, with `flwr run`"
        )
    return connection
