"""Clients' answers to an evaluation and the scores that come of them: the interface, and what all kinds of it share."""

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from torch import Tensor
from torch.linalg import LinAlgError

from fedgen.evaluation.names import AGGREGATES
from fedgen.evaluation.panels import Panel
from fedgen.evaluation.plan import EvaluationPlan
from fedgen.evaluation.reference import Reference
from fedgen.evaluation.score_choice import ScoreChoice
from fedgen.evaluation.splits import Split
from fedgen.federated.left_out import EVALUATION, LONGEST_REASON, shorten
from fedgen.flower.client.client_statistics import meta_of, sketch_of
from fedgen.flower.server.connection import UnansweredError
from fedgen.flower.server.remote_data import RemoteClients
from fedgen.flower.wire.answer_forms import RANGES, WEIGHT, Largest, check_form, largest, name_of, range_key
from fedgen.flower.wire.messages import Asked, Item
from fedgen.own_code import rank_zero_warn
from fedgen.scores import FederatedScore
from fedgen.scores.aggregate import resolve_weights
from fedgen.scores.definition import GeneratedSet
from fedgen.scores.frechet.frechet import FrechetScore
from fedgen.scores.kernel.federated_kid import kernel_label
from fedgen.statistics import FourierSketch, Gaussian, Privacy, private_sums
from fedgen.statistics.gaussian import is_covariance
from fedgen.statistics.sketches import FourierMoments, KernelMoments
from fedgen.statistics.statistic_messages import KINDS, Message, MessageError, gaussian_from_message

Key = tuple[str, str]  # split and embedding
Check = Callable[[int, int, bytes], Message]  # of an item's place and a client's number
DimOf = Callable[[Split, Panel], int]  # features D of an embedding
Wanted = tuple[Key, Item]
# of what clients told of generated images, or None, their features, and whether with errors
Scorer = Callable[[Any, Tensor | Gaussian, bool], FederatedScore]
ROUNDING = 1e-6  # by which sums may exceed their bound


