"""Models to score records: the one evaluation that callback, command line and experiments use."""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedgen.embeddings import Embedding, FeatureCache, embed
from fedgen.evaluation.aggregates import applies, check_aggregates, choose_aggregates
from fedgen.evaluation.density import density_of
from fedgen.evaluation.panels import DEFAULT_SCORES, EmbeddingLike, Panel, PresetLike, make_panels
from fedgen.evaluation.records import FLOOR, MODEL, Columns, ScoreRecord
from fedgen.evaluation.reference import Reference, check_clients_of, check_count, records_of, too_few
from fedgen.evaluation.sampling import CHUNK, Sample, draw_images, sampler_of
from fedgen.evaluation.score_choice import ScoreChoice, ScoreLike, check_distinct
from fedgen.evaluation.splits import REPORT, Clients, Split, as_splits
from fedgen.scores import Density, FederatedScore, resolve_weights
from fedgen.scores.aggregate import Weights
from fedgen.seeds import generator, resolve

NO_FLOOR = ("points", "held out")  # real images have no density, and the floor's may be the held-out ones themselves


@dataclass(frozen=True, eq=False)
class Evaluation:
    """One evaluation's records, and the first split's generated images, uint8 [N, C, H, W] or points [N, D]."""

    records: list[ScoreRecord]
    images: Tensor


