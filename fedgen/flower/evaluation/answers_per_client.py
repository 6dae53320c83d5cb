"""Each client's own answers, in the open: all aggregates of all scores that clients can answer for."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from fedgen.evaluation.plan import EvaluationPlan
from fedgen.evaluation.reference import FittedScores
from fedgen.evaluation.score_choice import ScoreChoice, with_further
from fedgen.flower.evaluation.client_answers import ClientAnswers, DimOf, Key
from fedgen.flower.evaluation.kept_answers import KeptAnswers
from fedgen.flower.evaluation.told_reference import ToldReference, WorkOut, moments_of
from fedgen.flower.server.remote_data import RemoteClients
from fedgen.flower.wire.messages import Item
from fedgen.flower.wire.ranges import BELIEVED
from fedgen.scores import FederatedScore, FrechetReference
from fedgen.scores.aggregate import combine
from fedgen.scores.definition import ClientSide, FittedScore, GeneratedSet
from fedgen.scores.kernel.federated_kid import kid_from_messages
from fedgen.statistics import Gaussian, add, gaussian_from_message
from fedgen.statistics.sketches import FourierMoments, KernelMoments
from fedgen.statistics.statistic_messages import Message, MessageError


class AnswersPerClient(ClientAnswers):
    """Clients of whom each tells its own: summaries and sketches, once in a run, and its own KID of generated images.

    Args:
        data: as for `ClientAnswers`.
        folder: of the run, which keeps what clients tell once; None keeps nothing.
        plan: as for `ClientAnswers`.
        dim_of: likewise.
    """

    def __init__(self, data: RemoteClients, folder: Path | None, plan: EvaluationPlan, dim_of: DimOf) -> None:
        super().__init__(plan, dim_of, data)
        self._kept = KeptAnswers(folder)
        self._fitted: dict[Key, dict[str, FittedScore]] = {}  # by place and score of summaries
        self._moments: dict[tuple[Key, str], KernelMoments | FourierMoments] = {}  # of scores of kernel means

    def look(self, features: Mapping[Key, Tensor]) -> None:
        """Notes the features: ranges follow from the largest so far."""
        for key, part in features.items():
            found = self._data.connection.statistics.ranges.for_features(part, BELIEVED)
            before = self._ranges.get(key, {})
            self._ranges[key] = {name: max(value, before.get(name, value)) for name, value in found.items()}

    def prepare(self) -> None:
        if self._fitted:
            return
        asked = [(key, self._item("statistics", key)) for key in self.places]
        fitted, pooled = {}, {}
        for key, told in zip(self.places, self._ask_once(asked, {}), strict=True):
            summaries = [gaussian_from_message(message) for message in told]
            pooled[key] = FrechetReference.from_summaries(summaries, "examples", 0).pooled
            clients, choices = ClientSide(summaries, "examples"), self._choices(key)
            fitted[key] = {one.name: one.definition.fit(clients) for one in choices if one.is_of_summaries}
        wanted = self._sketched
        asked = [(key, self._item("sketch", key, choice)) for key, choice in wanted]
        sketches = self._ask_once(asked, {str(i): pooled[key].mean for i, (key, _) in enumerate(wanted)})
        self._moments = {
            (key, choice.name): moments_of(choice, add(*told), pooled[key])
            for (key, choice), told in zip(wanted, sketches, strict=True)
        }
        self._fitted = fitted

    def ask(self, features: Mapping[Key, Tensor]) -> dict[Key, FittedScores]:
        """Ask for the scores that clients give themselves; where one does not answer, those are left out."""
        wanted = self._sketched
        items = [(key, self._item("kid", key, choice)) for key, choice in wanted]
        told: dict[tuple[Key, str], list[Message]] = {}
        try:
            answers = self._ask_each(items, {str(i): features[key] for i, (key, _) in enumerate(wanted)})
            told = {(key, choice.name): one for (key, choice), one in zip(wanted, answers, strict=True)}
        except MessageError as error:
            self._leave_out({choice.name for _, choice in wanted}, error)
        return {key: ToldReference(key, self._scores(key, told)) for key in self.places}

    @property
    def _sketched(self) -> list[tuple[Key, ScoreChoice]]:
        """The scores that need sketches, with their places."""
        return [(key, choice) for key in self.places for choice in self._choices(key) if not choice.is_of_summaries]

    def _scores(self, key: Key, told: Mapping[tuple[Key, str], Sequence[Message]]) -> list[tuple[ScoreChoice, WorkOut]]:
        return [
            (choice, partial(self._score, key, choice, told.get((key, choice.name), ())))
            for choice in self._choices(key)
            if choice.is_of_summaries or (key, choice.name) in told
        ]

    def _score(
        self, key: Key, choice: ScoreChoice, told: Sequence[Message], generated: Tensor | Gaussian, errors: bool
    ) -> FederatedScore:
        counts = self.places[key][0].counts
        weights = torch.tensor(counts, dtype=torch.float64) / sum(counts)
        if choice.is_of_summaries:
            score = self._fitted[key][choice.name].score(GeneratedSet(generated), errors)[choice.kind]
        else:
            total = kid_from_messages(add(*told), self._moments[key, choice.name])
            per_client = torch.stack([message.tensors["score"] / message.tensors["count"] for message in told])
            score = combine(choice.kind, per_client, total.all, weights)
        return with_further(score, choice, self._plan.aggregates, weights)

    def _ask_once(self, asked: Sequence[tuple[Key, Item]], tensors: Mapping[str, Tensor]) -> list[list[Message]]:
        """Ask each, unless the run has it: what a client tells of its images does not change in a run."""
        items, check = [item for _, item in asked], self._checker(asked, tensors)
        clients = len(self._plan.splits[0].client_names)
        if (found := self._kept.read(items, clients, check)) is None:
            found = self._ask_each(asked, tensors, check)
            self._kept.keep(items, found)
        return found
