"""The scores of a federation whose images the server never sees: what it asks of clients, and makes of the answers."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch import Tensor

from fedgen.evaluation import Evaluator
from fedgen.evaluation.aggregates import with_further
from fedgen.evaluation.generation.answers import Answers
from fedgen.evaluation.generation.image_sampling import Sample
from fedgen.evaluation.panels import Panel
from fedgen.evaluation.plan import EvaluationPlan
from fedgen.evaluation.real.real_side import RealSide
from fedgen.evaluation.real.splits import LEAST, Split
from fedgen.evaluation.record_names import REPORT, SELECT
from fedgen.evaluation.score_choice import ScoreChoice
from fedgen.federated.left_out import EVALUATION, LONGEST_REASON, shorten
from fedgen.flower.server.kept_answers import KeptAnswers
from fedgen.flower.server.remote_data import RemoteClients
from fedgen.flower.server.told_reference import ToldReference
from fedgen.flower.server.unanswered import UnansweredError
from fedgen.flower.wire.evaluation_forms import check_answer, form_of_answer
from fedgen.flower.wire.messages import Asked, Item
from fedgen.flower.wire.ranges import BELIEVED, Largest, Ranges, largest
from fedgen.scores import Density, FederatedScore, FrechetReference
from fedgen.scores.aggregate import combine
from fedgen.scores.definition import ClientSide, GeneratedSet
from fedgen.scores.kernel.federated_kid import kid_from_messages
from fedgen.statistics import Gaussian, add, gaussian_from_message
from fedgen.statistics.statistic_messages import Message, MessageError

Key = tuple[str, str]  # split and embedding
Check = Callable[[int, int, bytes], Message]  # of an item's place and a client's number
TRIAL = 64  # generated images whose features tell the ranges of what is asked before training


class RemoteEvaluator(Evaluator):
    """An `Evaluator` whose clients answer for themselves.

    Args:
        data: names and numbers of their images, and the line to them.
        folder: of the run, which keeps what clients tell once; None keeps nothing.
        settings: as for `Evaluator`.
    """

    def __init__(self, data: RemoteClients, folder: Path | None = None, **settings: Any) -> None:
        super().__init__(splits_of(data), **settings)
        self._kept = KeptAnswers(folder)
        self._side = self._make_side(data, settings.get("batch_size", 64))
        self._real = self._side

    def _make_side(self, data: RemoteClients, batch_size: int) -> "RemoteSide":
        return RemoteSide(self.plan, self.seed, data, batch_size, self.device, self._kept)

    def try_out(self, sample: Sample, density: Density | None = None, answers: Answers | None = None) -> None:
        """Try out as `Evaluator` does, and take what ranges need to know of generated images before training."""
        super().try_out(sample, density, answers)
        number = min(self.num_images, TRIAL)
        images, _ = self._draw(sample, number, -1, stream="trial", chunk=number, description="trying out")
        features = {panel.embedding.name: self._real.embed(panel, images) for panel in self.panels}
        self._side.look({key: features[key[1]] for key in self._side.places()})

    def _of_model(
        self, sample: Sample, round: int, density: Density | None, answers: Answers | None
    ) -> tuple[dict[tuple[str, str], list[FederatedScore]], Tensor]:
        """Score a model as `Evaluator` does, with the clients asked about all generated images at once."""
        made = self.generated(sample, round)
        features = {key: made.of(*place)[0] for key, place in self._side.places().items()}
        self._side.look(features)
        self.prepare()
        self._side.ask_scores(features)
        found = {
            (split.name, panel.embedding.name): self._score(split, panel, features[split.name, panel.embedding.name])
            for split, panel in self._side.places().values()
        }
        return found, made.first


def splits_of(data: RemoteClients) -> list[Split]:
    """The splits "train" and, where every client holds out two images, "report", of images that are not here."""
    names, found = tuple(client.name for client in data.clients), []
    for name, part in ((SELECT, "train"), (REPORT, "held_out")):
        counts = tuple(len(getattr(client, part)) for client in data.clients)
        if name == SELECT or min(counts) >= LEAST:
            # of any number, without the memory
            images = torch.zeros((), dtype=torch.uint8).expand(sum(counts), *data.image_shape)
            source = "elsewhere" if name == SELECT else "elsewhere held out"
            found.append(Split(name, images, counts, source, names))
    return found


class RemoteSide(RealSide):
    """The clients' side of scores: summaries and sketches, which they tell once, and their own KID of what is made."""

    def __init__(
        self,
        plan: EvaluationPlan,
        seed: int,
        data: RemoteClients,
        batch_size: int,
        device: torch.device | str | None,
        kept: KeptAnswers | None = None,
    ) -> None:
        super().__init__(plan, seed, None, batch_size, device)
        self._data, self._kept = data, kept or KeptAnswers(None)
        self._remote: dict[Key, _RemoteReference] = {}
        self._ranges: dict[Key, dict[str, float]] = {}

    def look(self, features: Mapping[Key, Tensor]) -> None:
        """Notes the features [m, D] of generated images: ranges follow from the largest so far."""
        ranges = self._data.transport.statistics.ranges if self._data.transport is not None else Ranges()
        for key, part in features.items():
            found, before = ranges.for_features(part, BELIEVED), self._ranges.get(key, {})
            self._ranges[key] = {name: max(value, before.get(name, value)) for name, value in found.items()}

    def _largest(self, key: Key, item: Item, most: int) -> Largest:
        """The largest entries of an answer about at most so many images."""
        kernels = {choice.name: choice.definition.kernel for choice in self.places()[key][1].choices}
        kernel = kernels.get(item.score)
        return largest(item.ask, kernel is not None and kernel.is_bounded, self._ranges[key], most)

    def places(self) -> dict[Key, tuple[Split, Panel]]:
        """The splits and panels that have scores, in order, by name."""
        return {
            (split.name, panel.embedding.name): (split, panel)
            for split in self.plan.splits
            for panel in self.plan.panels
            if self.plan.choices(split, panel)
        }

    def prepare(self) -> None:
        if self._references:
            return
        places = self.places()
        summaries = self._ask_once([(key, item_of("statistics", *place)) for key, place in places.items()], {})
        remote = {
            key: _RemoteReference(self.plan, *place, told)
            for (key, place), told in zip(places.items(), summaries, strict=True)
        }
        wanted = [(key, choice) for key, one in remote.items() for choice in one.sketched]
        centres = {str(i): remote[key].pooled.mean for i, (key, _) in enumerate(wanted)}
        sketches = self._ask_once([(key, item_of("sketch", *places[key], choice)) for key, choice in wanted], centres)
        for (key, choice), told in zip(wanted, sketches, strict=True):
            remote[key].take_sketch(choice, add(*told))
        self._remote = remote
        self._references = dict(remote)

    def ask_scores(self, features: Mapping[Key, Tensor]) -> None:
        """Asks clients for the scores that they give themselves; where one does not answer, those are left out."""
        places = self.places()
        wanted = [(key, choice) for key, one in self._remote.items() for choice in one.sketched]
        items = [(key, item_of("kid", *places[key], choice)) for key, choice in wanted]
        tensors = {str(i): features[key] for i, (key, _) in enumerate(wanted)}
        for one in self._remote.values():
            one.told = {}
        try:
            for (key, choice), told in zip(wanted, self._ask(items, tensors), strict=True):
                self._remote[key].told[choice.name] = told
        except MessageError as error:
            self._leave_out({choice.name for _, choice in wanted}, error)

    def _leave_out(self, names: set[str], error: MessageError) -> None:
        """Says which scores an evaluation goes without, and takes down because of whom."""
        why = shorten(str(error), LONGEST_REASON)
        rank_zero_warn(f"{' and '.join(sorted(names))} are left out of this evaluation: {why}")
        if isinstance(error, UnansweredError):
            self._data.note_left_out(EVALUATION, error.client, error.why)

    def _ask_once(self, asked: Sequence[tuple[Key, Item]], tensors: Mapping[str, Tensor]) -> list[list[Message]]:
        """Ask as `_ask` does, unless the run has it: what a client tells of its images does not change in a run."""
        items, check = [item for _, item in asked], self._checker(asked, tensors)
        clients = len(self.plan.splits[0].client_names)
        if (found := self._kept.read(items, clients, check)) is None:
            found = self._ask(asked, tensors, check)
            self._kept.keep(items, found)
        return found

    def _checker(self, asked: Sequence[tuple[Key, Item]], tensors: Mapping[str, Tensor]) -> Check:
        """Reads what a client tells of the item at a place, or raises MessageError."""
        forms = []
        for place, (key, item) in enumerate(asked):
            split, panel = self.places()[key]
            dim = self.embed(panel, split.images[:1]).shape[1]
            forms.append((dim, form_of_answer(item, panel, dim, tensors.get(str(place)))))

        def check(place: int, client: int, data: bytes) -> Message:
            (key, item), (dim, form) = asked[place], forms[place]
            count = self.places()[key][0].counts[client]
            message = Message.from_bytes(data)
            check_answer(message, item, form, dim, count, self._largest(key, item, count))
            return message

        return check

    def _ask(
        self, asked: Sequence[tuple[Key, Item]], tensors: Mapping[str, Tensor], check: Check | None = None
    ) -> list[list[Message]]:
        """For each item every client's message; read by `check`, if it has been made already.

        Raises:
            UnansweredError: if a client does not tell, or tells what was not asked.
        """
        if not asked:
            return []
        items = [item for _, item in asked]
        answers = self._data.ask_all(items, tensors)
        found: list[list[Message]] = [[] for _ in items]
        check = check or self._checker(asked, tensors)
        for client, name in enumerate(self.plan.splits[0].client_names):
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


