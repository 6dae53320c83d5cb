"""FedAvg over clients whose single updates and statistics the server never sees."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Message, RecordDict
from lightning.pytorch import Trainer
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities.rank_zero import rank_zero_info

from fedgen.federated.aggregators.mean import Mean
from fedgen.federated.left_out import LONGEST_REASON, shorten
from fedgen.federated.server_model import MASKED_NUMBER
from fedgen.federated.server_optimizers import as_real, from_real
from fedgen.flower.app.run_config import RANGE, privacy_of
from fedgen.flower.client.client_node import ClientNode, ToldError, refuse_open
from fedgen.flower.client.policy import RefusedError
from fedgen.flower.secure_aggregation.agreement import STEPS, AskedSum, hash_of, note_sum
from fedgen.flower.secure_aggregation.secure_mean import Masked, as_arrays, mean_error, read_instructions, write_summand
from fedgen.flower.secure_aggregation.secure_sums import encode, masked_messages
from fedgen.flower.server.connection import ALONE, Connection
from fedgen.flower.server.flower_strategy import FlowerStrategy
from fedgen.flower.wire.flower_records import Silence
from fedgen.flower.wire.messages import (
    ABOUT_LOSS,
    Answer,
    LossQuestion,
    MaskedLoss,
    MaskedQuestion,
    MaskedTask,
    OpenPart,
    Question,
    Task,
    pack,
    unpack,
)
from fedgen.flower.wire.serialization import from_bytes, to_bytes
from fedgen.foreign_text import printable
from fedgen.io.field_types import fault
from fedgen.io.files import read_json, write_json
from fedgen.io.tensor_files import tensors_in
from fedgen.own_code import rank_zero_warn
from fedgen.statistics.statistic_messages import MessageError

WAITS = "it waits for the clients of the round's first sum"
FEW = "too few clients answered for their sum to be unmasked"
_OWN = ("client", "share", "iterations")  # of a task: each client's own
SUMMED = "masked_rounds.json"  # in the run folder


class MaskedRoundError(RuntimeError):
    """A masked round that is done again, without a client whose update was in its sum before."""


class MaskedRounds:
    """The clients, by name, in each round's sum: done again with one fewer, the two sums would differ by its update."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / SUMMED
        self._names: dict[str, list[str]] = {}
        if self._path.exists():
            found = read_json(self._path)
            if wrong := fault(found, dict[str, list[str]]):
                raise ValueError(
                    f"{self._path} {wrong}: it is damaged, and without it nobody knows who was summed in which round;"
                    " begin another run"
                )
            self._names = found

    def of(self, round: int) -> list[str] | None:
        """Return who was in a round's sum; None if it has had none."""
        return self._names.get(str(round))

    def note(self, round: int, names: Sequence[str]) -> None:
        """Keeps who is in a round's sum, on disk before it returns."""
        if self.of(round) is None:
            self._names[str(round)] = sorted(names)
            write_json(self._path, self._names)