class Evaluator:
    """Scores generators against clients: sampled once a split, embedded once an embedding, one pass for all clients.

    Everything is checked when it is made; the clients' images are embedded on first use. Where a client has too few
    images for a score, that is an error in the first split; in another the score is left out there with a warning.
    Splits are scored on independent generated images, so that a model selected on one is reported without its luck.

    Args:
        splits: the clients' real images: a data module, splits, or {name: [examples of each client]}. The first is the
            one to select by.
        embeddings: names, embeddings, or {"name": ..., options of `load_embedding`}; the first gives the columns
            without a prefix. None for efficientnet-lite0, or for none where presets are given.
        num_images: generated images a split.
        scores: measured on each of the embeddings. Names, or {"name": ..., options}: "fid" (ddof), "kid" (estimator,
            degree, gamma, coef0), "kid-rbf" (estimator, sigma), "precision", "recall", "density" and "coverage" (k,
            strict), "sw1" and "sw2" (projections, seed), "w1" (those of `CriticOptions`; it trains a critic for each
            client and one for the pool at every evaluation, which takes minutes), "is" (generated images alone, so one
            value for all clients; on an embedding of logits), "ll" (models with `log_prob`, of points), "memorisation"
            (in the first split, where there is a split "report" of the same clients' held-out images).
        weights: "examples" (n_i / n), "uniform", or one number a client; the same for avg and all, but that neighbours
            know no weights: all of precision, recall, density and coverage counts every image once.
        seed: of the generated images; None takes what `seed_everything` was given, else 0.
        cache: keeps the real images' features on disk.
        batch_size: images embedded at once.
        device: where to embed; where each embedding lies by default.
        chunk: images sampled at once.
        aggregates: power means beside avg, all and worst, e.g. ("power-2",); without standard errors, and not of scores
            that may be negative.
        presets: scores under their usual names, each in its own embedding: "fid", "kid", "fd-dinov2", "cmmd", "is", or
            {"name": ..., "weights": a local file of the embedding's weights}.

    Raises:
        ValueError: for images that an embedding or a score cannot take, clients with too few images, unknown or
            repeated names.
    """

    def __init__(
        self,
        splits: Clients,
        embeddings: Sequence[EmbeddingLike] | None = None,
        num_images: int = 10_000,
        scores: ScoreLike | Sequence[ScoreLike] = DEFAULT_SCORES,
        weights: Weights = "examples",
        seed: int | None = None,
        cache: FeatureCache | None = None,
        batch_size: int = 64,
        device: torch.device | str | None = None,
        chunk: int = CHUNK,
        aggregates: Sequence[str] = (),
        presets: Sequence[PresetLike] = (),
    ) -> None:
        self.splits, self.aggregates = as_splits(splits), choose_aggregates(aggregates)
        self.panels = make_panels(embeddings, scores, presets)
        self.num_images, self.weights, self.seed = num_images, weights, resolve(seed)
        self.cache, self.batch_size, self.device, self.chunk = cache, batch_size, device, chunk
        self._left_out: set[tuple[str, str]] = set()  # split and score
        self._references: dict[tuple[str, str], Reference] = {}
        self._floors: dict[tuple[str, str], Tensor] = {}
        self._floor: list[ScoreRecord] | None = None
        self._check()

    def _check(self) -> None:
        check_distinct("split", [split.name for split in self.splits])
        if self.num_images < 2:
            raise ValueError(f"num_images={self.num_images}: scores need at least 2 generated images, better thousands")
        shape = self.splits[0].shape
        for split in self.splits:
            if split.shape != shape:
                raise ValueError(f"split {split.name!r} has images {list(split.shape)}, the first {list(shape)}")
            for panel in self.panels:
                panel.embedding.check((2, *split.shape))
                self._check_scores(split, panel)
        check_distinct("column", self.column_names())
        choices = [choice for panel in self.panels for choice in panel.choices]
        check_aggregates(self.aggregates, choices)
        if any(choice.needs == "held out" for choice in choices):
            self._check_held_out()

    def _check_scores(self, split: Split, panel: Panel) -> None:
        """Of splits beside the first, scores that need more images than a client holds are left out with a warning."""
        names = [f"client {name!r} of split {split.name!r}" for name in split.client_names]
        check_count(panel.choices, self.num_images, "the generated set (num_images)")
        for choice in self._choices(split, panel):
            problems = [too_few(choice, count, name) for count, name in zip(split.counts, names)]
            first = next(filter(None, problems), "")
            if first and split is not self.splits[0]:
                self._left_out.add((split.name, choice.name))
                warnings.warn(f"score {choice.name} is left out on split {split.name!r}: {first}", stacklevel=4)
            else:
                check_clients_of([choice], split.counts, names, self.weights)

    def _check_held_out(self) -> None:
        held_out, first = self._held_out, self.splits[0]
        if held_out is None or held_out is first or held_out.client_names != first.client_names:
            raise ValueError(
                f"score memorisation compares the images that clients train on (split {first.name!r}) with held-out"
                f" ones of the same clients, and there is no such split {REPORT!r}: let each client hold out at least"
                " two images (held_out of the data module), or leave the score out"
            )

    @property
    def _held_out(self) -> Split | None:
        return next((split for split in self.splits if split.name == REPORT), None)

    @property
    def embeddings(self) -> list[Embedding]:
        """All embeddings, those of presets last."""
        return [panel.embedding for panel in self.panels]

    @property
    def needs_density(self) -> bool:
        """Whether a score needs the model's density besides its images."""
        return any(choice.needs == "points" for panel in self.panels for choice in panel.choices)

    @property
    def columns(self) -> Columns:
        """The names of this evaluation's columns."""
        return Columns(self.splits[0].name, self.panels[0].embedding.name)

    def column_names(self) -> list[str]:
        """All columns that `evaluate` fills, e.g. "fid_avg", "report/kid_all"."""
        return [name for name, _ in self._columns()]

    def directions(self) -> dict[str, bool]:
        """Of each column, whether higher is better."""
        return {name: choice.higher_is_better for name, choice in self._columns()}

    def _columns(self) -> Iterator[tuple[str, ScoreChoice]]:
        for split in self.splits:
            for panel in self.panels:
                for choice in self._choices(split, panel):
                    score = self.columns.score(split.name, panel.embedding.name, choice.name)
                    yield from ((f"{score}_{name}", choice) for name in self.aggregates if applies(name, choice))

    def _choices(self, split: Split, panel: Panel) -> list[ScoreChoice]:
        """The scores of a panel that are measured on a split."""
        first = split is self.splits[0]
        return [
            choice
            for choice in panel.choices
            if (first or choice.needs != "held out") and (split.name, choice.name) not in self._left_out
        ]

    def client_weights(self) -> Tensor:
        """The clients' weights in the first split: float64 [K], summing to 1."""
        return resolve_weights(self.weights, self.splits[0].counts)

    def prepare(self) -> None:
        """Embeds the clients' images of every split, and those of the floors, once."""
        if self._references:
            return
        references: dict[tuple[str, str], Reference] = {}
        floors: dict[tuple[str, str], Tensor] = {}
        for panel in self.panels:
            features: dict[int, Tensor] = {}  # the floor of one split is often the reference of another
            for split in self.splits:
                for images, what in ((split.images, split.reference), (split.floor, f"floor of {split.name}")):
                    if images is not None and id(images) not in features:
                        features[id(images)] = self._embed_real(panel.embedding, images, what)
            for split in self.splits:
                key = split.name, panel.embedding.name
                if not self._choices(split, panel):
                    continue
                references[key] = self._reference(split, panel, features)
                if split.floor is not None:
                    draws = generator(self.seed, "floor", split.name)
                    chosen = torch.randperm(len(split.floor), generator=draws)[: self.num_images].sort().values
                    floors[key] = features[id(split.floor)][chosen]
        self._references, self._floors = references, floors

    def _reference(self, split: Split, panel: Panel, features: dict[int, Tensor]) -> Reference:
        choices = self._choices(split, panel)
        parts = features[id(split.images)].split(list(split.counts))
        other = self._held_out if any(choice.needs == "held out" for choice in choices) else None
        held_out = features[id(other.images)].split(list(other.counts)) if other else None
        return Reference(parts, choices, self.weights, self.aggregates, held_out)

    def _embed_real(self, embedding: Embedding, images: Tensor, what: str) -> Tensor:
        description = f"embedding {what} with {embedding.name}"
        return embed(embedding, images, self.batch_size, self.device, description, self.cache)

    def try_out(self, sample: Sample, density: Density | None = None) -> None:
        """Draws and embeds two images, so that what would fail after a long training fails before it.

        Args:
            sample: the model's sampler.
            density: the model's, where `needs_density`; asked for the log-density at two points.

        Raises:
            ValueError: if the images are not of the clients' shape, or an embedding fails on them, or a density is
                needed and there is none, or it has another shape.
        """
        if self.needs_density:
            points = self.splits[0].images[:2]
            Reference([points], "ll").score(points, errors=False, density=density)
        images = draw_images(sample, 2, self.seed, -1, "trial", chunk=2, description="trying out")
        shape = self.splits[0].shape
        if tuple(images.shape[1:]) != shape:
            raise ValueError(
                f"the model samples images of shape {list(images.shape[1:])}, but the clients' are {list(shape)};"
                " give the model the data's channels and size"
            )
        for panel in self.panels:
            embed(panel.embedding, images, self.batch_size, self.device)

    def evaluate(
        self,
        sample: Sample,
        round: int = 0,
        checkpoint: str | None = None,
        optimised_on: Sequence[str] = (),
        note: str = "",
        density: Density | None = None,
    ) -> Evaluation:
        """The scores of one model against every split and embedding.

        Args:
            sample: the model's sampler, (number, torch.Generator) to images; see `sampler_of`.
            round: the round after which this is the model; part of the images' seed.
            checkpoint: file name of the model's checkpoint.
            optimised_on: scores or embeddings that a training loss used.
            note: what else a reader must know.
            density: the model's, where `needs_density`.
        """
        self.prepare()
        details = {"round": round, "checkpoint": checkpoint, "optimised_on": list(optimised_on), "note": note}
        records: list[ScoreRecord] = []
        first: Tensor | None = None
        for split in self.splits:
            label = f"sampling for {split.name}"
            images = draw_images(sample, self.num_images, self.seed, round, split.name, self.chunk, label)
            first = images if first is None else first
            for panel in self.panels:
                if (split.name, panel.embedding.name) not in self._references:
                    continue  # every score of this panel is left out
                what = f"embedding with {panel.embedding.name}"
                features = embed(panel.embedding, images, self.batch_size, self.device, what)
                scores = self._references[split.name, panel.embedding.name].score(features, density=density)
                records += self._records(split, panel, scores, len(features), generator=MODEL, **details)
        assert first is not None  # there is at least one split
        return Evaluation(records, first)

    def floor(self) -> list[ScoreRecord]:
        """The scores of real images in place of generated ones, at most `num_images` of them, for each split with some.

        A perfect generator would score about this: with as many images, this is the bias of the score itself. Scores
        that are not of images, and those that need more images than there are, have none.
        """
        if self._floor is None:
            self.prepare()
            self._floor = []
            for split in self.splits:
                for panel in self.panels:
                    features = self._floors.get((split.name, panel.embedding.name))
                    if features is not None:
                        self._floor += self._floor_records(split, panel, features)
        return self._floor

    def _floor_records(self, split: Split, panel: Panel, features: Tensor) -> list[ScoreRecord]:
        possible = [choice for choice in self._choices(split, panel) if choice.needs not in NO_FLOOR]
        names = [choice.name for choice in possible if not too_few(choice, len(features), "the floor")]
        scores = self._references[split.name, panel.embedding.name].score(features, only=names)
        return self._records(split, panel, scores, len(features), generator=FLOOR)

    def _records(
        self, split: Split, panel: Panel, scores: Sequence[FederatedScore], count: int, **details: Any
    ) -> list[ScoreRecord]:
        common = {
            "split": split.name,
            "embedding": panel.embedding.name,
            "embedding_fingerprint": panel.embedding.fingerprint(),
            "embedding_settings": dict(panel.embedding.settings),
            "reference": split.reference,
            "num_generated": count,
            "num_clients": len(split.counts),
            "seed": self.seed,
            "weights": self.weights if isinstance(self.weights, str) else "given",
            **details,
        }
        return records_of(scores, split.client_names, common, self.aggregates, panel.choices)


def evaluate(model: nn.Module | Sample, clients: Clients, round: int = 0, **options: Any) -> list[ScoreRecord]:
    """The score records of one model against clients, in one call.

    Args:
        model: a module with `sample(num_images, generator=None)`, or a sampler; for the score "ll" also with
            `log_prob(points)`.
        clients: a data module, splits, or {split: [examples of each client]}.
        round: stored in the records, and part of the images' seed.
        options: as for `Evaluator`: embeddings, num_images, scores, weights, seed, ...

    Raises:
        TypeError: for a model without `sample`, or without `log_prob` where a score needs it.
    """
    evaluator = Evaluator(clients, **options)
    sample = sampler_of(model) if isinstance(model, nn.Module) else model
    density = density_of(model) if evaluator.needs_density else None
    evaluator.try_out(sample, density)
    return evaluator.evaluate(sample, round, density=density).records
