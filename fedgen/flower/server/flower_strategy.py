"""The server's side of FedAvg: rounds, averages and checkpoints as ever, with turns that clients elsewhere take."""

import math
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from flwr.app import MessageType
from lightning.pytorch import Trainer
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch import Tensor

from fedgen.clients.turn import Turn
from fedgen.data.optional_attributes import optional
from fedgen.federated import FedAvgStrategy
from fedgen.federated.client_state.optimizer_state import OptimizerContents
from fedgen.federated.left_out import LONGEST_REASON, shorten
from fedgen.federated.local_training import Driver
from fedgen.federated.round import Round
from fedgen.federated.trainer_patches import StepSchedules, TurnClock
from fedgen.flower.server.connection import Connection, require
from fedgen.flower.wire.flower_records import Silence
from fedgen.flower.wire.messages import Answer, Task
from fedgen.io.tensor_files import bytes_of
from fedgen.models.optional_hooks import FederatedModule, ScoringCallback
from fedgen.own_code import rank_zero_warn
from fedgen.ranks import Name, Ranks
from fedgen.statistics.statistic_messages import MessageError

# what servers log, whether or not this one does: whoever reads the logs takes it for theirs
RESERVED = {"epoch", "step", "epsilon", "delta", "statistics_epsilon", "statistics_delta", "clients_answered"}
MOST_STEPS = 2**31  # of optimizers in a turn: the sum over rounds is a count, too
PARTS = 3  # of an optimizer's averaged state: sums, their weights, and what is not averaged
# what torch's optimizers take roots of, or count by
NEVER_NEGATIVE = {"exp_avg_sq", "max_exp_avg_sq", "square_avg", "acc_delta", "exp_inf", "sum", "step"}
Form = tuple[tuple[int, ...], torch.dtype] | None  # of a tensor that is summed; None of a value that is not


class FlowerStrategy(FedAvgStrategy):
    """FedAvg over clients that Flower reaches, with the model of `FedAvgStrategy` with the same arguments and seed."""

    # clients that do not answer in time, or not as asked, are left out; a round in which nobody answers is asked again;
    # settings of optimizers and schedulers are the server's own in every round

    def __init__(self, _connection: Connection | None = None, **settings: Any) -> None:
        super().__init__(**settings)
        self._connection = require(_connection, type(self).__name__)

    def _drive(self, round: Round, schedules: StepSchedules) -> Driver:
        if self.aggregator.private and self.aggregator.noise != "secret":
            name = type(self.aggregator).__name__
            raise MisconfigurationException(
                f"{name} draws its noise from the recipe's seed, and every client has the recipe: who knows the noise"
                " takes it off, so the logged epsilon would hold for nobody. Pass noise='secret' to deploy it"
            )
        promised = self.aggregator.private or self._connection.privacy is not None
        if promised and self.aggregator.needs_losses:
            raise MisconfigurationException(
                f"{type(self.aggregator).__name__} has each client tell its loss, which has no noise, and this run"
                " promises privacy (statistics-epsilon): leave one of the two out"
            )
        return RemoteRounds(round, self.clock, schedules, self._answers, self._module.trainer, promised)

    def _answers(self, round: int) -> dict[int, Answer | str]:
        """Return the answers of a round's cohort; none where nobody is drawn."""
        cohort = list(self._drawn(round))
        return self._ask_until_heard(cohort, round) if cohort else {}

    def _drawn(self, round: int) -> Counter[int]:
        """The clients of a round, and how often each was drawn."""
        return Counter(self.sample_cohort(len(self._connection.clients), round))

    def _ask_until_heard(self, cohort: list[int], round: int) -> dict[int, Answer | str]:
        """The cohort's answers; a server whose line was cut goes on, and no round passes without clients."""

        def say(answers: dict[int, Answer | str]) -> str:
            why = sorted({shorten(str(answer), LONGEST_REASON) for answer in answers.values()})
            return f"nothing came from any client of round {round} ({'; '.join(why)}); it is asked for again"

        return self._connection.retry_until_reply(
            lambda: self._ask(cohort, round),
            lambda answers: not all(isinstance(answer, Silence) for answer in answers.values()),
            say,
        )

    def _ask(self, cohort: list[int], round: int) -> dict[int, Answer | str]:
        """Return each answer of the cohort's clients, or why there is none."""
        return self._connection.send(self._tasks(cohort, round), MessageType.TRAIN, Answer, f"round {round}")

    def _tasks(self, cohort: list[int], round: int) -> dict[int, Task]:
        names, personal = self.exchange.first_names, self.exchange.personal
        round_state, at_server = self.round, tuple(optional(self._module, FederatedModule, "server_only"))
        weights = {
            name: tensor
            for name, tensor in self._module.state_dict().items()
            if names.get(name, name) not in personal and not name.startswith(at_server)
        }
        round_state.state_bytes = bytes_of(weights.values())
        fingerprints = dict(optional(self._module, FederatedModule, "fingerprints"))
        shares = self._client_shares(self._module.trainer) or []
        data: Any = self._module.trainer.datamodule
        times = self._drawn(round)
        local, algorithm = round_state.local.server_state(), round_state.algorithm.server_state()
        return {
            client: Task(
                weights=weights,
                round=round,
                client=client,
                clients=len(shares),
                share=shares[client],
                times=times[client],
                classes=data.classes,
                local=local,
                algorithm=algorithm,
                fingerprints=fingerprints,
                iterations=self._memory.iterations.get(client, 0),
                steps=self.clock.server_steps,
                rounds=max(0, self.clock.rounds),
                fixed=round_state.settings.fixed,
                counts=round_state.messages.server_counts,
                means=round_state.messages.server_means,
            )
            for client in cohort
        }


