"""Clients elsewhere in the place of simulated ones: a loss's questions go to them as Flower's messages."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from flwr.app import MessageType
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from numpy.typing import NDArray

from fedgen.federated.left_out import LONGEST_REASON, shorten
from fedgen.federated.server_model import MASKED_NUMBER
from fedgen.flower.client.answering import sent_in
from fedgen.flower.secure_aggregation.masked_answers import FIRST, MARGIN, STEP, WASTE, Scale, decode, hidden_names
from fedgen.flower.secure_aggregation.secure_mean import secure_mean
from fedgen.flower.wire.answer_forms import check_form, form_of
from fedgen.flower.wire.messages import LossQuestion, Told, pack
from fedgen.flower.wire.sending import Silence
from fedgen.flower.wire.serialization import to_bytes
from fedgen.flower.wire.transport import Transport
from fedgen.losses.distributed import Traffic
from fedgen.own_code import rank_zero_warn
from fedgen.statistics.statistic_messages import Message, MessageError, add

LOSS = f"{MessageType.QUERY}.loss"  # Flower's type of these messages
MASKED = "loss"  # the key of a question among what is sent for a masked sum
TRIES = 6  # ranges that a masked sum is asked for with


class TooFewAnswersError(RuntimeError):
    """Too few clients answered for their sum to be the objective."""


class LostClientError(RuntimeError):
    """A client that answered a loss's first question does not answer a later one."""


class AskedClients:
    """Clients that Flower reaches, as a loss asks them (`losses.distributed.Clients`).

    The sum is over those that answer. One that is not connected, does not answer within the deadline, or answers with
    what does not fit is left out of it, by a warning with its name and the reason, and comes back with its next answer.

    Args:
        transport: to the clients.
        question: what is common to all questions; client, weight and the question itself are put in.
        weights: of the clients, by number; they multiply their answers by them.
        dim: features D of the embedding.
        least: the part of all the weight that must answer.
        once: whether several questions are one message, which all must come from the same clients.
        note: takes down a client that does not answer, and why.

    Attributes:
        traffic: bytes of questions and answers, without Flower's envelopes; behind masks eight bytes a number, without
            the keys.
    """

    def __init__(
        self,
        transport: Transport,
        question: LossQuestion,
        weights: Sequence[float],
        dim: int,
        least: float,
        once: bool,
        note: Callable[[int, str], None],
    ) -> None:
        self._note = note
        self._transport, self._question, self._dim, self._least, self._once = transport, question, dim, least, once
        self._weights = dict(enumerate(weights))
        self._asked = {client for client, weight in self._weights.items() if weight > 0}
        self._silent: dict[int, str] = {}
        self._answered: list[float] = []
        self._began = False
        self.traffic = Traffic()

    def ask(self, question: Message) -> Message:
        """The sum of the clients' answers.

        Raises:
            TooFewAnswersError: if clients with less than the least part of the weight answer.
            LostClientError: for a client that answered before, where questions are one message.
        """
        total, silent = self._sum_once_heard(question)
        self.traffic.questions += 1
        for client, reason in silent.items():
            self._note(client, reason)
        there = sum(weight for client, weight in self._weights.items() if client in self._asked - silent.keys())
        part = there / sum(self._weights.values())
        if total is None or part < self._least:
            few = f"clients with {part:.0%} of the weight answered and {self._least:.0%} are needed (least-answers)"
            raise TooFewAnswersError(
                f"{few if total is not None else 'the answers of the clients have no sum'}: {self._reasons(silent)}."
                " Started again, the run goes on from its last checkpoint"
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
        return repr(self._transport.registry.clients[client].name)

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

    def _sum_once_heard(self, question: Message) -> tuple[Message | None, dict[int, str]]:
        """Sum as `_sum` does, asked again while nothing comes from anybody: a server whose line was cut goes on."""
        return self._transport.retry_until_reply(
            lambda: self._sum(question),
            lambda found: found[0] is not None or not all(isinstance(why, Silence) for why in found[1].values()),
            lambda found: f"nothing came from any client ({self._reasons(found[1])}); all are asked again",
        )

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
        for client, told in sorted(self._transport.send(questions, LOSS, Told, "asking clients").items()):
            try:
                answer = self._opened(told)
                check_form(answer, form, self._weights[client])
                total = answer if total is None else add(total, answer)
            except MessageError as error:
                silent[client] = told if isinstance(told, Silence) else shorten(str(error), LONGEST_REASON)
            if not isinstance(told, str):
                self.traffic.up += sum(map(len, told.messages))
            self.traffic.down += len(questions[client].question) if told != "it is not connected" else 0
        return total, silent

    @staticmethod
    def _opened(told: Told | str) -> Message:
        if isinstance(told, str) or told.failure:
            raise MessageError(told if isinstance(told, str) else told.failure)
        if len(told.messages) != 1:
            raise MessageError(f"it answers with {len(told.messages)} messages")
        return Message.from_bytes(told.messages[0])


class MaskedClients(AskedClients):
    """`AskedClients` under secure aggregation: the server sees the sum of the answers and no single one.

    The sum is that of `AskedClients` to a step for each client (`masked_answers`), which the log says. A question that
    is asked again, for its range, and all questions of one message have the same clients' answers or none.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._ranges: dict[str, dict[str, float]] = {}  # by kind of question

    def _sum(self, question: Message) -> tuple[Message | None, dict[int, str]]:
        form = form_of(question, self._dim)
        first, asked, whole = question.kind not in self._ranges, self._asked, self._once
        ranges = self._ranges.get(question.kind) or dict.fromkeys(hidden_names(form), FIRST)
        for _ in range(TRIES):
            scale = Scale(ranges, max(self._weights.values()))
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
        """The sum, bounds of its entries and why clients do not answer; the latter alone, if there is no sum.

        Args:
            question: to all.
            form: of an answer.
            scale: of what is summed.
            clients: who are asked.
            whole: whether there is to be a sum over all of them or none.
        """
        registry = self._transport.registry
        registry.refresh()
        nodes = registry.nodes_of(sorted(clients))
        silent: dict[int, str] = {
            client: Silence("it is not connected") for client, node in nodes.items() if node is None
        }
        there = {client: node for client, node in nodes.items() if node is not None}
        if len(there) < 2:
            return silent | dict.fromkeys(there, "a sum over fewer than two clients would show one")
        if whole and silent:
            return silent | dict.fromkeys(there, "sums of one question with and without a client would show its answer")
        questions = self._questions(question)
        asked: dict[int, tuple[list[NDArray[np.float64]], bytes, int]] = {}
        told = {"ranges": dict(scale.ranges), "largest": scale.largest}
        for client, node in there.items():
            rest = to_bytes({MASKED: pack(questions[client])[1], "scale": told})
            asked[node] = ([], rest, 1)  # the weight is in the answer
            self.traffic.down += len(rest)
        needed = {"threshold": 1.0} if whole else {}
        made = secure_mean(self._transport.grid, asked, self.traffic.questions, self._transport.deadline, **needed)
        if made.mean is None:
            few = f"{'not all of these' if whole else 'too few'} clients answered for their sum to be unmasked"
            return silent | {client: made.why_none(node, few) for client, node in there.items()}
        self.traffic.up += len(made.rests) * sum(MASKED_NUMBER * array.size for array in made.mean)
        silent |= {
            client: made.failures.get(node, "no answer") for client, node in there.items() if node not in made.rests
        }
        weight = sum(self._weights[client] for client, node in there.items() if node in made.rests)
        total, bounds = decode(made.mean, form, scale, len(made.rests), weight)
        return total, bounds, silent
