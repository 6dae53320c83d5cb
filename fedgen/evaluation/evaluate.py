"""Models to score records: the one evaluation that callback, command line and experiments use."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, product
from typing import Any

import torch
from torch import Tensor, nn

from fedgen.clients import FederatedDataModule
from fedgen.data.optional_attributes import optional
from fedgen.embeddings import Embedding, FeatureCache
from fedgen.evaluation.answers import Answers, density_of
from fedgen.evaluation.federation_splits import Clients, as_splits
from fedgen.evaluation.image_sampling import CHUNK, SAMPLES, ImageSampler, Sample, draw_images, drawn_labels, sampler_of
from fedgen.evaluation.panels import DEFAULT_SCORES, EmbeddingLike, Panel, PresetLike, make_panels
from fedgen.evaluation.plan import Counts, EvaluationPlan, Place, RealSide, StreamImages
from fedgen.evaluation.records import MODEL, Columns, ScoreRecord, say_number
from fedgen.evaluation.reference import Found, Reference
from fedgen.evaluation.score_choice import ScoreLike
from fedgen.evaluation.splits import LEAST, Split
from fedgen.images import SeenRange
from fedgen.models.optional_hooks import FederatedModule
from fedgen.own_code import warn
from fedgen.scores import Density
from fedgen.scores.aggregate import Weights, name_weights, resolve_weights
from fedgen.scores.definition import BY_CLASS
from fedgen.seeds import resolve


@dataclass(frozen=True, eq=False)
class Evaluation:
    """One evaluation's records, and the first split's generated images, uint8 [N, C, H, W] or floats [N, ...]."""

    records: list[ScoreRecord]
    images: Tensor

    def __repr__(self) -> str:
        names = Columns.of(self.records)
        values = ", ".join(f"{names.name(record)} {say_number(record.value)}" for record in self.records[:4])
        more = f", ... ({len(self.records)} in all)" if len(self.records) > 4 else ""
        return f"Evaluation({len(self.images)} images: {values}{more})"

    def _repr_html_(self) -> str:
        from fedgen.evaluation.tables.table import html_of  # which needs this module

        return html_of(self.records)


class Evaluator:
    """Scores generators against clients: samples once per split, embeds once per embedding, one pass for all clients.

    Everything is checked when it is made; the clients' images are embedded on first use. Where a client has too few
    images for a score, that is an error in the first split; in another the score is left out there with a warning.
    Splits are scored on independent generated images, so that a model selected on one is reported without its luck;
    but the three of a federation with a `split` on the same, and their differences, the gaps, are scored too.

    Args:
        splits: the clients' real images: a data module, splits, or {name: [examples of each client]}. The first is the
            one to select by.
        embeddings: names, embeddings, or {"name": ..., options of `load_embedding`}; the first gives the columns
            without a prefix. None for efficientnet-lite0, or for none where presets are given.
        num_images: generated images per split.
        scores: measured on each of the embeddings: names, {"name": ..., options}, or definitions. A name is that of a
            class in `fedgen.scores`, whose docstring has its options and what it needs, or a class path: of
            a `ScoreDefinition` of your own, or of a torchmetrics class with its arguments as options. Data without
            images have "loss" and torchmetrics classes alone.
        weights: "examples" (n_i / n), "uniform", or one number per client, for both avg and all; except that neighbours
            have no weights: all of precision, recall, density and coverage counts every image once.
        seed: of the generated images; None takes what `seed_everything` was given, else 0.
        cache: keeps the real images' features on disk.
        batch_size: images embedded at once.
        device: where to embed; by default each embedding's own.
        chunk: images sampled at once.
        aggregates: beside avg, all and worst: power means, e.g. ("power-2",), not of scores that may be negative; and
            of the clients' distribution, "unweighted" (mean), "var", "pct95", "pct75", "pct50", "pct25" and "pct5",
            which three-way splits have in any case. Without standard errors.
        presets: scores under their usual names, each in its own embedding: "fid", "kid", "fd-dinov2", "cmmd", "is",
            "fcd", or {"name": ..., "weights": a local file of the embedding's weights}; or panels, any scores in any
            embedding.
        controls: whether to score, beside the floor, the other real images that three-way splits put in a generator's
            place.
        real_side: makes the clients' side of the scores; arguments as for `RealSide`.

    Attributes:
        trained: names of the clients that train, in their order; None where only splits are known.
        needs_images: whether a score needs generated images; those that ask the model about examples do not.

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
        presets: Sequence[PresetLike | Panel] = (),
        controls: bool = False,
        real_side: Callable[..., RealSide] = RealSide,
    ) -> None:
        self.splits, self.panels = as_splits(splits), make_panels(embeddings, scores, presets)
        self._trained_on: Sequence[float] = self.splits[0].counts
        self.trained: list[str] | None = None
        if isinstance(splits, FederatedDataModule):
            self._trained_on = [len(client.train) for client in splits.clients]
            self.trained = [client.name for client in splits.clients]
        self.plan = EvaluationPlan(self.splits, self.panels, num_images, weights, aggregates, controls)
        self.num_images, self.weights, self.seed = num_images, weights, resolve(seed)
        self.batch_size, self.device, self.chunk = batch_size, device, chunk
        self.real = real_side(self.plan, self.seed, cache, batch_size, device)
        self.needs_images = any(choice.needs not in ("model", "points") for choice in self.plan.all_choices)
        self.num_generated = num_images if self.needs_images else 0
        self._frequencies, self._seen = self.splits[0].label_frequencies, SeenRange(*SAMPLES)
        self._floor: list[ScoreRecord] | None = None

    def __repr__(self) -> str:
        scores = "; ".join(
            f"{', '.join(choice.name for choice in panel.choices)} in {panel.embedding.name}" for panel in self.panels
        )
        return f"Evaluator({self.splits[0].reference}: {scores}, {self.num_images} generated images)"

    @property
    def embeddings(self) -> list[Embedding]:
        """All embeddings, those of presets last."""
        return [panel.embedding for panel in self.panels]

    def asked_of(self, model: Any) -> dict[str, Any]:
        """The model's `density` and `answers` where scores need them, for `try_out` and `evaluate`; see `Answers`.

        Raises:
            TypeError: if it lacks a method that is needed, such as `log_prob(points)`.
        """
        density = density_of(model) if self.plan.asking("points") else None
        return {"density": density, "answers": Answers.of(model, self.plan.all_choices, self.seed)}

    def sampler_of(self, model: nn.Module) -> Sample:
        """A model's sampler; where no score needs images, a placeholder, and the model needs no `sample`.

        Raises:
            TypeError: if it has none and a score needs one.
        """
        return sampler_of(model) if self.needs_images else _never

    @property
    def columns(self) -> Columns:
        """The names of this evaluation's columns."""
        return self.plan.columns

    def column_names(self) -> list[str]:
        """All columns that `evaluate` fills, e.g. "fid_avg", "report/kid_all"."""
        return [name for name, _ in self.plan.filled()]

    def directions(self) -> dict[str, bool]:
        """Return by column whether higher is better."""
        return dict(self.plan.filled())

    def prepare(self) -> None:
        """Embed the clients' images of every split, and those of the stand-ins, once."""
        self.real.prepare()

    def client_weights(self) -> Tensor:
        """The weights of all clients that train, or else of the first split's: float64 [K], summing to 1."""
        return resolve_weights(self.weights, self._trained_on)

    def try_out(self, sample: Sample, density: Density | None = None, answers: Answers | None = None) -> None:
        """Draws and embeds two images, if a score needs some: what would fail after a long training fails before it.

        What `asked_of` gives of the model is tried on two points or examples.

        Raises:
            ValueError: if the images are not of the clients' shape, or an embedding fails on them, or a density is
                needed and there is none, or it has another shape, or labels are needed and the model takes none.
        """
        for score in [score for needs in BY_CLASS for score in self.plan.asking(needs)]:
            if problem := ImageSampler.of(sample).labels_problem(self._frequencies):
                raise ValueError(f"score {score} {problem}")
        if self.plan.asking("points"):
            points = self.splits[0].images[:2].flatten(1)
            Reference([points], "ll").score(points, errors=False, density=density)
        if answers is not None:
            answers.try_out(*self.splits[0].first(2))
        if not self.needs_images:
            return
        images = self.draw_trial(sample, 2)
        shape = self.splits[0].shape
        if self.splits[0].kind != "texts" and tuple(images.shape[1:]) != shape:
            raise ValueError(
                f"the model samples images of shape {list(images.shape[1:])}, but the clients' are {list(shape)};"
                " give the model the data's channels and size"
            )
        for panel in self.panels:
            if len(usable := panel.embedding.usable_samples(images)):
                self.real.embed(panel, usable)

    def draw_trial(self, sample: Sample, number: int) -> Tensor:
        """Images of a model that has not trained yet."""
        draws = {**self.draws(sample, -1, "trial"), "chunk": number}
        return draw_images(sample, number, **draws, seen=self._seen, description="trying out")

    def draws(self, sample: Sample, round: int, stream: str) -> dict[str, Any]:
        """The arguments of `draw_images` for a stream; of a class-conditional model with the classes of the clients."""
        asked = None if ImageSampler.of(sample).labels_problem(self._frequencies) else self._frequencies
        return {"seed": self.seed, "round": round, "stream": stream, "chunk": self.chunk, "frequencies": asked}

    def evaluate(
        self,
        sample: Sample,
        round: int = 0,
        checkpoint: str | None = None,
        optimised_on: Sequence[str] = (),
        note: str = "",
        **asked: Any,
    ) -> Evaluation:
        """The scores of one model against every split and embedding.

        A class-conditional model is asked for classes as often as they occur among the first split's images.

        Args:
            sample: the model's sampler, (number, torch.Generator) to images; see `sampler_of`. If it has attributes
                `num_classes` and `sampling`, as a `Sampler`, it is asked for classes, and the settings are recorded.
            round: the round after which this is the model; part of the images' seed.
            checkpoint: file name of the model's checkpoint.
            optimised_on: scores or embeddings that a training loss used.
            note: what else a reader must know.
            asked: the model's `density` and `answers`, of `asked_of`.
        """
        sampler = ImageSampler.of(sample)
        self.real.prepare()
        found, images, lost = Found(), torch.empty(0), dict[str, str]()
        counts, used = dict[Place, int](), dict[Place, int]()
        for made in self.embed_generated(sampler, round):
            found |= self.real.scores(made, **asked)
            images = images if len(images) else made.images
            for key, (rows, _) in made.features.items():
                counts[key], used[key] = len(made.images), len(rows) or len(made.images)
                if used[key] < counts[key]:
                    few = f"{counts[key] - used[key]} of {counts[key]}"
                    lost[key[1]] = f"{few} generated samples have no features in {key[1]} and are left out"
        wrong = f"{SAMPLES[0]} look like {self._seen.looks}, not like [-1, 1]" if self._seen.looks else ""
        note = "; ".join(filter(None, [note, wrong, *lost.values()]))
        details = {"round": round, "checkpoint": checkpoint, "optimised_on": list(optimised_on), "note": note}
        records = self.real.records(found, MODEL, counts, used, sampling=dict(sampler.sampling), **details)
        return Evaluation(records, images)

    def embed_generated(
        self, sample: Sample, round: int, where: Callable[[Split, Panel], bool] = lambda split, panel: True
    ) -> Iterator[StreamImages]:
        """Yields the generated images of one model, stream after stream, for the splits and embeddings that want them.

        They are drawn once a stream, and embedded once a stream and embedding; the round is part of their seed.
        """
        wanted = {key: place for key, place in self.plan.places.items() if where(*place)}
        for stream, keys in groupby(wanted, lambda key: wanted[key][0].stream):
            panels = {key: wanted[key][1] for key in keys}
            asking = {one.embedding.name: one for one in panels.values() if self.needs_images and not one.on_model}
            images, labels = torch.empty(0), None
            if asking:
                draws, said = self.draws(sample, round, stream), f"sampling for {stream}"
                images = draw_images(sample, self.num_images, **draws, seen=self._seen, description=said)
                labels = drawn_labels(self.num_images, **draws)
            embedded = {}
            for name, panel in asking.items():
                usable = panel.embedding.usable_samples(images)
                if len(usable) < LEAST:
                    warn(f"{len(usable)} of {len(images)} samples have features in {name}: round {round} has no scores")
                    panels = {key: other for key, other in panels.items() if key[1] != name}
                else:
                    embedded[name] = self.real.embed(panel, usable), labels
            yield StreamImages({key: embedded.get(key[1], (torch.empty(0), None)) for key in panels}, images)

    def generated(self, sample: Sample, round: int) -> list[StreamImages]:
        """The images of `embed_generated`, as it was called."""
        warn("Evaluator.generated is called embed_generated since fedgen 0.3", DeprecationWarning)
        return list(self.embed_generated(sample, round))

    def measured(
        self,
        made: Sequence[StreamImages],
        density: Density | None = None,
        answers: Answers | None = None,
        where: Callable[[Split, Panel], bool] = lambda split, panel: True,
    ) -> Found:
        """The scores of one model's images, which `evaluate` gives with their records."""
        warn("Evaluator.measured goes with fedgen 0.4: call evaluate", DeprecationWarning)
        self.prepare()
        found = Found()
        for part in made:
            found |= self.real.scores(part, density=density, answers=answers)
        return {key: scores for key, scores in found.items() if where(*self.plan.places[key])}

    def records(self, found: Found, generator: str, counts: Counts, **details: Any) -> list[ScoreRecord]:
        """The records of scores of `measured`, which `evaluate` gives."""
        warn("Evaluator.records goes with fedgen 0.4: call evaluate", DeprecationWarning)
        return self.real.records(found, generator, counts, **details)

    def of_one(self, split: Split, place: int, among: Sequence[Panel]) -> "Evaluator":
        """The same evaluation of one client of one split alone, by its place, in some of the embeddings."""
        panels = [replace(panel, choices=tuple(self.plan.choices(split, panel))) for panel in among]
        same: dict[str, Any] = {"num_images": self.num_images, "seed": self.seed, "batch_size": self.batch_size}
        same |= {"device": self.device, "chunk": self.chunk, "presets": [panel for panel in panels if panel.choices]}
        return Evaluator([split.of_one(place)], embeddings=(), **same)

    def floor(self) -> list[ScoreRecord]:
        """The scores of real images in place of generated ones, at most `num_images` of them, for each split with some.

        A perfect generator would score about this: with as many images, this is the bias of the score itself. Scores
        that are not of images, and those that need more images than there are, have none. With `controls`, those of
        the other stand-ins too.
        """
        if self._floor is None:
            self.real.prepare()
            names = dict.fromkeys(name for _, _, name in self.real.stand_ins)
            self._floor = [record for name in names for record in self._floor_records(name)]
        return self._floor

    def _floor_records(self, name: str) -> list[ScoreRecord]:
        """The records of the scores that real images suffice for, in a generator's place, e.g. the "floor"."""
        found, counts = Found(), dict[Place, int]()
        for split, panel in product(self.splits, self.panels):
            key = split.name, panel.embedding.name
            if (*key, name) not in self.real.stand_ins:
                continue
            features, labels = self.real.stand_ins[*key, name]
            possible = [choice for choice in self.plan.choices(split, panel) if choice.definition.has_floor]
            possible = [choice for choice in possible if labels is not None or choice.needs not in BY_CLASS]
            possible = [choice for choice in possible if not choice.definition.too_few(len(features), f"the {name}")]
            least = 0 if panel.on_images else features.shape[1]
            names = [one.name for one in possible if len(features) >= one.definition.least_images(least)]
            # read where they are on disk, and to the device
            given = self.real.embed(panel, features) if panel.on_images else features[:]
            found[key] = self.real.score(split, panel, given, only=names, labels=labels, real=True)
            counts[key] = len(features)
        alike = "" if name_weights(self.weights) == "examples" else "real images count once, whatever clients' weights"
        return self.real.records(found, name, counts, note=alike)


