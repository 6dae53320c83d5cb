"""A client's side: it introduces itself, takes turns, and keeps between them what is its own."""

from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from fedgen.cli import FedgenCLI
from fedgen.deploy.answering import Answering, sent_in
from fedgen.deploy.messages import Answer, Hello, LossQuestion, Question, Task, Told
from fedgen.deploy.own_data import OwnData
from fedgen.deploy.payload import from_bytes, to_bytes
from fedgen.deploy.recipe import evaluations, for_client, read_settings
from fedgen.deploy.statistics import FEATURES, answers_to
from fedgen.deploy.turn_strategy import TurnStrategy
from fedgen.deploy.untold import failure_of, untold
from fedgen.federated.federation_state import check_packed
from fedgen.files import atomic_write
from fedgen.statistics.messages import Message, MessageError

KEPT = 2  # turns whose outcome is kept: a server that died in a round asks for it again


class Station:
    """One client of a deployed recipe.

    Args:
        recipe: the deployed recipe's file.
        folder: of its data.
        state: folder for what it keeps between turns: personal tensors, its optimizers' state, counts. It is its own,
            and no other run's.
        name: the client's; its data folder's by default.
        promised: whether the run promises privacy, so that neither logs nor errors' texts may leave.

    Raises:
        FileNotFoundError: if the recipe or the data are missing.
        ValueError: for a recipe that cannot be read.
    """

    def __init__(
        self, recipe: Path, folder: Path, state: Path, name: str | None = None, promised: bool = False
    ) -> None:
        if not folder.exists():
            raise FileNotFoundError(f"the data folder {folder} does not exist; see data-path in this node's config")
        self.name, self.state, self._promised = name or folder.name, state, promised
        settings = read_settings(recipe)
        self._settings, self._evaluation = for_client(settings, folder, self.name), evaluations(settings)

    @cached_property
    def _made(self) -> FedgenCLI:
        return FedgenCLI(args={**self._settings, "seed_everything": self._settings.get("seed_everything", 0)})

    @property
    def _data(self) -> OwnData:
        data = self._made.datamodule
        assert isinstance(data, OwnData)
        return data

    def hello(self) -> Hello:
        """What the server must know of this client before it asks for turns."""
        examples = self._data.read
        return Hello(self.name, len(examples), self._data.image_shape, examples.classes)

    def take(self, task: Task) -> Answer:
        """Takes a turn; one that cannot be taken is an answer too, with the reason."""
        try:
            return self._take(task)
        except Exception as error:
            return Answer(failure=failure_of(error, self._promised))

    def _take(self, task: Task) -> Answer:
        strategy, trainer = self._made.trainer.strategy, self._made.trainer
        assert isinstance(strategy, TurnStrategy)
        self._data.enroll(task.client, task.classes)
        self._data.features = self.state / FEATURES
        strategy.begin(task, self._remembered(task.round))
        trainer.fit_loop.max_epochs = task.round + 1
        trainer.fit(self._made.model, datamodule=self._data)
        answer = strategy.answer
        if answer.failure:
            return replace(answer, failure=untold(answer.failure.split(":")[0])) if self._promised else answer
        self._remember(task.round, strategy.kept)
        if self._promised:
            return answer
        return replace(answer, metrics={name: float(value) for name, value in trainer.callback_metrics.items()})

    def look_up(self, question: Question) -> Told:
        """Answers an evaluation's question; why it cannot is an answer too."""
        try:
            return Told([message.to_bytes() for message in self.answers(question)])
        except Exception as error:
            return Told(failure=failure_of(error, self._promised))

    def answers(self, question: Question) -> list[Message]:
        """The answers to an evaluation's question, one an item; raises what keeps it from answering."""
        self._data.enroll(question.client, question.classes)
        return list(answers_to(question, self._data.client, self._evaluation, self.state))

    def tell(self, question: LossQuestion) -> Told:
        """Answers a loss at the server; why it cannot is an answer too."""
        try:
            return Told([self.answer(question).to_bytes(sent_in(question.precision))])
        except Exception as error:
            return Told(failure=failure_of(error, self._promised))

    def answer(self, question: LossQuestion) -> Message:
        """The answer to a loss at the server.

        Raises:
            ValueError: if the embedding is not the server's, or the images do not do for the loss.
        """
        model = self._made.model
        if not isinstance(model, Answering):
            raise ValueError(f"{type(model).__name__} asks clients nothing here; the server runs another recipe")
        self._data.enroll(question.client, question.classes)
        device = self._made.trainer.strategy.root_device
        return model.answer(question, self._data.client, self.state / FEATURES, device)

    # ---- between turns ----

    def _turns(self) -> dict[int, Path]:
        """Files of what was kept, by round."""
        return {int(path.stem[6:]): path for path in sorted(self.state.glob("round=*.pt")) if path.stem[6:].isdecimal()}

    def _remembered(self, round: int) -> dict[str, Any] | None:
        """What was kept of the last turn before a round."""
        earlier = [number for number in self._turns() if number < round]
        if not earlier:
            return None
        path = self._turns()[max(earlier)]
        try:
            found: dict[str, Any] = from_bytes(path.read_bytes(), str(path))
            check_packed(found, {}, ("local", "algorithm"))
        except ValueError as error:
            raise MessageError(
                f"{path}: {error}; remove it, and this client goes on with what it kept before"
            ) from error
        return found

    def _remember(self, round: int, kept: dict[str, Any]) -> None:
        self.state.mkdir(parents=True, exist_ok=True)
        with atomic_write(self.state / f"round={round:05d}.pt") as file:
            file.write(to_bytes(kept))
        for number, path in self._turns().items():
            if number > round or number in sorted(self._turns())[:-KEPT]:
                path.unlink()  # of a run begun again, or too old to be asked for


def use_threads(settings: dict[str, Any]) -> None:
    """Sets the number of CPU threads that a recipe asks for."""
    if threads := settings.get("threads"):
        torch.set_num_threads(int(threads))
