"""Clients elsewhere in the place of simulated ones: a loss's questions go to them as Flower's messages."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from flwr.app import MessageType
from lightning.pytorch.utilities.rank_zero import rank_zero_info

from fedgen.embeddings import Embedding, embed
from fedgen.federated.left_out import LONGEST_REASON, shorten
from fedgen.federated.server_model import MASKED_NUMBER
from fedgen.flower.app.run_config import EPSILON
from fedgen.flower.client.answering import sent_in
from fedgen.flower.secure_aggregation.secure_mean import Masked
from fedgen.flower.secure_aggregation.secure_sums import FIRST, MARGIN, STEP, WASTE, decode, hidden_names
from fedgen.flower.server.connection import AWAY, Connection
from fedgen.flower.wire.answer_forms import check_form, form_of
from fedgen.flower.wire.flower_records import Silence
from fedgen.flower.wire.messages import ABOUT_LOSS, LossQuestion, MaskedLoss, Scale, Told, pack
from fedgen.flower.wire.serialization import to_bytes
from fedgen.losses import DistributedLoss, EmbeddedLoss, OneMessageLoss
from fedgen.losses.distributed import Traffic, message_weights
from fedgen.own_code import rank_zero_warn
from fedgen.statistics.statistic_messages import Message, MessageError, add

LOSS = f"{MessageType.QUERY}.{ABOUT_LOSS}"  # Flower's type of these messages
TRIES = 6  # ranges that a masked sum is asked for with


class TooFewAnswersError(RuntimeError):
    """Too few clients answered for their sum to be the objective."""


class LostClientError(RuntimeError):
    """A client that answered a loss's first question does not answer a later one."""


class AskedClients:
    """Clients that Flower reaches, as a loss asks them (`losses.distributed.Clients`); those that fail are left out."""

    # weights multiply answers about features [D]; with `once` several questions are one message, of the same clients;
    # `traffic` counts bytes without Flower's envelopes, behind masks eight a number without the keys

    def __init__(
        self,
        connection: Connection,
        question: LossQuestion,
        weights: Sequence[float],
        dim: int,
        once: bool,
        note: Callable[[int, str], None],
    ) -> None:
        self._connection, self._question, self._dim, self._once = connection, question, dim, once
        self._least, self._note = connection.least, note
        self._weights = dict(enumerate(weights))
        self._asked = {client for client, weight in self._weights.items() if weight > 0}
        self._silent: dict[int, str] = {}
        self._answered: list[float] = []
        self._began = False
        self.traffic = Traffic()

    def ask(self, question: Message) -> Message:
        """The sum of the clients' answers; TooFewAnswersError, or LostClientError where questions are one message."""
        total, silent = self._connection.retry_until_reply(
            lambda: self._sum(question),
            lambda found: found[0] is not None or not all(isinstance(why, Silence) for why in found[1].values()),
            lambda found: f"nothing came from any client ({self._reasons(found[1])}); all are asked again",
        )
        self.traffic.questions += 1
        for client, reason in silent.items():
            self._note(client, reason)
        there = sum(weight for client, weight in self._weights.items() if client in self._asked - silent.keys())
        part = there / sum(self._weights.values())
        if total is None or part < self._least:
            few = f"clients with {part:.0%} of the weight answered and {self._least:.0%} are needed (least-answers)"
            raise TooFewAnswersError(
                f"{few if total is not None else 'the answers of the clients have no sum'}: {self._reasons(silent)}."
                " Started again, the run resumes from its last checkpoint"
            )
        self._tell(silent)
        self._answered.append(part)
        if self._once and silent:
            self._asked -= silent.keys()
            if self._began:
                raise LostClientError(f"without {', '.join(map(self._name, sorted(silent)))} all is asked anew")
        self._began = True
        return total

    def start_again(self) -> None:
        """The next question is the first of a message."""
        self._began = False

    def take_answered(self) -> float | None:
        """The mean part of the weight that answered since the last call; None without a question."""
        found, self._answered = self._answered, []
        return sum(found) / len(found) if found else None

    def _name(self, client: int) -> str:
        return repr(self._connection.clients[client].name)

    def _reasons(self, silent: Mapping[int, str]) -> str:
        """Each reason with whom it keeps from answering, those before too where questions are one message."""
        named: dict[str, list[str]] = {}
        for client, reason in sorted((self._silent | dict(silent) if self._once else silent).items()):
            named.setdefault(reason, []).append(self._name(client))
        return "; ".join(f"{', '.join(names)}: {reason}" for reason, names in named.items())

    def _tell(self, silent: Mapping[int, str]) -> None:
        for client, reason in silent.items():
            if client not in self._silent:
                until = "" if self._once else " until it does"
                rank_zero_warn(
                    f"client {self._name(client)} does not answer and is left out of the objective{until}: {reason}"
                )
        if self._once:
            self._silent |= silent
            return
        for client in self._silent.keys() - silent.keys():
            rank_zero_info(f"client {self._name(client)} answers again")
        self._silent = dict(silent)

    def _questions(self, question: Message) -> dict[int, LossQuestion]:
        data = question.to_bytes(sent_in(self._question.precision))
        return {
            client: replace(self._question, question=data, weight=self._weights[client], client=client)
            for client in sorted(self._asked)
        }

    def _sum(self, question: Message) -> tuple[Message | None, dict[int, str]]:
        """The sum of what clients answer, None of none, and why others do not."""
        form = form_of(question, self._dim)
        total: Message | None = None
        silent: dict[int, str] = {}
        questions = self._questions(question)
        for client, told in sorted(self._connection.send(questions, LOSS, Told, "asking clients").items()):
            try:
                answer = self._opened(told)
                check_form(answer, form, self._weights[client])
                total = answer if total is None else add(total, answer)
            except MessageError as error:
                silent[client] = told if isinstance(told, Silence) else shorten(str(error), LONGEST_REASON)
            if not isinstance(told, str):
                self.traffic.up += sum(map(len, told.messages))
            self.traffic.down += len(questions[client].question) if told != AWAY else 0
        return total, silent

    @staticmethod
    def _opened(told: Told | str) -> Message:
        if isinstance(told, str) or told.failure:
            raise MessageError(told if isinstance(told, str) else told.failure)
        if len(told.messages) != 1:
            raise MessageError(f"it answers with {len(told.messages)} messages")
        return Message.from_bytes(told.messages[0])


