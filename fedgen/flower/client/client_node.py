"""A client's side: it introduces itself, takes turns, and keeps between them what is its own.

Where privacy is promised, it keeps to itself what its steps logged and the texts of its errors: neither has noise, and
no accountant counts it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from pydoc import locate
from typing import Any, ClassVar

import torch
from jsonargparse import Namespace
from lightning.pytorch.cli import LightningArgumentParser

from fedgen.federated.federation_state import check_packed
from fedgen.federated.lightning.lightning_internals import look_for_plugins_once
from fedgen.federated.round import exits_fail
from fedgen.federated.server_optimizers import as_real
from fedgen.flower.app.recipe import evaluations, evaluations_in, for_client, questions_in, read_settings
from fedgen.flower.app.run_config import EPSILON, SECURE, has_noise
from fedgen.flower.client.answering import Answering, sent_in
from fedgen.flower.client.client_statistics import FEATURES, answers_to
from fedgen.flower.client.local_data import LocalDataModule, NodeData
from fedgen.flower.client.pins import count_question, hold_to_split, note_exact, refuse_after_noise
from fedgen.flower.client.policy import Policy, RefusedError
from fedgen.flower.client.turn_strategy import TurnStrategy
from fedgen.flower.wire.messages import Answer, Hello, LossQuestion, Question, Task, Told, pack
from fedgen.flower.wire.serialization import from_bytes, to_bytes
from fedgen.foreign_text import printable_lines
from fedgen.io.files import atomic_write, remove_unfinished
from fedgen.io.tensor_files import bytes_of, hash_tensors
from fedgen.own_code import rank_zero_warn, warn
from fedgen.statistics import Privacy
from fedgen.statistics.statistic_messages import Message, MessageError
from fedgen.training.fit import FedgenCLI

MOST_PARSED = 64  # clients for which a process answers, as those of a simulation do


class ToldError(RuntimeError):
    """An error whose text says only what may be told."""


def is_promised(settings: Mapping[str, Any], config: Mapping[str, Any]) -> bool:
    """Whether a run promises differential privacy, of its updates or of its statistics."""
    return has_noise(config) or any(map(_is_private, _class_paths(settings["trainer"].get("strategy"))))


def refuse_open(config: Mapping[str, Any], secure: bool, asked: Sequence[str]) -> None:
    """A client's check of the kinds that it is asked for, in the open or masked: RefusedError for what stays hidden."""
    if bool(config.get(SECURE, False)) and not secure:
        raise RefusedError("under secure aggregation nothing is told in the open")
    if has_noise(config) and any(ask != "private-sums" for ask in asked):
        raise RefusedError(f"with {EPSILON} in the run's config nothing is told without noise")


def failure_of(error: Exception, promised: bool) -> str:
    """Return what is told of an error: where privacy is promised its type alone, but refusals in any case."""
    if not promised or isinstance(error, RefusedError):
        return f"{type(error).__name__}: {error}"
    rank_zero_warn(f"the server is told of a {type(error).__name__}, and not: {printable_lines(str(error))}")
    return untold(type(error).__name__)


def untold(kind: str) -> str:
    """An error's type in place of its text."""
    return f"{kind}, of which the client's own log says more"


@contextmanager
def telling_types(promised: bool) -> Iterator[None]:
    """Keeps the texts of errors, which Flower sends to the server, where privacy is promised."""
    try:
        yield
    except (RefusedError, ToldError):
        raise
    except Exception as error:
        if not promised:
            raise
        raise ToldError(failure_of(error, promised)) from None


def _class_paths(settings: Any) -> Iterator[str]:
    if isinstance(settings, Mapping):
        if isinstance(path := settings.get("class_path"), str):
            yield path
        for value in settings.values():
            yield from _class_paths(value)


def _is_private(path: str) -> bool:
    """Whether a class path names a private aggregator; recipes may call the project's by their bare names."""
    found = locate(path) or locate(f"fedgen.federated.{path}")
    return bool(getattr(found, "private", False))  # a recipe may name anybody's class


class ClientCLI(FedgenCLI):
    """`FedgenCLI` of `for_client`'s settings, plain values, which a process parses once."""

    datamodule: LocalDataModule
    _parsed: ClassVar[dict[str, Namespace]] = {}

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        settings = repr(args)
        if settings not in self._parsed:
            super().parse_arguments(parser, args)
            if len(self._parsed) == MOST_PARSED:
                self._parsed.clear()
            self._parsed[settings] = self.config
        self.config = self._parsed[settings].clone()


