"""Each client's own answers, in the open: all aggregates of all scores that clients can answer for."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from fedgen.evaluation.plan import EvaluationPlan
from fedgen.evaluation.score_choice import ScoreChoice
from fedgen.flower.client.pins import keep_release
from fedgen.flower.evaluation.client_answers import Check, ClientAnswers, DimOf, Key, Scorer, Wanted, moments_of
from fedgen.flower.server.remote_data import RemoteClients
from fedgen.flower.wire.answer_forms import BELIEVED
from fedgen.flower.wire.messages import Item
from fedgen.own_code import rank_zero_warn
from fedgen.scores import FederatedScore, FrechetReference
from fedgen.scores.aggregate import combine
from fedgen.scores.definition import ClientSide, GeneratedSet
from fedgen.scores.kernel.federated_kid import kid_from_messages
from fedgen.statistics import Gaussian, add, gaussian_from_message
from fedgen.statistics.statistic_messages import Message

TOLD = "told"  # the folder


class AnswersPerClient(ClientAnswers):
    """Clients of whom each tells its own: summaries and sketches, once in a run, and its KID of generated images."""

    shows_clients = True
    moments = "statistics"

    def __init__(self, data: RemoteClients, folder: Path | None, plan: EvaluationPlan, dim_of: DimOf) -> None:
        super().__init__(plan, dim_of, data)
        self._kept = KeptAnswers(folder)

    def look(self, features: Mapping[Key, Tensor]) -> None:
        """Notes the features: ranges follow from the largest so far."""
        for key, part in features.items():
            found = self._data.connection.ranges.for_features(part, BELIEVED)
            before = self._ranges.get(key, {})
            self._ranges[key] = {name: max(value, before.get(name, value)) for name, value in found.items()}

    def _ask_once(self, asked: Sequence[Wanted], tensors: Mapping[str, Tensor]) -> list[list[Message]]:
        """Ask each, unless the run has it."""
        items, check = [item for _, item in asked], self._checker(asked, tensors)
        clients = len(self._plan.splits[0].client_names)
        if (found := self._kept.read(items, clients, check)) is None:
            found = self._ask_each(asked, tensors, check)
            self._kept.keep(items, found)
        return found

    def _ask_now(self, asked: Sequence[Wanted], features: Mapping[Key, Tensor]) -> list[list[Message]]:
        return self._ask_each(asked, {str(place): features[key] for place, (key, _) in enumerate(asked)})

    def _fit(self, key: Key, told: Sequence[Message]) -> tuple[Gaussian, dict[str, Scorer]]:
        summaries = [gaussian_from_message(message) for message in told]

        def scorer(choice: ScoreChoice) -> Scorer:
            fitted = choice.definition.fit(ClientSide(summaries, "examples"))
            return lambda _, made, errors: fitted.score(GeneratedSet(made), errors)[choice.kind]

        scorers = {choice.name: scorer(choice) for choice in self._choices(key) if choice.needs == "summaries"}
        return FrechetReference.from_summaries(summaries, "examples", 0).pooled, scorers

    def _fit_kernel(self, key: Key, choice: ScoreChoice, told: Sequence[Message], pooled: Gaussian) -> Scorer:
        moments, weights = moments_of(choice, add(*told), pooled), self._weights(key)

        def score(told: Sequence[Message], generated: Tensor | Gaussian, errors: bool) -> FederatedScore:
            per_client = torch.stack([message.tensors["score"] / message.tensors["count"] for message in told])
            return combine(choice.kind, per_client, kid_from_messages(add(*told), moments).all, weights)

        return score


class KeptAnswers:
    """Clients' summaries and sketches in a run's folder, by client and item; None keeps nothing."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def read(self, items: Sequence[Item], clients: int, check: Check) -> list[list[Message]] | None:
        """Every item's messages, by client; None if one is not there or no longer fits, so that all are asked."""
        if self._folder is None or not all(
            self._path(item, client).exists() for item in items for client in range(clients)
        ):
            return None
        found: list[list[Message]] = []
        for place, item in enumerate(items):
            found.append([])
            for client in range(clients):
                path = self._path(item, client)
                try:
                    found[-1].append(check(place, client, path.read_bytes()))
                except Exception as error:  # whatever is wrong with the file
                    rank_zero_warn(f"{path} is of no use ({error}); clients are asked again")
                    return None
        return found

    def keep(self, items: Sequence[Item], found: Sequence[Sequence[Message]]) -> None:
        """Writes what was told."""
        if self._folder is None:
            return
        for item, messages in zip(items, found, strict=True):
            for client, message in enumerate(messages):
                keep_release(self._path(item, client), message)

    def _path(self, item: Item, client: int) -> Path:
        assert self._folder is not None
        parts = [item.ask, item.split, item.embedding, *([item.score] if item.score else [])]
        name = "-".join(re.sub(r"[^A-Za-z0-9._]+", "-", part) for part in parts)
        return self._folder / TOLD / f"{client:05d}-{name}.safetensors"
