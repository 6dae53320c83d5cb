"""The scores of a federation whose images the server never sees: of what its clients answer."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from fedgen.embeddings import FeatureCache
from fedgen.evaluation import Evaluator, ScoreRecord
from fedgen.evaluation.answers import Answers
from fedgen.evaluation.image_sampling import Sample
from fedgen.evaluation.names import REPORT, SELECT
from fedgen.evaluation.panels import Panel
from fedgen.evaluation.plan import EvaluationPlan, RealSide, StreamImages
from fedgen.evaluation.reference import Found
from fedgen.evaluation.splits import LEAST, Split
from fedgen.flower.evaluation.client_answers import ClientAnswers, DimOf
from fedgen.flower.server.remote_data import RemoteClients
from fedgen.own_code import rank_zero_warn
from fedgen.scores import Density

MakeAnswers = Callable[[EvaluationPlan, DimOf], ClientAnswers]
TRIAL = 64  # generated images whose features tell the ranges of what is asked before training


class RemoteEvaluator(Evaluator):
    """An `Evaluator` whose clients answer for themselves; `answers` makes what they answer of the plan."""

    real: "RemoteSide"

    def __init__(self, data: RemoteClients, answers: MakeAnswers, **settings: Any) -> None:
        super().__init__(splits_of(data), real_side=partial(RemoteSide, answers), **settings)

    @property
    def answers(self) -> ClientAnswers:
        """The clients, as they are asked."""
        return self.real.answers

    def try_out(self, sample: Sample, density: Density | None = None, answers: Answers | None = None) -> None:
        """Try out as `Evaluator` does, and take what ranges need to know of generated images before training."""
        super().try_out(sample, density, answers)
        images = self.draw_trial(sample, min(self.num_images, TRIAL))
        features = {panel.embedding.name: self.real.embed(panel, images) for panel in self.panels}
        self.answers.look({key: features[key[1]] for key in self.plan.places})

    def embed_generated(self, *args: Any, **options: Any) -> Iterator[StreamImages]:
        """Yields the images of all streams at once, as clients are asked about all of them at once."""
        made = list(super().embed_generated(*args, **options))
        yield StreamImages({key: own for part in made for key, own in part.features.items()}, made[0].images)


class RemoteSide(RealSide):
    """The clients' side of scores, of what they answer, which `make` makes of the plan; the rest as for `RealSide`."""

    def __init__(
        self,
        make: MakeAnswers,
        plan: EvaluationPlan,
        seed: int,
        cache: FeatureCache | None,
        batch_size: int,
        device: torch.device | str | None,
    ) -> None:
        super().__init__(plan, seed, cache, batch_size, device)
        self.answers = make(plan, self._dim_of)

    def _dim_of(self, split: Split, panel: Panel) -> int:
        with suppress(RuntimeError):  # of one whose input decides and that has seen none
            return panel.embedding.dim
        return self.embed(panel, split.images[:1]).shape[1]

    def prepare(self) -> None:
        """Asks clients what they tell once."""
        self.answers.prepare()

    def recorded_counts(self, split: Split) -> Sequence[float]:
        """Each client's number of images; that of all together where single clients are hidden."""
        return split.counts if self.answers.shows_clients else [sum(split.counts)]

    def described(self, record: ScoreRecord) -> ScoreRecord:
        """A record with how clients answered in its note and settings."""
        said = self.answers.remarks((record.split, record.embedding), record.score)
        return replace(
            record,
            note="; ".join(filter(None, [record.note, *said])),
            score_settings={**record.score_settings, **self.answers.settings},
        )

    def scores(self, made: StreamImages, **asked: Any) -> Found:
        """The scores of what clients answer about generated images."""
        features = {key: own for key, (own, _) in made.features.items()}
        self.answers.look(features)
        self.prepare()
        self.references = self.answers.ask(features)
        return {key: self.score(*place, features[key]) for key, place in self.plan.places.items()}


def splits_of(data: RemoteClients) -> list[Split]:
    """The splits "train" and, where every client holds out two images, "report", of images that are not here."""
    names, found = tuple(client.name for client in data.clients), []
    for name, part in ((SELECT, "train"), (REPORT, "held_out")):
        counts = tuple(len(getattr(client, part)) for client in data.clients)
        few = [client for client, count in zip(names, counts) if count < LEAST]
        if few and name == REPORT and any(counts):
            rank_zero_warn(
                f"no held-out score is measured: {len(few)} of {len(names)} clients, such as {few[0]!r}, hold out fewer"
                f" than {LEAST} images, and clients answer for all splits at once; raise held_out, or run without them"
            )
        elif name == SELECT or not few:
            # of any number, without the memory
            images = data.blanks(sum(counts))
            source = "elsewhere" if name == SELECT else "elsewhere held out"
            found.append(Split(name, images, counts, source, names))
    return found