def item_of(ask: Asked, split: Split, panel: Panel, choice: ScoreChoice | None = None) -> Item:
    embedding = panel.embedding
    return Item(ask, split.name, embedding.name, embedding.fingerprint(), choice.name if choice else "")


class _RemoteReference(ToldReference):
    """Clients of whom each tells its own.

    Args:
        plan: the evaluation's.
        split: of images elsewhere.
        panel: the embedding and its scores.
        summaries: each client's message.

    Attributes:
        told: each client's messages about the present generated images, by score.
    """

    def __init__(self, plan: EvaluationPlan, split: Split, panel: Panel, summaries: Sequence[Message]) -> None:
        super().__init__(plan, split, panel)
        self.told: dict[str, list[Message]] = {}
        self._aggregates = plan.aggregates
        self._weights = torch.tensor(split.counts, dtype=torch.float64) / sum(split.counts)
        found = [gaussian_from_message(message) for message in summaries]
        self.pooled = FrechetReference.from_summaries(found, "examples", 0).pooled
        clients = ClientSide(found, "examples")
        self._fitted = {one.name: one.definition.fit(clients) for one in self.choices if one.is_of_summaries}

    def _of(self, choice: ScoreChoice, generated: Tensor | Gaussian, errors: bool) -> FederatedScore | None:
        if choice.is_of_summaries:
            score = self._fitted[choice.name].score(GeneratedSet(generated), errors)[choice.kind]
        elif choice.name in self.told:
            messages = self.told[choice.name]
            total = kid_from_messages(add(*messages), self._moments[choice.name])
            per_client = torch.stack([message.tensors["score"] / message.tensors["count"] for message in messages])
            score = combine(choice.kind, per_client, total.all, self._weights)
        else:
            return None
        return with_further(score, choice, self._aggregates, self._weights)
