"""Models to score records: the one evaluation that callback, command line and experiments use."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedgen.embeddings import Embedding, FeatureCache, embed, load_embedding
from fedgen.evaluation.records import FLOOR, MODEL, Columns, ScoreRecord
from fedgen.evaluation.reference import AGGREGATES, Reference, check_distinct, check_scores, records_of
from fedgen.evaluation.sampling import CHUNK, Sample, draw_images, sampler_of
from fedgen.evaluation.splits import Clients, Split, as_splits
from fedgen.scores import resolve_weights
from fedgen.scores.aggregate import Weights
from fedgen.seeds import generator, resolve


@dataclass(frozen=True, eq=False)
class Evaluation:
    """One evaluation's records, and the first split's generated images, uint8 [N, C, H, W] or points [N, D]."""

    records: list[ScoreRecord]
    images: Tensor


class Evaluator:
    """Scores generators against clients: sampled once a split, embedded once an embedding, one pass for all clients.

    Everything is checked when it is made; the clients' images are embedded on first use. Splits are scored on
    independent generated images, so that a model selected on one is reported without its luck.

    Args:
        splits: the clients' real images: a data module, splits, or {name: [examples of each client]}. The first is the
            one to select by.
        embeddings: names or embeddings; the first gives the columns without a prefix.
        num_images: generated images a split.
        scores: "fid", "kid".
        weights: "examples" (n_i / n), "uniform", or one number a client; the same for avg and all.
        seed: of the generated images; None takes what `seed_everything` was given, else 0.
        cache: keeps the real images' features on disk.
        batch_size: images embedded at once.
        device: where to embed; where each embedding lies by default.
        chunk: images sampled at once.

    Raises:
        ValueError: for images that an embedding cannot take, clients with too few images, unknown or repeated names.
    """

    def __init__(
        self,
        splits: Clients,
        embeddings: Sequence[str | Embedding] = ("efficientnet-lite0",),
        num_images: int = 10_000,
        scores: Sequence[str] = ("fid", "kid"),
        weights: Weights = "examples",
        seed: int | None = None,
        cache: FeatureCache | None = None,
        batch_size: int = 64,
        device: torch.device | str | None = None,
        chunk: int = CHUNK,
    ) -> None:
        self.splits, self.scores = as_splits(splits), tuple(scores)
        self.embeddings = [load_embedding(embedding) for embedding in embeddings]
        self.num_images, self.weights, self.seed = num_images, weights, resolve(seed)
        self.cache, self.batch_size, self.device, self.chunk = cache, batch_size, device, chunk
        self._references: dict[tuple[str, str], Reference] = {}
        self._floors: dict[tuple[str, str], Tensor] = {}
        self._floor: list[ScoreRecord] | None = None
        self._check()

    def _check(self) -> None:
        check_distinct("split", [split.name for split in self.splits])
        check_distinct("embedding", [embedding.name for embedding in self.embeddings])
        check_scores(self.scores)
        if self.num_images < 2:
            raise ValueError(f"num_images={self.num_images}: scores need at least 2 generated images, better thousands")
        shape = self.splits[0].shape
        for split in self.splits:
            if split.shape != shape:
                raise ValueError(f"split {split.name!r} has images {list(split.shape)}, the first {list(shape)}")
            resolve_weights(self.weights, split.counts)
            for embedding in self.embeddings:
                embedding.check((2, *split.shape))

    @property
    def columns(self) -> Columns:
        """The names of this evaluation's columns."""
        return Columns(self.splits[0].name, self.embeddings[0].name)

    def column_names(self) -> list[str]:
        """All columns that `evaluate` fills, e.g. "fid_avg", "report/kid_all"."""
        return [
            f"{self.columns.prefix(split.name, embedding.name)}{score}_{aggregate}"
            for split in self.splits
            for embedding in self.embeddings
            for score in self.scores
            for aggregate in AGGREGATES
        ]

    def client_weights(self) -> Tensor:
        """The clients' weights in the first split: float64 [K], summing to 1."""
        return resolve_weights(self.weights, self.splits[0].counts)

    def prepare(self) -> None:
        """Embeds the clients' images of every split, and those of the floors, once."""
        if self._references:
            return
        references, floors = {}, {}
        for embedding in self.embeddings:
            features: dict[int, Tensor] = {}  # the floor of one split is often the reference of another
            for split in self.splits:
                for images, what in ((split.images, split.reference), (split.floor, f"floor of {split.name}")):
                    if images is not None and id(images) not in features:
                        features[id(images)] = self._embed_real(embedding, images, what)
                key = split.name, embedding.name
                parts = features[id(split.images)].split(list(split.counts))
                references[key] = Reference(parts, self.scores, self.weights)
                if split.floor is not None:
                    draws = generator(self.seed, "floor", split.name)
                    chosen = torch.randperm(len(split.floor), generator=draws)[: self.num_images].sort().values
                    floors[key] = features[id(split.floor)][chosen]
        self._references, self._floors = references, floors

    def _embed_real(self, embedding: Embedding, images: Tensor, what: str) -> Tensor:
        description = f"embedding {what} with {embedding.name}"
        return embed(embedding, images, self.batch_size, self.device, description, self.cache)

    def try_out(self, sample: Sample) -> None:
        """Draws and embeds two images, so that what would fail after a long training fails before it.

        Raises:
            ValueError: if the images are not of the clients' shape, or an embedding fails on them.
        """
        images = draw_images(sample, 2, self.seed, -1, "trial", chunk=2, description="trying out")
        shape = self.splits[0].shape
        if tuple(images.shape[1:]) != shape:
            raise ValueError(
                f"the model samples images of shape {list(images.shape[1:])}, but the clients' are {list(shape)};"
                " give the model the data's channels and size"
            )
        for embedding in self.embeddings:
            embed(embedding, images, self.batch_size, self.device)

    def evaluate(
        self,
        sample: Sample,
        round: int = 0,
        checkpoint: str | None = None,
        optimised_on: Sequence[str] = (),
        note: str = "",
    ) -> Evaluation:
        """The scores of one model against every split and embedding.

        Args:
            sample: the model's sampler, (number, torch.Generator) to images; see `sampler_of`.
            round: the round after which this is the model; part of the images' seed.
            checkpoint: file name of the model's checkpoint.
            optimised_on: scores or embeddings that a training loss used.
            note: what else a reader must know.
        """
        self.prepare()
        details = {"round": round, "checkpoint": checkpoint, "optimised_on": list(optimised_on), "note": note}
        records: list[ScoreRecord] = []
        first: Tensor | None = None
        for split in self.splits:
            label = f"sampling for {split.name}"
            images = draw_images(sample, self.num_images, self.seed, round, split.name, self.chunk, label)
            first = images if first is None else first
            for embedding in self.embeddings:
                features = embed(embedding, images, self.batch_size, self.device, f"embedding with {embedding.name}")
                records += self._score(split, embedding, features, generator=MODEL, **details)
        assert first is not None  # there is at least one split
        return Evaluation(records, first)

    def floor(self) -> list[ScoreRecord]:
        """The scores of real images in place of generated ones, at most `num_images` of them, for each split with some.

        A perfect generator would score about this: with as many images, this is the bias of the score itself.
        """
        if self._floor is None:
            self.prepare()
            self._floor = []
            for split in self.splits:
                for embedding in self.embeddings:
                    features = self._floors.get((split.name, embedding.name))
                    if features is not None:
                        self._floor += self._score(split, embedding, features, generator=FLOOR)
        return self._floor

    def _score(self, split: Split, embedding: Embedding, features: Tensor, **details: Any) -> list[ScoreRecord]:
        scores = self._references[split.name, embedding.name].score(features)
        common = {
            "split": split.name,
            "embedding": embedding.name,
            "embedding_fingerprint": embedding.fingerprint(),
            "embedding_settings": dict(embedding.settings),
            "reference": split.reference,
            "num_generated": len(features),
            "num_clients": len(split.counts),
            "seed": self.seed,
            "weights": self.weights if isinstance(self.weights, str) else "given",
            **details,
        }
        return records_of(scores, split.client_names, common)


def evaluate(model: nn.Module | Sample, clients: Clients, round: int = 0, **options: Any) -> list[ScoreRecord]:
    """The score records of one model against clients, in one call.

    Args:
        model: a module with `sample(num_images, generator=None)`, or a sampler.
        clients: a data module, splits, or {split: [examples of each client]}.
        round: stored in the records, and part of the images' seed.
        options: as for `Evaluator`: embeddings, num_images, scores, weights, seed, ...
    """
    evaluator = Evaluator(clients, **options)
    sample = sampler_of(model) if isinstance(model, nn.Module) else model
    evaluator.try_out(sample)
    return evaluator.evaluate(sample, round).records
