"""The server's side of FedAvg: rounds, averages and checkpoints as ever, with turns that clients elsewhere take."""

import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
from flwr.app import MessageType
from lightning.pytorch import Trainer
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities.rank_zero import rank_zero_warn

from fedgen.clients.turn import Turn
from fedgen.federated import FedAvgStrategy
from fedgen.federated.aggregators.client_weights import weight_of
from fedgen.federated.left_out import LONGEST_REASON, shorten
from fedgen.flower.client.replies import Replies
from fedgen.flower.wire.client_state_checks import Form, check_forms, check_states, forms_of
from fedgen.flower.wire.messages import Answer, Task
from fedgen.flower.wire.sending import Silence
from fedgen.flower.wire.transport import Line
from fedgen.statistics.statistic_messages import MessageError

# what servers log, whether or not this one does: whoever reads the logs takes it for theirs
RESERVED = {"epoch", "step", "epsilon", "delta", "statistics_epsilon", "statistics_delta", "clients_answered"}


class FlowerStrategy(FedAvgStrategy):
    """FedAvg over clients that Flower reaches; arguments as for `FedAvgStrategy`.

    Cohorts, averages, server optimizers, schedules, checkpoints and what is left out are those of `FedAvgStrategy` with
    the same arguments, and so is the model for the same seed. Personal tensors and kept optimizer states stay with the
    clients. A client that is not there, does not answer within the deadline, or answers with what does not fit is left
    out of the round. A round in which nothing comes from anybody is asked for again.

    Settings of optimizers and schedulers are the server's own in every round: what a client's steps make of them, such
    as a learning rate that they move, ends with its turn, of which a warning tells once.
    """

    def reach(self, line: Line) -> None:
        """Says how clients are reached."""
        self._line = line
        self._answers: dict[int, Answer | str] = {}
        self._told: list[list[Any]] = []
        self._forms: dict[tuple[int, Any], Form] = {}  # of what they tell
        self._has_warned = False
        self._steps: list[int] = []  # of the round's turns
        self._metrics: dict[str, list[tuple[float, float]]] = {}

    def _start_fit(self, trainer: Trainer) -> None:
        super()._start_fit(trainer)
        if self.aggregator.private and getattr(self.aggregator, "noise", "secret") != "secret":
            name = type(self.aggregator).__name__
            raise MisconfigurationException(
                f"{name} draws its noise from the recipe's seed, and every client has the recipe: who knows the noise"
                " takes it off, so the logged epsilon would hold for nobody. Pass noise='secret' to deploy it"
            )

    def _start_round(self) -> None:
        super()._start_round()
        self._told, self._forms, self._metrics, self._steps = [], {}, {}, []
        round = self._module.current_epoch
        cohort = self.sample_cohort(len(self._line.roster.clients), round)
        self._answers = self._ask_until_heard(cohort, round)

    def _ask_until_heard(self, cohort: list[int], round: int) -> dict[int, Answer | str]:
        """The cohort's answers; a server whose line was cut goes on, and no round passes without clients."""

        def say(answers: dict[int, Answer | str]) -> str:
            why = sorted({shorten(str(answer), LONGEST_REASON) for answer in answers.values()})
            return f"nothing came from any client of round {round} ({'; '.join(why)}); it is asked for again"

        return self._line.until_heard(
            lambda: self._ask(cohort, round),
            lambda answers: not all(isinstance(answer, Silence) for answer in answers.values()),
            say,
        )

    def _ask(self, cohort: list[int], round: int) -> dict[int, Answer | str]:
        """What each client of the cohort answers, or why it does not."""
        return self._line.say(self._tasks(cohort, round), MessageType.TRAIN, Answer, f"round {round}")

    def _tasks(self, cohort: list[int], round: int) -> dict[int, Task]:
        names, personal = self.exchange.first_names, self.exchange.personal
        at_server = tuple(getattr(self._module, "server_only", ()))
        weights = {
            name: tensor
            for name, tensor in self._module.state_dict().items()
            if names.get(name, name) not in personal and not name.startswith(at_server)
        }
        fingerprints = dict(getattr(self._module, "fingerprints", {}))
        shares = self._shares(self._module.trainer) or []
        data: Any = self._module.trainer.datamodule
        local, algorithm = self._local.server_state(), self.client_algorithm.server_state()
        return {
            client: Task(
                weights=weights,
                round=round,
                client=client,
                clients=len(shares),
                share=shares[client],
                classes=data.classes,
                local=local,
                algorithm=algorithm,
                fingerprints=fingerprints,
                iterations=self._memory.iterations.get(client, 0),
                steps=self.clock.server_steps,
                rounds=max(0, self.clock.rounds),
                fixed=self._fixed_exchange,
                counts=self.outside.server_counts,
                means=self.outside.server_means,
            )
            for client in cohort
        }

    # ---- turns, which have been taken elsewhere ----

    def _run_turn(self, step: Callable[[], Any], outputs: Callable[[Any], Any]) -> Any:
        turn = self._turn
        assert turn is not None
        try:
            answer = self._checked(turn, self._answers.pop(turn.client))
            self._take_in(turn, answer)
        except Exception as error:
            self._leave_out(turn, error)
            self._call_turn_end(completed=False)
        else:
            self._memory.complete(turn.client, answer.iterations)
            self._call_turn_end(completed=True)
        if turn.is_last:
            self._end_round()

    def _checked(self, turn: Turn, answer: Answer | str) -> Answer:
        """The answer, if it can be taken in.

        Raises:
            MessageError: if there is none, the turn failed, or what came does not fit the model or others' answers.
        """
        if isinstance(answer, str) or answer.failure:
            raise MessageError(answer if isinstance(answer, str) else answer.failure)
        exchange = self.exchange
        expected = exchange.shared if self._fixed_exchange else exchange.shared | exchange.quiet | exchange.counters
        needed = exchange.shared.keys() if self._fixed_exchange else exchange.trained
        if wrong := {*answer.weights.keys() - expected.keys(), *needed - answer.weights.keys()}:
            raise MessageError(f"its weights have other names than the server's, such as {sorted(wrong)[0]}")
        for name, tensor in answer.weights.items():
            if (tensor.shape, tensor.dtype) != (expected[name].shape, expected[name].dtype):
                wanted = f"{expected[name].dtype} {list(expected[name].shape)}"
                raise MessageError(f"its {name} is {tensor.dtype} {list(tensor.shape)} and the server's {wanted}")
        if answer.examples < 1 or answer.iterations < 1 or answer.steps < 0:
            raise MessageError(
                f"it trained on {answer.examples} examples for {answer.iterations} iterations with {answer.steps} steps"
            )
        if (answer.counts or answer.means) and not self.outside.exchanges:
            raise MessageError("it tells Python counters or means, which no single client sets here")
        self._try_out(turn, answer)
        return answer

    def _try_out(self, turn: Turn, answer: Answer) -> None:
        """Merges what it tells with one that fits, so that nothing fails at the round's end."""
        try:
            if self._local.mode == "average":
                weight = weight_of(turn.num_examples, self.client_weights)
                check_states(answer.told, self._local.optimizers, turn.client, weight)
            check_forms(forms_of(answer.told), self._forms)
            self._merge_told([*self._told[:1], answer.told])
            self.outside.heard_means(answer.means)
            self.outside.take_counts(answer.counts)
        except Exception as error:  # whatever it is, it is the client's
            raise MessageError(f"what it tells beside its weights cannot be read: {error}") from error
        finally:
            self._local.start_round()
            self.client_algorithm.start_round()

    def _take_in(self, turn: Turn, answer: Answer) -> None:
        self._told.append(answer.told)
        self._forms |= forms_of(answer.told)
        weight, exchange = weight_of(turn.num_examples, self.client_weights), self.exchange
        self._steps.append(answer.steps)
        self._grow([name for name in answer.weights if name in exchange.quiet])
        sent = exchange.server | {name: t.to(self.root_device) for name, t in answer.weights.items()}
        with torch.no_grad():
            self.aggregator.add(turn.client, [sent[name] for name in exchange.shared], weight)
        self.outside.take_means(self.outside.heard_means(answer.means), weight)
        self._counters.add({name: sent[name] for name in exchange.counters}, exchange.server)
        promised = self.aggregator.private or self._line.statistics.privacy is not None
        for name, value in answer.metrics.items() if not promised else ():
            if math.isfinite(value):
                self._metrics.setdefault(name, []).append((weight, value))
        if answer.moved and not self._has_warned:
            self._has_warned = True
            rank_zero_warn(
                f"client {turn.name!r} ended its turn with other settings of its optimizers than it began with; in a"
                " deployment every turn begins with the server's: let schedules count rounds (client_schedule)"
            )

    def _move_schedules(self) -> None:
        """Moves the server's own schedules by one turn's iterations, as the clients' have moved."""
        clock = self.clock
        with warnings.catch_warnings():  # the optimizer's steps have been taken elsewhere
            warnings.filterwarnings("ignore", r"Detected call of `lr_scheduler.step\(\)` before `optimizer.step\(\)`")
            for iteration in range(self.communication_interval if self._schedules else 0):
                clock.iteration = iteration
                if not clock.accumulates and self._schedules is not None:
                    self._schedules.move(iteration)

    def _end_round(self) -> None:
        round = self._module.current_epoch
        self.clock.take_steps(self._steps)
        super()._end_round()
        own = self._own_names()
        means = {
            name: sum(weight * value for weight, value in found) / sum(weight for weight, _ in found)
            for name, found in self._metrics.items()
            if name not in own
        }
        for logger in self._module.trainer.loggers if means else ():
            logger.log_metrics(means, step=round)

    def _own_names(self) -> set[str]:
        """What the server itself logs: no client has a say in it."""
        evaluators = [getattr(callback, "evaluator", None) for callback in self._module.trainer.callbacks]
        columns = [name for one in evaluators if one is not None for name in one.column_names()]
        return {*self.metrics, *columns, *RESERVED}

    def _merge(self) -> None:
        self._merge_told(self._told)

    def _merge_told(self, told: list[list[Any]]) -> None:
        replies = Replies(told)
        self._local.merge(replies, self.root_device)
        self.client_algorithm.merge(replies, self.root_device)