def _never(number: int, draws: torch.Generator) -> Tensor:
    raise TypeError(f"{number} images are asked for, and no score needs some")


def evaluate(model: nn.Module | Sample, clients: Clients, round: int = 0, **options: Any) -> list[ScoreRecord]:
    """The score records of one model against clients; `score_table(records)` is their table.

    Args:
        model: a module with `sample(num_images, generator=None)` where a score needs images, or a sampler; for the
            score "ll" also with `log_prob(points)`, for "loss" with `example_losses(images, labels, seed)`. Scores in
            the embeddings that its attribute `optimised_on` names are marked.
        clients: a FederatedDataModule; its `clients`, of whom the images that they train on count; a list of Examples,
            one a client; splits; or {split: [examples of each client]}.
        round: stored in the records, and part of the images' seed.
        options: as for `Evaluator`.

    Examples:
        >>> import torch
        >>> import fedgen
        >>> data = fedgen.FederatedDataModule(fedgen.Digits(), fedgen.ByClass())
        >>> def noise(count, generator):
        ...     return torch.rand(count, 1, 8, 8, generator=generator) * 2 - 1
        >>> records = fedgen.evaluate(noise, data, embeddings=["pixels"], num_images=100, scores=["kid"])
        >>> sorted({record.name for record in records})
        ['kid_all', 'kid_avg', 'kid_worst']
    """
    evaluator = Evaluator(clients, **options)
    sample = evaluator.sampler_of(model) if isinstance(model, nn.Module) else model
    asked = evaluator.asked_of(model)
    evaluator.try_out(sample, **asked)
    # scores in an embedding that its training optimised are marked, as where a run is scored
    used = optional(model, FederatedModule, "optimised_on")
    return evaluator.evaluate(sample, round, optimised_on=used, **asked).records
