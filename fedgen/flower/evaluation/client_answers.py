"""Clients' answers to an evaluation and the scores that come of them: the interface, and what all kinds of it share."""

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import torch
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from torch import Tensor
from torch.linalg import LinAlgError

from fedgen.evaluation.names import AGGREGATES
from fedgen.evaluation.panels import Panel
from fedgen.evaluation.plan import EvaluationPlan
from fedgen.evaluation.reference import FittedScores, scaled
from fedgen.evaluation.score_choice import ScoreChoice
from fedgen.evaluation.splits import Split
from fedgen.federated.left_out import EVALUATION, LONGEST_REASON, shorten
from fedgen.flower.client.client_statistics import meta_of, sketch_of
from fedgen.flower.server.connection import UnansweredError
from fedgen.flower.server.remote_data import RemoteClients
from fedgen.flower.wire.answer_forms import RANGES, WEIGHT, Largest, check_form, largest, name_of, range_key
from fedgen.flower.wire.messages import Asked, Item
from fedgen.own_code import rank_zero_warn
from fedgen.scores import Density, FederatedScore
from fedgen.scores.definition import ModelAnswers
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
WorkOut = Callable[[Tensor | Gaussian, bool], FederatedScore]  # of generated features, and whether with errors
Scorer = Callable[[Any, Tensor | Gaussian, bool], FederatedScore]  # the same, of what clients told of them, or None
ROUNDING = 1e-6  # by which sums may exceed their bound


class ClientAnswers(ABC):
    """Clients elsewhere, as an evaluation asks them; subclasses say what the server learns.

    Clients tell once of their features' moments, and then of sketches around the mean of all; of generated images they
    tell their own scores. A client's message, a sum over all, and a sum with noise go the same way.

    Args:
        plan: the evaluation's; aggregates that need more than the server learns are left out of it.
        dim_of: the features of an embedding.
        data: names and numbers of the clients' images, and the connection to them.

    Attributes:
        places: the splits and embeddings that have scores, in order, by name.
        shows_clients: whether single clients are seen: else records tell of all clients' images together.
        moments: what clients are asked for once.
        of_summaries: what clients are asked for of generated images for FID, if anything.

    Raises:
        ValueError: for scores or aggregates that need more than the server learns.
    """

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
        wanted = [(key, choice) for key, choice in self._scored() if not choice.is_of_summaries]
        asked = [(key, self._item("sketch", key, choice)) for key, choice in wanted]
        centres = {str(place): pooled[key].mean for place, (key, _) in enumerate(wanted)}
        for (key, choice), told in zip(wanted, self._ask_once(asked, centres), strict=True):
            found[key, choice.name] = self._fit_kernel(key, choice, told, pooled[key])
        self._scorers = found

    def ask(self, features: Mapping[Key, Tensor]) -> dict[Key, FittedScores]:
        """Ask what clients tell of generated images of these features [m, D], and return the scores that all told give.

        Where a client does not answer, scores are left out with a warning.
        """
        asks: dict[bool, Asked | None] = {True: self.of_summaries, False: "kid"}  # by whether a score is of summaries
        wanted = [(ask, key, choice) for key, choice in self._scored() if (ask := asks[choice.is_of_summaries])]
        asked = [(key, self._item(ask, key, choice)) for ask, key, choice in wanted]
        told: dict[tuple[Key, str], Any] = {}
        try:
            answers = self._ask_now(asked, features) if asked else []
            told = {(key, choice.name): one for (_, key, choice), one in zip(wanted, answers, strict=True)}
        except MessageError as error:
            self._leave_out({f"{c.name}_avg" if c.is_of_summaries else c.name for *_, c in wanted}, error)
        scores: dict[Key, list[tuple[ScoreChoice, WorkOut]]] = {key: [] for key in self.places}
        for key, choice in self._scored():
            place = key, choice.name
            if choice.is_of_summaries or place in told:  # the others need what was asked
                scores[key].append((choice, partial(self._scorers[place], told.get(place))))
        return {key: ToldReference(key, found) for key, found in scores.items()}

    def remarks(self, place: Key, score: str) -> list[str]:
        """Return what a reader of a score must know of what clients told."""
        return []

    @property
    def settings(self) -> dict[str, Any]:
        """Entries of every record's settings that say how clients answer."""
        return {}

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
    """Leaves aggregates but those shown out of a plan, as they need single clients' scores, and says so.

    Raises ValueError for some that were asked for, and for a client with too few images for its covariance.
    """
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
                    if count <= choice.options.get("ddof", 0):
                        raise ValueError(
                            f"client {name!r} has {count} image(s), too few for {choice.name}: leave it out"
                        )


def form_of_answer(item: Item, panel: Panel, dim: int, sent: Tensor | None) -> Message | None:
    """An answer of nothing to "sketch", "kid" or "private-sums"; None for "statistics", which has two forms.

    `sent` went with the question: a sketch's centre [D], or features [m, D] of generated images.
    """
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
    meta = {**meta_of(item), **made, "estimator": choice.options["estimator"]}
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


class ToldReference:
    """Clients in one embedding and split, known by what they tell; of `scores` those that they answered, in order."""

    def __init__(self, place: tuple[str, str], scores: Sequence[tuple[ScoreChoice, WorkOut]]) -> None:
        self._place, self._scores = place, scores

    def score(
        self,
        generated: Tensor | Gaussian,
        errors: bool = True,
        density: Density | None = None,
        only: Sequence[str] | None = None,
        labels: Tensor | None = None,
        answers: ModelAnswers | None = None,
    ) -> list[FederatedScore]:
        """Score as `Reference.score` does, of the generated images that clients were asked about.

        What they left out is missing; a score that cannot be worked out of what they tell is so with a warning.
        """
        found = []
        for choice, work_out in self._scores:
            if only is None or choice.name in only:
                score = self._worked_out(choice, work_out, generated, errors)
                if score is not None:
                    found.append(replace(scaled(score, choice.scale), name=choice.name))
        return found

    def _worked_out(
        self, choice: ScoreChoice, work_out: WorkOut, generated: Tensor | Gaussian, errors: bool
    ) -> FederatedScore | None:
        try:
            score = work_out(generated, errors)
            if not all(map(math.isfinite, score.values.values())):
                raise ArithmeticError("it is not finite")
        except (ArithmeticError, LinAlgError) as error:
            rank_zero_warn(
                f"{'/'.join(self._place)}: {choice.name} is left out of this evaluation: it cannot be worked out of"
                f" what clients tell ({str(error).strip()})"
            )
            return None
        return score


def moments_of(choice: ScoreChoice, total: Message, pooled: Gaussian) -> KernelMoments | FourierMoments:
    """Return the kernel means that the sum of the clients' sketches for a score tells."""
    sketch = sketch_of(choice, pooled.dim, pooled.mean)
    return sketch.read(total) if isinstance(sketch, FourierSketch) else sketch.read(total, pooled)