class MaskedClients(AskedClients):
    """`AskedClients` under secure aggregation: the server sees the sum of the answers alone, to a step a client."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._ranges: dict[str, dict[str, float]] = {}  # by kind of question

    def _sum(self, question: Message) -> tuple[Message | None, dict[int, str]]:
        form = form_of(question, self._dim)
        first, asked, whole = question.kind not in self._ranges, self._asked, self._once
        ranges = self._ranges.get(question.kind) or dict.fromkeys(hidden_names(form), FIRST)
        for _ in range(TRIES):
            scale: Scale = {"ranges": ranges, "largest": max(self._weights.values())}
            found = self._exchange(question, form, scale, asked, whole)
            if isinstance(found, dict):
                return None, found
            total, bounds, silent = found
            cut = any(bound > ranges[name] for name, bound in bounds.items())
            wide = first and any(ranges[name] > WASTE * bound for name, bound in bounds.items())
            wider = {name: MARGIN * bound for name, bound in bounds.items()}
            if not cut and not wide:
                if first:
                    said = ", ".join(f"{name} in steps of {STEP * ranges[name]:.2g}" for name in bounds)
                    rank_zero_info(f"secure aggregation: answers to {question.kind!r} are sums, {said}")
                # a range falls slowly: asking again costs as much as a batch
                self._ranges[question.kind] = {name: max(wider[name], ranges[name] / 2) for name in bounds}
                return total, silent
            # of the same clients: two sums of one question, with and without a client, would tell its answer
            ranges, asked, whole = wider, asked - silent.keys(), True
        raise TooFewAnswersError(
            f"the answers to {question.kind!r} grow with every question: {bounds}; is the training diverging?"
        )

    def _exchange(
        self, question: Message, form: Message, scale: Scale, clients: set[int], whole: bool
    ) -> tuple[Message, dict[str, float], dict[int, str]] | dict[int, str]:
        """The sum, bounds of its entries and why clients do not answer; the latter alone, if there is no sum."""
        questions = self._questions(question)

        def write(client: int, among: dict[str, str]) -> Masked:
            told: MaskedLoss = {ABOUT_LOSS: pack(questions[client])[1], "scale": scale}
            asked = Masked([], to_bytes(told), 1)  # the weight is in the answer
            self.traffic.down += len(asked.rest)
            return asked

        missing = "sums of one question with and without a client would show its answer"
        made = self._connection.masked_mean(sorted(clients), write, self.traffic.questions, whole, missing=missing)
        if made.mean is None:
            few = f"{'not all of these' if whole else 'too few'} clients answered for their sum to be unmasked"
            return {client: made.why_none(client, few) for client in sorted(clients)}
        self.traffic.up += len(made.rests) * sum(MASKED_NUMBER * array.size for array in made.mean)
        silent = {c: made.failures.get(c, "no answer") for c in sorted(clients) if c not in made.rests}
        weight = sum(self._weights[client] for client in sorted(made.rests))
        total, bounds = decode(made.mean, form, scale, len(made.rests), weight)
        return total, bounds, silent


def connect(
    objective: EmbeddedLoss,
    connection: Connection,
    counts: list[int],
    classes: tuple[str, ...],
    example: torch.Tensor,
    device: torch.device,
    note: Callable[[int, str], None],
) -> list[AskedClients]:
    """Gives losses that ask clients those of a connection, which are returned; `OneMessageLoss` asks them now."""
    if connection.privacy is not None:
        raise ValueError(
            f"{EPSILON} in the run's config: clients tell nothing without noise, and a loss at the server asks for it;"
            " leave it out, or fine-tune in the form 'local'"
        )
    found = []
    kind = MaskedClients if connection.hidden else AskedClients
    for loss, embedding in zip(objective.losses, objective.embeddings):
        if not isinstance(loss, DistributedLoss | OneMessageLoss):
            continue
        assert isinstance(embedding, Embedding)
        dim = embed(embedding, example, device=device).shape[1]
        precision = str(loss.precision).removeprefix("torch.")
        common = LossQuestion(b"", str(embedding.name), embedding.fingerprint(), 0.0, precision, 0, classes)
        weights = message_weights(objective.client_weights, counts)
        once = isinstance(loss, OneMessageLoss)
        clients = kind(connection, common, weights, dim, once, note)
        if isinstance(loss, DistributedLoss):
            loss.connect(clients, dim)
        else:
            _ask_once(loss, clients)
        found.append(clients)
    return found


def _ask_once(loss: OneMessageLoss, clients: AskedClients) -> None:
    """Connects a loss of one message with those clients that answer all of its questions."""
    while True:
        clients.start_again()
        try:
            loss.connect(clients)
        except LostClientError as error:
            rank_zero_info(str(error))
        else:
            return