class SecureStrategy(FlowerStrategy):
    """`FlowerStrategy` under secure aggregation: of each round the server learns the mean of the updates alone."""

    # clients send changes over `range` as whole numbers, and count those cut off: the mean is off by less than
    # range x 2 / 2^22, more where weights differ; what needs single updates is refused

    _fixed_exchange = True
    _error: float | None = None

    def __init__(self, _connection: Connection | None = None, **settings: Any) -> None:
        super().__init__(_connection=_connection, **settings)
        self.range = self._connection.update_range

    @property
    def metrics(self) -> dict[str, float]:
        """The usual values, the step of whole numbers and a bound on what rounding does, in the weights' units."""
        error = {} if self._error is None else {"quantisation_error": self._error}
        return {**super().metrics, "quantisation_step": self._step, **error}

    @property
    def _step(self) -> float:
        return 2 * self.range / STEPS

    def _start_fit(self, trainer: Trainer) -> None:
        hides = "secure aggregation hides single clients' messages from the server, so"
        if type(self.aggregator) is not Mean:
            name = type(self.aggregator).__name__
            raise MisconfigurationException(f"{hides} {name}, which looks at each, cannot act: leave `aggregator` out")
        if self.sampler is not None:
            raise MisconfigurationException(
                f"{hides} a client that counts for more than its images say is refused by the clients themselves, and"
                " rounds of few are not unmasked: leave `sampler` out"
            )
        super()._start_fit(trainer)
        self._rounds = MaskedRounds(Path(trainer.default_root_dir))
        if not 0 < self.range < float("inf"):
            raise MisconfigurationException(
                f"{RANGE}={self.range} in the run's config: under secure aggregation say by how much an entry of the"
                " weights may change in a turn, e.g. 0.1"
            )
        if self._settings.optimizer_state == "average":
            raise MisconfigurationException(
                f"{hides} optimizer states, which are not masked, may not travel: pass optimizer_state='reset'"
            )
        if self.exchange.beside:
            raise MisconfigurationException(
                f"{hides} control variates, which are not masked, may not travel: leave the client algorithm out"
            )
        rank_zero_info(f"secure aggregation: updates in ±{self.range:g}, in steps of {self._step:.2g}")

    def _ask_until_heard(self, cohort: list[int], round: int) -> dict[int, Answer | str]:
        """Ask as ever; of a round whose sum there has been, the same clients again, or the run ends."""
        before = self._rounds.of(round)
        if before is None:
            return super()._ask_until_heard(cohort, round)
        names = {client: self._connection.clients[client].name for client in cohort}
        members = [client for client in cohort if names[client] in before]
        found = super()._ask_until_heard(members, round)
        why_not = {names[client]: str(found[client]) for client in members if isinstance(found[client], str)}
        missing = {name: reason for name, reason in why_not.items() if reason not in (WAITS, FEW)} or why_not
        missing |= dict.fromkeys(set(before) - set(names.values()), "it is not in this run's cohort")
        if missing:
            why = "; ".join(f"{name!r}: {shorten(reason, LONGEST_REASON)}" for name, reason in sorted(missing.items()))
            raise MaskedRoundError(
                f"round {round} was summed behind masks before, over {', '.join(before)}, and is done again without"
                f" {', '.join(sorted(missing))} ({why}): the difference of the two sums would show single updates."
                " Bring back the same clients and start again, or begin another run over all of them"
            )
        late = dict.fromkeys(names.keys() - set(members), "it was not in this masked round's first sum")
        return found | late

    def _ask(self, cohort: list[int], round: int) -> dict[int, Answer | str]:
        again = self._rounds.of(round) is not None  # then the same clients or none
        data: Any = self._module.trainer.datamodule
        tasks, taken = self._tasks(cohort, round), {}

        def write(client: int, among: dict[str, str]) -> Masked:
            weights, rest = pack(tasks[client])
            taken[client] = int(self.round.settings.weight_of(len(data.clients[client].train)))
            told: MaskedTask = {"names": list(weights), "task": rest, "among": among}
            return Masked(as_arrays(weights.values()), to_bytes(told), taken[client])

        made = self._connection.masked_mean(cohort, write, round, again, Silence(ALONE), Silence(WAITS))
        names = {client: self._connection.clients[client].name for client in cohort}
        if made.mean is None:
            self._error = None
            return {client: made.why_none(client, FEW) for client in cohort}
        self._rounds.note(round, [names[client] for client in cohort if client in made.rests])
        self._error = self.range * mean_error([taken[client] for client in made.rests], max(taken.values()))
        server = {name: self.exchange.server[name] for name in self.exchange.shared}
        found: dict[int, Answer | str] = {}
        for client, name in names.items():
            if client not in made.rests:
                found[client] = made.failures.get(client, "no answer, or its turn failed")
                continue
            if client in made.failures:  # it was of no help in unmasking
                why = shorten(made.failures[client], LONGEST_REASON)
                rank_zero_warn(f"round {round}, client {name!r}: {why}; its update is in the sum")
            found[client] = self._opened(name, made.rests[client], made.mean, server)
        return found

    def _opened(self, name: str, rest: bytes, mean: list[Any], server: dict[str, torch.Tensor]) -> Answer | str:
        """A client's answer, with the mean of all in its weights' place: their mean is the same again."""
        try:
            open_part = from_bytes(rest, "the answer")
            if wrong := fault(open_part, OpenPart):
                raise MessageError(f"what it tells beside its update {wrong}")
            answer: Answer = unpack(Answer, {}, open_part["answer"])
            cut = open_part["cut"]
        except Exception as error:  # whatever it is, it is the client's
            return str(error) or type(error).__name__
        if any(tensor.numel() > 1 for tensor in tensors_in(answer.told)):
            return "it tells tensors in the open, which nothing here asks for"
        if cut > 0:
            rank_zero_warn(
                f"round {self._module.current_epoch}, client {name!r}: {cut:.2%} of its update was beyond"
                f" {RANGE}={self.range:g} and cut off; raise it"
            )
        moved = [torch.from_numpy(np.asarray(part)) * self.range for part in mean]
        weights = {name: _moved(tensor.cpu(), by) for (name, tensor), by in zip(server.items(), moved)}
        return replace(answer, weights=weights)