class ClientNode:
    """A client of a recipe, with a folder `state` between turns; `promised` keeps logs and errors' texts here."""

    def __init__(
        self,
        recipe: Path,
        own: NodeData,
        state: Path,
        name: str | None = None,
        promised: bool = False,
        policy: Policy | None = None,
    ) -> None:
        self.name, self.state, self._promised = name or own.name, state, promised
        self.policy = policy or Policy()
        settings = self._recipe = read_settings(recipe)
        self._settings, self._evaluation = for_client(settings, own, self.name, state / FEATURES), evaluations(settings)

    @cached_property
    def _made(self) -> ClientCLI:
        look_for_plugins_once()
        return ClientCLI(args={**self._settings, "seed_everything": self._settings.get("seed_everything", 0)})

    @exits_fail()
    def hello(self) -> Hello:
        """Return what the server must know of this client before it asks for turns."""
        examples = self._made.datamodule.read
        return Hello(self.name, len(examples), self._made.datamodule.image_shape, examples.classes, examples.kind)

    def take(self, task: Task) -> Answer:
        """Takes a turn; one that cannot be taken is an answer too, with the reason."""
        try:
            return self._take(task)
        except Exception as error:
            return Answer(failure=failure_of(error, self._promised))

    @exits_fail()
    def _take(self, task: Task) -> Answer:
        strategy, trainer = self._made.trainer.strategy, self._made.trainer
        assert isinstance(strategy, TurnStrategy)
        self.policy.check_clients(task.clients)
        if task.client >= task.clients:
            raise MessageError(f"client {task.client} is none of {task.clients}, which count from 0")
        self._enroll(task.client, task.classes)
        before, kept = self._remembered(task)
        strategy.begin(task, kept)
        trainer.fit_loop.max_epochs = task.round + 1
        trainer.fit(self._made.model, datamodule=self._made.datamodule)
        answer = strategy.answer
        if answer.failure:
            return replace(answer, failure=untold(answer.failure.split(":")[0])) if self._promised else answer
        self._check_update(task, answer)
        self._remember(task.round, strategy.kept, before)
        if self._promised:
            return replace(answer, loss=None)
        return replace(answer, metrics={name: float(value) for name, value in trainer.callback_metrics.items()})

    def _enroll(self, number: int, classes: Sequence[str]) -> None:
        """Takes its number, which in a run stays what it was first said to be."""
        self._made.datamodule.enroll(number, classes)
        hold_to_split(self.state, self._made.datamodule.client, number)

    def _check_update(self, task: Task, answer: Answer) -> None:
        """Refuses to send an update that is larger than the node's policy allows."""
        strategy = self._made.trainer.strategy
        assert isinstance(strategy, TurnStrategy)
        sent = {**answer.weights, **strategy.round.compressed.receive_all(answer.compressed)}
        moved = [as_real(t.cpu()).double() - as_real(task.weights[n]).double() for n, t in sent.items()]
        norm = torch.stack([part.norm() for part in moved]).norm() if moved else torch.zeros(())
        size = 0
        if self.policy.limits_bytes:
            weights, rest = pack(answer)
            size = bytes_of(weights.values()) + len(rest)
        self.policy.check_answer(size, float(norm))

    @property
    def weight_in_mean(self) -> int:
        """The whole number that a masked mean weighs this client by: of its training images, or 1, by the recipe."""
        strategy = self._made.trainer.strategy
        assert isinstance(strategy, TurnStrategy)
        return int(strategy.weight_of(len(self._made.datamodule.client.train)))

    def look_up(self, question: Question, privacy: Privacy | None = None) -> Told:
        """Answers an evaluation's question; why it cannot is an answer too. Arguments as for `answers`."""
        return self._told(lambda: [message.to_bytes() for message in self.answers(question, privacy)])

    def _told(self, make: Callable[[], list[bytes]]) -> Told:
        try:
            self.policy.check_answer(sum(map(len, messages := make())))
            return Told(messages)
        except Exception as error:
            return Told(failure=failure_of(error, self._promised))

    @exits_fail()
    def answers(self, question: Question, privacy: Privacy | None = None) -> list[Message]:
        """The answers to an evaluation's question, one an item; `privacy` is the promise of sums with noise."""
        self._enroll(question.client, question.classes)
        declared = evaluations_in(self._recipe)
        client, evaluation = self._made.datamodule.client, self._evaluation
        return list(answers_to(question, client, evaluation, self.state, privacy, self.policy, declared))

    def tell(self, question: LossQuestion) -> Told:
        """Answers a loss at the server; why it cannot is an answer too."""
        return self._told(lambda: [self.answer(question).to_bytes(sent_in(question.precision))])

    @exits_fail()
    def answer(self, question: LossQuestion) -> Message:
        """The answer to a loss at the server."""
        model = self._made.model
        if not isinstance(model, Answering):
            raise ValueError(f"{type(model).__name__} asks clients nothing here; the server runs another recipe")
        self.policy.check_asked("loss", question.embedding)
        refuse_after_noise(self.state)
        self._enroll(question.client, question.classes)
        asked, about = Message.from_bytes(question.question), f"loss/{question.embedding}"
        check = partial(self.policy.check_questions, what=about, declared=questions_in(self._recipe))
        content = hash_tensors(sorted(asked.tensors.items()), f"{asked.kind} {sorted(asked.meta.items())}")
        count_question(self.state, about, content, check)
        note_exact(self.state)
        device = self._made.trainer.strategy.root_device
        return model.answer(question, self._made.datamodule.client, self.state / FEATURES, device)

    # ---- between turns ----

    def _turns(self) -> dict[int, Path]:
        """Files of what was kept, by round."""
        paths = sorted(self.state.glob("round=*.safetensors"))
        return {int(path.stem[6:]): path for path in paths if path.stem[6:].isdecimal()}

    def _remembered(self, task: Task) -> tuple[Path | None, dict[str, Any] | None]:
        """Return what was kept after the last turn that the server counts, and its file; other turns are void."""
        turns = self._turns()
        if not task.iterations:
            return None, None
        if not turns and (older := next(self.state.glob("round=[0-9]*.pt"), None)):
            raise MessageError(
                f"{older} is of an earlier release, whose form is no longer read: go on with that release, or remove"
                " that folder to begin this client anew"
            )
        for number in sorted((number for number in turns if number < task.round), reverse=True):
            found = self._read(turns[number])
            if sum(found["iterations"].values()) == task.iterations:
                return turns[number], found
        if not turns:
            warn(
                f"{self.state} keeps nothing, and the server counts {task.iterations} iterations of this client: it"
                " begins anew"
            )
            return None, None
        latest = turns[max(turns)]
        found = self._read(latest)
        if not _keeps_tensors(found):
            outside = {**found["outside"], "values": {}}  # of later rounds than the server's
            return latest, {**found, "outside": outside, "iterations": {task.client: task.iterations}}
        raise MessageError(
            f"the server counts {task.iterations} iterations of this client before round {task.round}, and {self.state}"
            " no longer keeps what it had then, but what it had after round(s)"
            f" {', '.join(map(str, turns))}: start the server from its latest checkpoint, or remove that folder to"
            " begin this client anew"
        )

    def _read(self, path: Path) -> dict[str, Any]:
        try:
            found: dict[str, Any] = from_bytes(path.read_bytes(), str(path), sealed=True)
            check_packed(found, {}, ("local", "algorithm"))
            found.setdefault("outside", {"values": {}, "personal": {}})  # files of before have none
        except ValueError as error:
            raise MessageError(
                f"{path}: {error}; remove it, and this client goes on with what it kept before"
            ) from error
        return found

    def _remember(self, round: int, kept: dict[str, Any], before: Path | None) -> None:
        """Keeps a turn's outcome, and what it began with: a server that died in the round asks for it again."""
        self.state.mkdir(parents=True, exist_ok=True)
        remove_unfinished(self.state)
        present = self.state / f"round={round:05d}.safetensors"
        with atomic_write(present) as file:
            file.write(to_bytes(kept, sealed=True))
        for path in self._turns().values():
            if path not in (present, before):
                path.unlink()  # of a run begun again, of a turn that the server did not hear of, or too old


def _keeps_tensors(kept: dict[str, Any]) -> bool:
    """Whether a client kept more than its count: personal state, optimizers' states, variates, unsent updates."""
    parts = (kept["local"].get("clients"), kept["algorithm"].get("clients"), kept["outside"].get("personal"))
    unsent = kept.get("compression", {}).get("clients")  # older releases kept none
    return any((*kept["personal"].values(), *parts, unsent))