class RemoteRounds:
    """Drives a server's rounds from clients' answers: asked for as a round begins, taken in one by one, then merged."""

    # `ask` returns each client's answer or why there is none; with `promised` no client's own value is logged

    def __init__(
        self,
        round: Round,
        clock: TurnClock,
        schedules: StepSchedules,
        ask: Callable[[int], dict[int, Answer | str]],
        trainer: Trainer,
        promised: bool,
    ) -> None:
        self._round, self._clock, self._schedules, self._ask = round, clock, schedules, ask
        self._trainer, self._promised = trainer, promised
        self._answers: dict[int, Answer | str] = {}
        self._told: list[list[Any]] = []
        self._forms: dict[tuple[int, Any], Form] = {}  # of what they tell
        self._has_warned = False
        self._steps: list[int] = []  # of the round's turns
        self._metrics: dict[str, list[tuple[float, float]]] = {}

    def begin(self, number: int, clients: int, cohort: int, folder: Path) -> None:
        """Opens a round and has its turns taken."""
        self._round.begin(number, clients, cohort, folder)
        self._told, self._forms, self._metrics, self._steps = [], {}, {}, []
        self._answers = self._ask(number)

    def take(self, turn: Turn, train: Callable[[], Any]) -> None:
        """Takes in a client's answer; one that cannot be taken in leaves the client out."""
        taken = None
        with self._round.attempt(turn):
            answer = self._checked(turn, self._answers.pop(turn.client))
            self._take_in(turn, answer)
            taken = answer
        if taken is not None:
            self._round.memory.complete(turn.client, taken.iterations)
            self._round.call_turn_end_hook(completed=True)

    def _checked(self, turn: Turn, answer: Answer | str) -> Answer:
        """The answer, if it can be taken in."""
        if isinstance(answer, str) or answer.failure:
            raise MessageError(answer if isinstance(answer, str) else answer.failure)
        answer = self._restored(answer)
        exchange, fixed = self._round.exchange, self._round.settings.fixed
        expected = exchange.shared if fixed else exchange.shared | exchange.quiet | exchange.counters
        needed = exchange.shared.keys() if fixed else exchange.trained
        if wrong := {*answer.weights.keys() - expected.keys(), *needed - answer.weights.keys()}:
            raise MessageError(f"its weights have other names than the server's, such as {sorted(wrong)[0]}")
        for name, tensor in answer.weights.items():
            if (tensor.shape, tensor.dtype) != (expected[name].shape, expected[name].dtype):
                wanted = f"{expected[name].dtype} {list(expected[name].shape)}"
                raise MessageError(f"its {name} is {tensor.dtype} {list(tensor.shape)} and the server's {wanted}")
            if tensor.is_floating_point() and not math.isfinite(float(torch.linalg.vector_norm(tensor.float()))):
                raise MessageError(f"its {name} is so large that its norm is infinite")
        if answer.examples < 1 or answer.iterations < 1 or not 0 <= answer.steps <= MOST_STEPS:
            raise MessageError(
                f"it trained on {answer.examples} examples for {answer.iterations} iterations with {answer.steps} steps"
            )
        if (answer.counts or answer.means) and not self._round.outside.exchanges:
            raise MessageError("it tells Python counters or means, which no single client sets here")
        self._round.model.aggregator.take_loss(turn.client, answer.loss)
        self._try_out(turn, answer)
        return answer

    def _restored(self, answer: Answer) -> Answer:
        """The answer with parameters in place of their compressed updates, if there are any."""
        try:
            received = self._round.compressed.receive_all(answer.compressed)
        except (ValueError, FloatingPointError) as error:
            raise MessageError(f"its compressed update cannot be taken in: {error}") from error
        if twice := received.keys() & answer.weights.keys():
            raise MessageError(f"it sends {sorted(twice)[0]} twice, compressed and whole")
        return replace(answer, weights={**answer.weights, **received}, compressed={})

    def _try_out(self, turn: Turn, answer: Answer) -> None:
        """Merges what it tells with one that fits, so that nothing fails at the round's end."""
        local = self._round.local
        try:
            if local.mode == "average":
                weight = self._round.weight_of(turn)
                check_states(answer.told, local.contents, turn.client, weight)
            for key, form in forms_of(answer.told).items():
                if (other := self._forms.get(key, form)) != form:
                    raise MessageError(f"its {key[1]!r} is {form} and others' {other}")
            self._round.merge(Replies([*self._told[:1], answer.told]))
            self._round.messages.received_means(answer.means)
            self._round.messages.take_counts(answer.counts)
        except Exception as error:  # whatever it is, it is the client's
            raise MessageError(f"what it tells beside its weights cannot be read: {error}") from error
        finally:
            local.start_round()
            self._round.algorithm.start_round()

    def _take_in(self, turn: Turn, answer: Answer) -> None:
        round, exchange = self._round, self._round.exchange
        self._told.append(answer.told)
        self._forms |= forms_of(answer.told)
        weight = round.weight_of(turn)
        self._steps.append(answer.steps)
        round.model.grow([name for name in answer.weights if name in exchange.quiet])
        sent = exchange.server | {name: t.to(round.device) for name, t in answer.weights.items()}
        counters = {name: sent[name] for name in exchange.counters}
        round.add(turn.client, [sent[name] for name in exchange.shared], counters, weight)
        messages = round.messages
        messages.take_means(messages.received_means(answer.means), weight)
        for name, value in answer.metrics.items() if not self._promised else ():
            if math.isfinite(value):
                self._metrics.setdefault(name, []).append((weight, value))
        if answer.moved and not self._has_warned:
            self._has_warned = True
            rank_zero_warn(
                f"client {turn.name!r} ended its turn with other settings of its optimizers than it began with; in a"
                " deployment every turn begins with the server's: let schedules count rounds (client_schedule)"
            )

    def close(self) -> None:
        """Makes the server's new model, and logs the clients' means."""
        self._clock.take_steps(self._steps)
        self._round.close(Replies(self._told), self._move_schedules)
        own = self._own_names()
        means = {
            name: sum(weight * value for weight, value in found) / sum(weight for weight, _ in found)
            for name, found in self._metrics.items()
            if name not in own
        }
        for logger in self._trainer.loggers if means else ():
            logger.log_metrics(means, step=self._round.number)

    def _move_schedules(self) -> None:
        """Moves the server's own schedules by one turn's iterations, as the clients' have moved."""
        clock, schedules = self._clock, self._schedules
        with warnings.catch_warnings():  # the optimizer's steps have been taken elsewhere
            warnings.filterwarnings("ignore", r"Detected call of `lr_scheduler.step\(\)` before `optimizer.step\(\)`")
            for iteration in range(clock.interval if schedules else 0):
                clock.iteration = iteration
                if not clock.accumulates:
                    schedules.move(iteration)

    def _own_names(self) -> set[str]:
        """Return the values that the server itself logs: no client has a say in them."""
        trainer: Any = self._trainer
        evaluators = [optional(callback, ScoringCallback, "evaluator") for callback in trainer.callbacks]
        columns = [name for one in evaluators if one is not None for name in one.column_names()]
        return {*trainer.strategy.metrics, *columns, *RESERVED}