def _moved(tensor: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
    """A tensor after a change of its numbers, of a complex one's parts, in its own type."""
    real = as_real(tensor)
    return from_real((real.double() + by.reshape(real.shape)).to(real.dtype), like=tensor)


def summand(client_node: ClientNode, message: Message, config: Mapping[str, Any], state: RecordDict) -> RecordDict:
    """A client's part of a sum for SecAgg+ to mask, noted for `agreement`; ToldError for a failed turn."""
    arrays, rest, weight = read_instructions(message)
    told = from_bytes(rest, what := "what the server asks")
    if wrong := fault(told, MaskedLoss | MaskedQuestion | MaskedTask):
        raise MessageError(f"{what} {wrong}")
    if ABOUT_LOSS in told:
        refuse_open(config, True, [ABOUT_LOSS])
        question: LossQuestion = unpack(LossQuestion, {}, told[ABOUT_LOSS])
        masked = encode(client_node.answer(question), told["scale"])
        records = write_summand(Masked(masked, b"", 1))
        alike = {name: value for name, value in vars(question).items() if name not in ("client", "weight")}
        note_sum(state, AskedSum("", {}, False, hash_of([alike, told["scale"]])))
        return records
    names = _named(told["among"], message.metadata.dst_node_id, client_node)
    client_node.policy.check_clients(len(names))
    sent = {name: torch.from_numpy(array) for name, array in zip(told["names"], arrays, strict=True)}
    if "question" in told:
        records, common = _sums(client_node, told, sent, config, weight)
        note_sum(state, AskedSum("an evaluation", names, True, common))
        return records
    task: Task = unpack(Task, sent, told["task"])
    alike = {name: value for name, value in vars(task).items() if name not in _OWN}
    records = _update(client_node, task, sent, float(config[RANGE]), weight)
    common = hash_of([alike, told["names"], float(config[RANGE])])
    note_sum(state, AskedSum(f"round {task.round}", names, False, common))
    return records


def _named(among: Mapping[str, str], node: int, client_node: ClientNode) -> dict[int, str]:
    """Return who is asked for a sum, by node; refuses one client twice, or this one otherwise than it is called."""
    names = {int(one): name for one, name in among.items() if one.isdecimal()}
    if len(set(names.values())) != len(among) or names.get(node) != client_node.name:
        said = printable(str(dict(among)), LONGEST_REASON)
        raise RefusedError(
            f"a masked sum is said to be over {said}: no clients with a name each, of which this one, node {node}, is"
            f" {client_node.name!r}"
        )
    return names


def _sums(
    client_node: ClientNode, told: Any, sent: Mapping[str, torch.Tensor], config: Mapping[str, Any], weight: int
) -> tuple[RecordDict, str]:
    """A client's part of sums of an evaluation, and the hash of what all clients are asked for."""
    if weight != 1 or told["clients"] != len(told["among"]):
        raise RefusedError(
            f"sums of an evaluation are of equal weights over the clients that are named, and this one is asked for"
            f" with weight {weight} over {told['clients']} of {len(told['among'])}"
        )
    question: Question = unpack(Question, sent, told["question"])
    refuse_open(config, True, [item[0] for item in question.items])
    privacy = privacy_of(config)
    shared = privacy and replace(privacy, sharers=told["clients"])
    made = masked_messages(client_node.answers(question, shared), told["largest"], told["clients"])
    client_node.policy.check_answer(MASKED_NUMBER * sum(array.size for array in made.arrays))
    items = [list(item) for item in question.items]
    return write_summand(made), hash_of([items, dict(sent), list(question.classes), told["largest"]])


def _update(
    client_node: ClientNode, task: Task, sent: Mapping[str, torch.Tensor], range: float, weight: int
) -> RecordDict:
    answer = client_node.take(task)
    if answer.failure:
        raise ToldError(answer.failure)
    if weight != (own := client_node.weight_in_mean):
        raise RefusedError(
            f"this client weighs {own} in the mean by its images and recipe, and is asked to weigh {weight}"
        )
    pairs = [(as_real(tensor), as_real(sent[name])) for name, tensor in answer.weights.items()]
    moved = [(after.double() - before.double()) / range for after, before in pairs]
    count = sum(part.numel() for part in moved)
    cut = sum(int((part.abs() > 1).sum()) for part in moved) / count if count else 0.0
    _, open_part = pack(replace(answer, weights={}, metrics={}))
    return write_summand(Masked([part.numpy() for part in moved], to_bytes({"answer": open_part, "cut": cut}), weight))
