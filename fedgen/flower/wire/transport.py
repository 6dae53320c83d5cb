"""The transport to all clients of a federation: each is sent its message, and answers or does not."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from flwr.app import Message, MessageType
from flwr.serverapp import Grid
from torch import Tensor

from fedgen.flower.app.run_statistics import RunStatistics
from fedgen.flower.secure_aggregation.secure_mean import as_arrays
from fedgen.flower.secure_aggregation.secure_sums import Sum, secure_sums
from fedgen.flower.server.client_registry import ClientRegistry
from fedgen.flower.server.unanswered import UnansweredError
from fedgen.flower.wire.flower_records import WEIGHTS, from_records, to_records
from fedgen.flower.wire.messages import Item, LossQuestion, Question, Task, Told, pack
from fedgen.flower.wire.ranges import Largest
from fedgen.flower.wire.sending import Silence, replies_to
from fedgen.flower.wire.serialization import to_bytes
from fedgen.own_code import rank_zero_warn
from fedgen.statistics.statistic_messages import MessageError

T = TypeVar("T")
AGAIN = 1.0  # seconds before what nobody answered is asked again


class Transport:
    """Messages to clients by number.

    Args:
        grid: Flower's.
        registry: of the clients.
        deadline: seconds that they have to answer; None waits for all that are there.
        hidden: whether a single client's answer is hidden from the server.
        patience: seconds for which a question is asked again while nothing comes from anybody.
        statistics: how clients tell theirs in an evaluation; exact ones by default.
    """

    def __init__(
        self,
        grid: Grid,
        registry: ClientRegistry,
        deadline: float | None,
        hidden: bool = False,
        patience: float = 0.0,
        statistics: RunStatistics | None = None,
    ) -> None:
        self.grid, self.registry, self.deadline, self.hidden, self.patience = grid, registry, deadline, hidden, patience
        self.statistics = statistics or RunStatistics()

    def retry_until_reply(self, ask: Callable[[], T], heard: Callable[[T], bool], say: Callable[[T], str]) -> T:
        """Ask until there is an answer, for `patience` while nothing comes from anybody: a line that was cut may be
        back.

        Args:
            ask: asks all.
            heard: whether something came from somebody.
            say: what is said before they are asked again.
        """
        start = time.monotonic()
        while not heard(found := ask()) and time.monotonic() - start < self.patience:
            rank_zero_warn(say(found))
            time.sleep(AGAIN)
        return found

    def send(
        self, messages: Mapping[int, Task | Question | LossQuestion], kind: str, reply: type[Any], what: str
    ) -> dict[int, Any | str]:
        """Sends each client its message, all with the same weights; what each answers, or why it does not.

        Args:
            messages: by the client's number.
            kind: Flower's type of message.
            reply: what the answers are.
            what: text of the progress bar.
        """
        self.registry.refresh()
        found: dict[int, Any | str] = {}
        sent: dict[int, Message] = {}
        nodes = self.registry.nodes_of(messages)
        for client, message in messages.items():
            if (node := nodes[client]) is None:
                found[client] = Silence("it is not connected")
                continue
            found[client] = Silence.within(self.deadline)
            records = to_records(message, next(iter(sent.values())).content.array_records[WEIGHTS] if sent else None)
            sent[client] = Message(records, node, kind)
        for client, answer in replies_to(self.grid, sent, self.deadline, what):
            try:
                found[client] = from_records(reply, answer)
            except MessageError as error:
                found[client] = str(error)
        return found

    def names_of(self, nodes: Mapping[int, int]) -> dict[str, str]:
        """By node, as text, the names of clients that are asked for a sum together."""
        return {str(node): self.registry.clients[client].name for client, node in nodes.items()}

    def ask_all(
        self, items: Sequence[Item], tensors: Mapping[str, Tensor], classes: tuple[str, ...]
    ) -> dict[int, Told | str]:
        """Return each client's answer to an evaluation's question, or why there is none.

        Args:
            items: as for `Question`.
            tensors: likewise, its weights.
            classes: likewise.

        Raises:
            RuntimeError: where single clients' answers are hidden.
        """
        if self.hidden:
            raise RuntimeError("under secure aggregation no single client's statistics are told: ask for their sums")
        questions = {client: Question(tensors, items, client, classes) for client in range(len(self.registry.clients))}
        return self.send(questions, MessageType.EVALUATE, Told, "asking clients")

    def add_up(
        self,
        items: Sequence[Item],
        tensors: Mapping[str, Tensor],
        classes: tuple[str, ...],
        largest: Sequence[Largest],
        round: int,
    ) -> list[Sum]:
        """The sums of all clients' answers to an evaluation's question; nothing else of them is revealed.

        Args:
            items: as for `Question`; answers must add.
            tensors: likewise, its weights.
            classes: likewise.
            largest: of each item's answer the largest entries.
            round: for Flower's log.

        Raises:
            UnansweredError: if a client does not answer: the sum over the others could show it another time.
        """
        self.registry.refresh()
        clients = self.registry.clients
        nodes = self.registry.nodes_of(range(len(clients)))
        if away := [client for client, node in nodes.items() if node is None]:
            raise UnansweredError(away[0], clients[away[0]].name, "it is not connected")
        if len(nodes) < 2:
            raise MessageError("a sum over fewer than two clients would show one")
        numbers, asked = {}, {}
        for client, node in nodes.items():
            assert node is not None
            weights, rest = pack(Question(tensors, items, client, classes))
            told = {
                "names": list(weights),
                "question": rest,
                "largest": list(map(dict, largest)),
                "clients": len(nodes),
                "among": self.names_of({one: at for one, at in nodes.items() if at is not None}),
            }
            asked[node], numbers[node] = (as_arrays(weights.values()), to_bytes(told)), client
        found = secure_sums(self.grid, asked, largest, round, self.deadline)
        if found.sums is None:
            for node, why in found.failures.items():
                if node in numbers:
                    raise UnansweredError(numbers[node], clients[numbers[node]].name, why)
            raise MessageError("the clients' sums could not be unmasked")
        return found.sums