class Replies(Ranks):
    """Clients as ranks of a job, with the server as rank 0: what their `Recorder`s noted merges as ever."""

    def __init__(self, told: Sequence[Sequence[Any]]) -> None:
        self.size, self.rank = 1 + len(told), 0
        self._told, self._next = told, 0

    def gather(self, value: Any) -> list[Any]:
        return [value, *self._heard()]

    def add(self, tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
        named = self.add_named(dict(enumerate(tensors)), device, [dict(enumerate(told)) for told in self._heard()])
        return [named[place] for place in range(len(tensors))]

    def add_named(
        self, tensors: Mapping[Name, Tensor], device: torch.device, heard: Sequence[Mapping[Name, Tensor]] | None = None
    ) -> dict[Name, Tensor]:
        total = {name: tensor.to(device) for name, tensor in tensors.items()}
        for told in self._heard() if heard is None else heard:
            for name, tensor in told.items():
                if name in total and (total[name].shape, total[name].dtype) != (tensor.shape, tensor.dtype):
                    raise MessageError(
                        f"{name!r} is {tensor.dtype} {list(tensor.shape)} of one client and"
                        f" {total[name].dtype} {list(total[name].shape)} of others"
                    )
                total[name] = total[name] + tensor.to(device) if name in total else tensor.to(device)
        return total

    def _heard(self) -> list[Any]:
        place, self._next = self._next, self._next + 1
        if any(len(told) <= place for told in self._told):
            raise MessageError("a client tells less than its algorithm has to; it runs another recipe or release")
        return [told[place] for told in self._told]


def check_states(told: Sequence[Any], optimizers: Sequence[OptimizerContents], client: int, weight: float) -> None:
    """Refuses averaged contents of optimizers (`LocalState.merge`) that no optimizer has, or of another weight."""
    for index, optimizer in enumerate(optimizers):
        sums, totals, (first, beside, rest) = told[PARTS * index : PARTS * (index + 1)]
        doubled = [at for at in rest.keys() & sums if type(rest[at]) is not float]  # whose mean is a number again
        if first != client or sums.keys() != totals.keys() or not set(beside) <= sums.keys() or doubled:
            raise MessageError("its optimizer states are not as it was asked for them")
        for place, name in [*sums, *rest]:
            if not optimizer.has_places([place]) or type(name) is not str:
                raise MessageError(f"its optimizer state {name!r} is of a parameter that the model has not")
        for (place, name), tensor in sums.items():
            is_number = type(rest.get((place, name))) is float and (tensor.shape, tensor.dtype) == ((), torch.float64)
            if not is_number and not _fits(tensor, number := optimizer.parameter_at(place), optimizer.parameters):
                shape = None if number is None else list(optimizer.parameters[number].shape)
                raise MessageError(f"its {name!r} is {tensor.dtype} {list(tensor.shape)}, of a parameter of {shape}")
            if name in NEVER_NEGATIVE and bool((tensor < 0).any()):
                raise MessageError(f"its optimizer state {name!r} is negative")
        for (_, name), total in totals.items():
            if float(total) != weight:
                raise MessageError(f"its optimizer state {name!r} weighs {float(total):g} and should weigh {weight:g}")
        if not all(map(_is_plain, rest.values())):
            raise MessageError("its optimizer states are neither tensors nor numbers")


def _fits(tensor: Tensor, place: int | None, parameters: Sequence[Tensor]) -> bool:
    """Whether it is of a parameter's shape, of some of its axes, or one number; or, of the first, flat over all."""
    if place is None or tensor.dtype not in ((own := parameters[place]).dtype, torch.float32):
        return False
    factored = tensor.ndim == own.ndim and all(
        size in (1, of) for size, of in zip(tensor.shape, own.shape, strict=True)
    )
    flat = place == 0 and tensor.shape == (sum(parameter.numel() for parameter in parameters),)
    return tensor.numel() == 1 or factored or flat


def forms_of(told: Sequence[Any]) -> dict[tuple[int, Any], Form]:
    """The form of every tensor that is summed over clients, by its place and name; others' must be of the same."""
    found: dict[tuple[int, Any], Form] = {}
    for place, part in enumerate(told):
        if isinstance(part, tuple) and len(part) == PARTS and isinstance(part[-1], Mapping):
            found |= {(place + 1 - PARTS, name): None for name in part[-1]}
        named = part if isinstance(part, Mapping) else dict(enumerate(part)) if isinstance(part, list) else {}
        found |= {(place, name): (tuple(t.shape), t.dtype) for name, t in named.items() if isinstance(t, Tensor)}
    return found


def _is_plain(value: Any) -> bool:
    """Whether a value is one that optimizers keep: a number, a flag, nothing, whole numbers, or a list of tensors."""
    if isinstance(value, list | tuple):
        return all(isinstance(one, Tensor) or (_is_plain(one) and not isinstance(one, list | tuple)) for one in value)
    if isinstance(value, Tensor):
        return not value.is_floating_point() and not value.is_complex()
    return value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value))