class ClientAnswers(ABC):
    """Clients elsewhere, as an evaluation asks them; subclasses say what the server learns."""

    # once of their features' moments, then of sketches around the mean of all, and their own scores of generated images

    shows_clients: ClassVar[bool] = False
    moments: ClassVar[Asked]
    of_summaries: ClassVar[Asked | None] = None
    _promise = ""  # the privacy of sums with noise, as JSON

    def __init__(self, plan: EvaluationPlan, dim_of: DimOf, data: RemoteClients) -> None:
        self._plan, self._dim_of, self._data = plan, dim_of, data
        self._ranges: dict[Key, dict[str, float]] = {}
        self._scorers: dict[tuple[Key, str], Scorer] = {}  # by place and score
        self.places = plan.places

    @abstractmethod
    def look(self, features: Mapping[Key, Tensor]) -> None:
        """Note the features [m, D] of generated images, from which the ranges of answers follow."""

    @abstractmethod
    def _ask_once(self, asked: Sequence[Wanted], tensors: Mapping[str, Tensor]) -> list[Any]:
        """Return what clients tell of each item, which does not change in a run."""

    def _ask_now(self, asked: Sequence[Wanted], features: Mapping[Key, Tensor]) -> list[Any]:
        """Return what clients tell of each item about generated images of these features."""
        raise NotImplementedError

    @abstractmethod
    def _fit(self, key: Key, told: Any) -> tuple[Gaussian, dict[str, Scorer]]:
        """Return the summary of all images of a place, and the scores that follow from the clients' moments."""

    def _fit_kernel(self, key: Key, choice: ScoreChoice, told: Any, pooled: Gaussian) -> Scorer:
        """Return the score that follows from the clients' sketches around the mean of all images."""
        raise NotImplementedError

    def prepare(self) -> None:
        """Ask what clients tell once, unless it is there; MessageError if a client does not tell it."""
        if self._scorers:
            return
        asked = [(key, self._item(self.moments, key)) for key in self.places]
        pooled: dict[Key, Gaussian] = {}
        found: dict[tuple[Key, str], Scorer] = {}
        for key, told in zip(self.places, self._ask_once(asked, {}), strict=True):
            pooled[key], scorers = self._fit(key, told)
            found |= {(key, name): scorer for name, scorer in scorers.items()}
        wanted = [(key, choice) for key, choice in self._scored() if choice.needs != "summaries"]
        asked = [(key, self._item("sketch", key, choice)) for key, choice in wanted]
        centres = {str(place): pooled[key].mean for place, (key, _) in enumerate(wanted)}
        for (key, choice), told in zip(wanted, self._ask_once(asked, centres), strict=True):
            found[key, choice.name] = self._fit_kernel(key, choice, told, pooled[key])
        self._scorers = found

    def ask(self, features: Mapping[Key, Tensor]) -> dict[Key, Reference]:
        """Return the scores that clients' answers about generated images give; without an answer some are left out."""
        asks: dict[bool, Asked | None] = {True: self.of_summaries, False: "kid"}  # by whether a score is of summaries
        wanted = [(ask, key, choice) for key, choice in self._scored() if (ask := asks[choice.needs == "summaries"])]
        asked = [(key, self._item(ask, key, choice)) for ask, key, choice in wanted]
        told: dict[tuple[Key, str], Any] = {}
        try:
            answers = self._ask_now(asked, features) if asked else []
            told = {(key, choice.name): one for (_, key, choice), one in zip(wanted, answers, strict=True)}
        except MessageError as error:
            self._leave_out({f"{c.name}_avg" if c.needs == "summaries" else c.name for *_, c in wanted}, error)
        fitted: dict[Key, list[tuple[list[ScoreChoice], ToldScore]]] = {key: [] for key in self.places}
        for key, choice in self._scored():
            place = key, choice.name
            if choice.needs == "summaries" or place in told:  # the others need what was asked
                score = ToldScore(key, choice, partial(self._scorers[place], told.get(place)))
                fitted[key].append(([choice], score))
        return {
            key: Reference.of_fitted(found, self._weights(key), self._plan.aggregates) for key, found in fitted.items()
        }

    def remarks(self, place: Key, score: str) -> list[str]:
        """Return what a reader of a score must know of what clients told."""
        return []

    @property
    def settings(self) -> dict[str, Any]:
        """Entries of every record's settings that say how clients answer."""
        return {}

    def _weights(self, key: Key) -> Tensor:
        """The clients' weights float64 [K] in a place."""
        return resolve_weights("examples", self.places[key][0].counts)

    def _choices(self, key: Key) -> list[ScoreChoice]:
        """The scores of a place."""
        return self._plan.choices(*self.places[key])

    def _scored(self) -> list[tuple[Key, ScoreChoice]]:
        """The scores of all places."""
        return [(key, choice) for key in self.places for choice in self._choices(key)]

    def _item(self, ask: Asked, key: Key, choice: ScoreChoice | None = None) -> Item:
        split, panel = self.places[key]
        embedding, score = panel.embedding, choice.name if choice else ""
        return Item(ask, split.name, embedding.name, embedding.fingerprint(), score, self._promise)

    def _largest(self, key: Key, item: Item, most: int) -> Largest:
        """The largest entries of an answer about at most so many images."""
        kernels = {choice.name: choice.definition.kernel for choice in self.places[key][1].choices}
        kernel = kernels.get(item.score)
        return largest(item.ask, kernel is not None and kernel.is_bounded, self._ranges[key], most)

    def _leave_out(self, names: set[str], error: MessageError) -> None:
        """Says which scores an evaluation goes without, and takes down because of whom."""
        why = shorten(str(error), LONGEST_REASON)
        rank_zero_warn(f"{' and '.join(sorted(names))} are left out of this evaluation: {why}")
        if isinstance(error, UnansweredError):
            self._data.note_left_out(EVALUATION, error.client, error.why)

    def _checker(self, asked: Sequence[Wanted], tensors: Mapping[str, Tensor]) -> Check:
        """Reads what a client tells of the item at a place, or raises MessageError."""
        forms = []
        for place, (key, item) in enumerate(asked):
            dim = self._dim_of(*self.places[key])
            forms.append((dim, form_of_answer(item, self.places[key][1], dim, tensors.get(str(place)))))

        def check(place: int, client: int, data: bytes) -> Message:
            (key, item), (dim, form) = asked[place], forms[place]
            count = self.places[key][0].counts[client]
            message = Message.from_bytes(data)
            check_answer(message, item, form, dim, count, self._largest(key, item, count))
            return message

        return check

    def _ask_each(
        self, asked: Sequence[Wanted], tensors: Mapping[str, Tensor], check: Check | None = None
    ) -> list[list[Message]]:
        """For each item every client's message; read by `check`, if it has been made already."""
        if not asked:
            return []
        items = [item for _, item in asked]
        answers = self._data.ask_all(items, tensors)
        found: list[list[Message]] = [[] for _ in items]
        check = check or self._checker(asked, tensors)
        for client, name in enumerate(self._plan.splits[0].client_names):
            answer = answers[client]
            if isinstance(answer, str) or answer.failure or len(answer.messages) != len(items):
                why = answer if isinstance(answer, str) else answer.failure or "it answers other questions"
                raise UnansweredError(client, name, why)
            for place, data in enumerate(answer.messages):
                try:
                    found[place].append(check(place, client, data))
                except Exception as error:  # whatever is wrong with it, it is the client's
                    raise UnansweredError(client, name, str(error) or type(error).__name__) from error
        return found


def is_frechet(choice: ScoreChoice) -> bool:
    """Whether a score is the Fréchet distance itself: sums over all clients give its `all`."""
    return type(choice.definition) is FrechetScore  # what a subclass makes of clients' summaries is its own


