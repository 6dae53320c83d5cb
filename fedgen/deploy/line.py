"""The line to all clients of a federation: each is sent its message, and answers or does not."""

from collections.abc import Mapping, Sequence
from typing import Any

from flwr.app import Message, MessageType
from flwr.serverapp import Grid
from torch import Tensor

from fedgen.deploy.messages import Item, LossQuestion, Question, Task, Told
from fedgen.deploy.records import WEIGHTS, from_records, to_records
from fedgen.deploy.roster import Roster
from fedgen.deploy.sending import replies_to
from fedgen.statistics.messages import MessageError


class Silence(str):
    """Why nothing came from a client."""


class Line:
    """Messages to clients by number.

    Args:
        grid: Flower's.
        roster: of the clients.
        deadline: seconds that they have to answer; None waits for all that are there.
        hidden: whether a single client's answer is hidden from the server.
        patience: seconds for which a question is asked again while nothing comes from anybody.
    """

    def __init__(
        self, grid: Grid, roster: Roster, deadline: float | None, hidden: bool = False, patience: float = 0.0
    ) -> None:
        self.grid, self.roster, self.deadline, self.hidden, self.patience = grid, roster, deadline, hidden, patience

    def say(
        self, messages: Mapping[int, Task | Question | LossQuestion], kind: str, reply: type[Any], what: str
    ) -> dict[int, Any | str]:
        """Sends each client its message, all with the same weights; what each answers, or why it does not.

        Args:
            messages: by the client's number.
            kind: Flower's type of message.
            reply: what the answers are.
            what: text of the progress bar.
        """
        self.roster.look()
        found: dict[int, Any | str] = {}
        sent: dict[int, Message] = {}
        for client, message in messages.items():
            if (node := self.roster.node_of(client)) is None:
                found[client] = Silence("it is not connected")
                continue
            late = f"it did not answer within {self.deadline:g} seconds" if self.deadline else "no answer"
            found[client] = Silence(late)
            records = to_records(message, next(iter(sent.values())).content.array_records[WEIGHTS] if sent else None)
            sent[client] = Message(records, node, kind)
        for client, answer in replies_to(self.grid, sent, self.deadline, what):
            try:
                found[client] = from_records(reply, answer)
            except MessageError as error:
                found[client] = str(error)
        return found

    def ask_all(
        self, items: Sequence[Item], tensors: Mapping[str, Tensor], classes: tuple[str, ...]
    ) -> dict[int, Told | str]:
        """What each client answers to an evaluation's question, or why it does not; arguments as for `Question`."""
        told = [tuple(item) for item in items]
        questions = {client: Question(tensors, told, client, classes) for client in range(len(self.roster.clients))}
        return self.say(questions, MessageType.EVALUATE, Told, "asking clients")