def hide_clients(plan: EvaluationPlan, shown: Sequence[str], why: str) -> None:
    """Leaves aggregates but those shown out of a plan; ValueError if one was asked for, or a client is small."""
    left_out = [name for name in plan.aggregates if name not in shown]
    if asked := [name for name in left_out if name not in AGGREGATES]:
        raise ValueError(
            f"aggregate {asked[0]} needs single clients' scores, which {why}: leave it out of the evaluation's"
            f" `aggregates`; there are {' and '.join(shown)}"
        )
    plan.aggregates = tuple(name for name in plan.aggregates if name in shown)
    rank_zero_info(f"{' and '.join(left_out)} are left out: they need single clients' scores, which {why}")
    for split in plan.splits:
        for panel in plan.panels:
            for choice in plan.choices(split, panel):
                for count, name in zip(split.counts, split.client_names):
                    if count <= choice.definition.options.get("ddof", 0):
                        raise ValueError(
                            f"client {name!r} has {count} image(s), too few for {choice.name}: leave it out"
                        )


def form_of_answer(item: Item, panel: Panel, dim: int, sent: Tensor | None) -> Message | None:
    """An answer of nothing to an item, by what was sent with it (centre [D] or features); None for "statistics"."""
    if item.ask == "statistics":
        return None
    if item.ask == "private-sums":
        privacy = Privacy(**json.loads(item.promise))
        return private_sums(torch.zeros(1, dim), privacy, seed=0, split=item.split, embedding=item.fingerprint)
    choice = next(one for one in panel.choices if one.name == item.score)
    if item.ask == "sketch":
        return sketch_of(choice, dim, sent).message(torch.zeros(1, dim), **meta_of(item))
    assert sent is not None
    made = {"kernel": kernel_label(choice.kernel, dim), "dim": str(dim), "generated": str(len(sent))}
    meta = {**meta_of(item), **made, "estimator": choice.definition.options["estimator"]}
    return Message("kid", {name: torch.zeros((), dtype=torch.float64) for name in KINDS["kid"]}, meta)


def check_answer(answer: Message, item: Item, form: Message | None, dim: int, count: int, largest: Largest) -> None:
    """Refuses an answer that is of other images, features or settings than were asked for, or of absurd numbers."""
    if form is not None:
        check_form(answer, form, float(answer.tensors.get("count", torch.zeros(()))))
    elif dict(answer.meta) != meta_of(item):
        raise MessageError(f"it answers of {dict(answer.meta)}, not of {meta_of(item)}")
    else:
        _check_summary(answer, dim, count)
    if abs(float(answer.tensors["count"]) - count) > 0.5:
        raise MessageError(f"it tells of {float(answer.tensors['count']):g} images and has {count}")
    if (clients := float(answer.tensors.get("clients", torch.ones(())))) != 1:
        raise MessageError(f"it tells of {clients:g} clients and is one")
    _check_size(answer, item, largest)


def _check_summary(answer: Message, dim: int, count: int) -> None:
    """Refuses what is no summary of so many images' features."""
    found = gaussian_from_message(answer)
    if found.dim != dim:
        raise MessageError(f"it tells of {found.dim} features, and the embedding has {dim}")
    if answer.kind == "sums":
        raise MessageError("it tells sums where its summary was asked for")
    if found.deviations is not None and len(found.deviations) > count:
        raise MessageError(f"it tells the deviations of {len(found.deviations)} images and has {count}")
    if found.scatter is not None and not is_covariance(found.scatter, slack=ROUNDING):
        raise MessageError("its scatter is not symmetric, or has a negative variance")


def _check_size(answer: Message, item: Item, largest: Largest) -> None:
    for name, tensor in answer.tensors.items():
        if name not in largest:
            raise MessageError(f"it answers with {name!r}, which nobody asked for")
        found = float(tensor.abs().max()) if tensor.numel() and name not in WEIGHT else 0.0
        if found > largest[name] * (1 + ROUNDING):
            statistic = name_of(item.ask, name)
            remedy = (
                f"; if it is right, raise {range_key(statistic)} in the run's config" if statistic in RANGES else ""
            )
            raise MessageError(f"its {name} reaches {found:g}, and no more than {largest[name]:g} is believed{remedy}")


@dataclass(frozen=True, eq=False)
class ToldScore:
    """A score of what clients tell of generated images; where it cannot be worked out it warns, and gives none."""

    place: Key
    choice: ScoreChoice
    work_out: Callable[[Tensor | Gaussian, bool], FederatedScore]  # of generated features, and whether with errors

    def score(self, generated: GeneratedSet, errors: bool) -> Mapping[str, FederatedScore]:
        try:
            score = self.work_out(generated.features, errors)
            if not all(map(math.isfinite, score.values.values())):
                raise ArithmeticError("it is not finite")
        except (ArithmeticError, LinAlgError) as error:
            rank_zero_warn(
                f"{'/'.join(self.place)}: {self.choice.name} is left out of this evaluation: it cannot be worked out of"
                f" what clients tell ({str(error).strip()})"
            )
            return {}
        return {self.choice.kind: score}


def moments_of(choice: ScoreChoice, total: Message, pooled: Gaussian) -> KernelMoments | FourierMoments:
    """Return the kernel means that the sum of the clients' sketches for a score tells."""
    sketch = sketch_of(choice, pooled.dim, pooled.mean)
    return sketch.read(total) if isinstance(sketch, FourierSketch) else sketch.read(total, pooled)
