"""Scores of stored images: any folders and .npz files, without a recipe or a model."""

import os
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from fedgen.data.formats.image_files import total_unread
from fedgen.embeddings import FeatureCache
from fedgen.embeddings.base import TextEmbedding
from fedgen.embeddings.embed import embed_batches
from fedgen.evaluation.panels import DEFAULT_SCORES, check_embedding, find_preset
from fedgen.evaluation.plan import records_of, remarks_by_score
from fedgen.evaluation.records import ScoreRecord
from fedgen.evaluation.reference import Reference, check_clients_of, check_count, passes, shared
from fedgen.evaluation.score_choice import ScoreChoice, ScoreLike, check_aggregates, choose_aggregates, choose_scores
from fedgen.evaluation.splits import LEAST
from fedgen.evaluation.stored.stored_images import Images, Reading, TextLines, UnreadableFilesError
from fedgen.evaluation.stored.stored_sets import (
    DEFAULT,
    FEATURES_OF,
    STATISTICS_OF,
    Kind,
    Named,
    StoredSet,
    check_dims,
    check_images,
    open_sets,
    settle_embedding,
)
from fedgen.foreign_text import listed
from fedgen.io.files import atomic_write
from fedgen.progress import track
from fedgen.scores import resolve_weights
from fedgen.scores.aggregate import Weights, name_weights
from fedgen.scores.definition import BY_CLASS
from fedgen.statistics import Gaussian, save_npz, summarize

# what scores need that is known of a run alone
RUN_ONLY = {"points": "a model's density", "held out": "the images that clients held out"}
RUN_ONLY |= dict.fromkeys(BY_CLASS, "images by class")


@dataclass(frozen=True)
class StoredOptions:
    """Options for scoring stored sets.

    Args:
        scores: names, or {"name": ..., options}, as for `Evaluator`, but "ll", "memorisation", "fld" and "utility";
            None for fid and kid, without kid where a set is statistics, which have no features.
        weights: "examples" (n_i / n), "uniform", or one number per client, as for `Evaluator`.
        reading: how image files become pixels.
        counts: number of images by name, for statistics that do not store it.
        batch_size: images read and embedded at once.
        device: where to embed.
        cache: keeps the features of images on disk.
        split: what the records call the clients.
        aggregates: power means beside avg, all and worst, e.g. ("power-2",).
        preset: the one score to measure, in its own embedding: "fid", "kid", "fd-dinov2", "cmmd", "is" or "fcd".
        optimised_on: embeddings that the generator's training used, if known: scores in them are marked.
    """

    scores: Sequence[ScoreLike] | None = None
    weights: Weights = "examples"
    reading: Reading = field(default_factory=Reading)
    counts: Mapping[str, float] = field(default_factory=dict)
    batch_size: int = 64
    device: str = "cpu"
    cache: FeatureCache | None = None
    split: str = "clients"
    aggregates: Sequence[str] = ()
    preset: str | None = None
    optimised_on: Sequence[str] = ()


class StoredEvaluation:
    """One generated set against clients, all stored; checked when it is made, embedded when the records are asked for.

    Args:
        generated: a folder of images, or an .npz or .npy file of images, features or statistics.
        clients: paths of the same kinds, one per client.
        embedding: a name, or an embedding; None for that of the files, else `default`.
        weights: a local file of the embedding's weights.
        options: all other options.
        default: embeds images where no embedding is asked for.

    Raises:
        ValueError: for a wrong path, option or combination, before any long work.
    """

    has_clients = True  # whether the sets beside the generated one are clients, and no reference

    def __init__(
        self,
        generated: str | Path,
        clients: Sequence[str | Path],
        embedding: Named | None = None,
        weights: str | Path | None = None,
        options: StoredOptions | None = None,
        default: str = DEFAULT,
    ) -> None:
        self.options = options or StoredOptions()
        if not clients:
            raise ValueError("give at least one client")
        if self.options.batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {self.options.batch_size}")
        resolve_weights(self.options.weights, [1.0] * len(clients))
        self.aggregates = choose_aggregates(self.options.aggregates)
        asked, embedding = self._asked(embedding)
        self.sets = open_sets([generated, *clients], self.options.reading, self.options.counts, self.has_clients)
        self.client_names = [stored.name for stored in self.sets[1:]]
        self.choices = self._choose_scores(asked)
        self.scores = tuple(choice.name for choice in self.choices)
        check_aggregates(self.aggregates, self.choices)
        self._check_counts()
        self.identity, self.embedding = settle_embedding(
            self.sets, embedding, weights, default, self.options.device, self.options.reading.resize
        )
        self._channels = check_images(self.embedding, self.sets) if self.embedding is not None else 0
        for choice in self.choices:
            check_embedding(choice, self.identity.name)
        check_dims({stored.path: stored.dim for stored in self.sets if stored.dim is not None})
        self._values: list[Tensor | Gaussian] = []

    @property
    def skipped(self) -> list[str]:
        """The files that were left out, with the reason of each."""
        return [reason for stored in self.sets if stored.images for reason in stored.images.skipped]

    def counts(self) -> list[float | None]:
        """Number of images of the generated set, then of each client; None where unknown. Embeds if need be."""
        return [len(v) if isinstance(v, Tensor) else one.count for v, one in zip(self.values(), self.sets)]

    def values(self) -> list[Tensor | Gaussian]:
        """Features [n, D], or the summary, of the generated set, then of each client; embedded once.

        Raises:
            UnreadableFilesError: for image files that cannot be read, those of all sets, unless they are to be skipped.
        """
        if not self._values:
            # first what needs no embedding, whose mistakes then cost none
            read = {place: stored.load() for place, stored in enumerate(self.sets) if not stored.images}
            values, broken = [], list[str]()
            for place, stored in enumerate(self.sets):
                try:
                    if broken and stored.images:  # read to the end, so that the error lists the files of all sets
                        deque(stored.images.batches(self._channels, self.options.batch_size), maxlen=0)
                    else:
                        values.append(self._embed(stored.images, stored) if stored.images else read[place])
                except UnreadableFilesError as error:
                    broken += error.reasons
            if broken:
                raise UnreadableFilesError(broken, sum(len(stored.images) for stored in self.sets if stored.images))
            check_dims({stored.path: _dim(value) for stored, value in zip(self.sets, values)})
            self._values = [values[0], *shared(values[1:])]  # for all scores, none of which copies them again
        return self._values

    def records(self) -> list[ScoreRecord]:
        """The scores against every client (in the records of avg), avg, all and worst."""
        generated, *clients = self.values()
        counts = self.counts()
        common = {
            "split": self.options.split,
            "embedding": self.identity.name,
            "embedding_fingerprint": self.identity.fingerprint,
            "embedding_settings": self.identity.settings,
            "reference": self.describe_clients(counts[1:]),
            "num_generated": int(counts[0] or 0),
            "seed": 0,
            "weights": name_weights(self.options.weights),
            "optimised_on": list(self.options.optimised_on),
            "note": "; ".join([f"generated: {self.sets[0].path}", *self.remarks()]),
        }
        self._check_sizes(counts)  # again, as unreadable files may have been left out
        found, groups = [], passes(self.choices)
        for group in track(groups, "scoring", len(groups), "scores"):
            reference = Reference(clients, group, self.options.weights, self.aggregates)
            found += reference.score(generated, errors=None not in counts)
        found.sort(key=lambda score: self.scores.index(score.name))
        return records_of(found, self.client_names, common, self.aggregates, self.choices)

    def _asked(self, embedding: Named | None) -> tuple[tuple[ScoreChoice, ...] | None, Named | None]:
        """The scores, None for the usual ones, and the embedding to use; checked before anything is opened."""
        if self.options.preset is not None:
            if self.options.scores is not None:
                raise ValueError(f"preset {self.options.preset} has its own score; omit the scores")
            preset = find_preset(self.options.preset)
            if embedding is not None:
                own = preset.embedding_name
                raise ValueError(f"preset {preset.name} has its own embedding, {own}; omit yours")
            return (preset.choice,), preset.embedding_name
        chosen = None if self.options.scores is None else choose_scores(self.options.scores)
        for choice in chosen or ():
            if what := RUN_ONLY.get(choice.needs):
                raise ValueError(f"score {choice.name} needs {what}, which stored images do not have; score a run")
        return chosen, embedding

    def _choose_scores(self, asked: tuple[ScoreChoice, ...] | None) -> tuple[ScoreChoice, ...]:
        summary = next((stored for stored in self.sets if stored.kind == "statistics"), None)
        if asked is None:
            asked = choose_scores(DEFAULT_SCORES if summary is None else ["fid"])
        for choice in asked:
            if summary is not None and choice.needs != "summaries":
                raise ValueError(
                    f"{choice.name} needs features, but {summary.path} holds only statistics; give its images or"
                    " features, or ask for fid alone"
                )
        return asked

    def _check_sizes(self, counts: Sequence[float | None]) -> None:
        if counts[0] is not None:
            check_count(self.choices, counts[0], str(self.sets[0].path))
        known = [2.0 if count is None else count for count in counts[1:]]  # of statistics, where fid is the only score
        check_clients_of(self.choices, known, [str(stored.path) for stored in self.sets[1:]], self.options.weights)

    def _check_counts(self) -> None:
        divided = any(choice.settings.get("ddof") == 0 for choice in self.choices)
        unknown = [stored for stored in self.sets[0 if divided else 1 :] if stored.count is None]
        if unknown and (divided or len(self.sets) > 2):
            files = ", ".join(str(stored.path) for stored in unknown)
            raise ValueError(
                f"{'ddof=0 needs' if divided else 'avg and all need'} each set's number of images, which {files} do not"
                f" say; give it as counts (--counts {' '.join(f'{stored.name}=N' for stored in unknown)})"
            )
        self._check_sizes([stored.count for stored in self.sets])

    def _embed(self, images: Images, stored: StoredSet) -> Tensor:
        assert self.embedding is not None  # loaded where a set has images
        options, cache, key = self.options, self.options.cache, ""
        if cache is not None:
            how = f"{self._channels} channels, {options.reading}, batch {options.batch_size} on {options.device}"
            key = cache.key(images.digest(), self.embedding, how)
            if (found := cache.load(key)) is not None:
                return found
        if isinstance(images, TextLines):
            assert isinstance(self.embedding, TextEmbedding)
            images.keep_usable(self.embedding)
        batches = images.batches(self._channels, options.batch_size)
        description = f"embedding {stored.name} with {self.embedding.name}"
        features = embed_batches(self.embedding, batches, len(images), description)
        if len(features) < LEAST:
            raise ValueError(f"{stored.path} has {len(features)} readable image(s), but a score needs {LEAST}")
        if cache is not None and not images.skipped:
            cache.store(key, features)
        return features

    def describe_clients(self, counts: Sequence[float | None]) -> str:
        """The clients in words, as `Split.reference` has them."""
        paths = [stored.path for stored in self.sets[1:]]
        absolute = any(path.is_absolute() for path in paths)
        where = os.path.commonpath([path.absolute() if absolute else path for path in paths]) or "."
        clients = "1 client" if len(paths) == 1 else f"{len(paths)} clients"
        known = [count for count in counts if count is not None]
        kind = self.sets[1].images.kind if self.sets[1].images else "images"
        images = f"{sum(known):.12g} {kind}" if len(known) == len(counts) else f"an unknown number of {kind}"
        return f"{where}, {clients}, {images}"

    def remarks(self) -> list[str]:
        """Return what a reader of the scores must know beside them; complete once they were asked for."""
        generated, side = self.sets[0].path.resolve(), self.options.reading.resize
        means = [one.mean if isinstance(one, Gaussian) else one.double().mean(0) for one in self._values]
        copies = [bool((one - means[0]).norm() <= 1e-7 * means[0].norm()) for one in means]  # statistics of it, too
        same = copies if means else [False] * len(self.sets)
        twins = [
            stored.name
            for stored, alike in zip(self.sets[1:], same[1:], strict=True)
            if alike or stored.path.resolve() == generated
        ]
        notes = [f"the generated set is client {name}, whose score compares images with themselves" for name in twins]
        if self.has_clients and len(self.sets) == 2 and self.options.reading.recursive:
            notes.append(f"{self.sets[1].path} with its subfolders is one client, so avg and all are equal")
        if side and self.embedding is not None:
            notes.append(f"images fitted to {side} x {side}")
        notes += total_unread(stored.images.unread for stored in self.sets if stored.images).remarks()
        files = 0
        for stored in self.sets:
            lost = 0 if stored.images is None else len(stored.images.skipped)
            if lost and isinstance(stored.images, TextLines):
                notes.append(f"{lost} of {lost + len(stored.images)} lines of {stored.path} are left out")
            else:
                files += lost
        if files:
            notes.append(f"unreadable files left out: {files}")
        for remark in dict.fromkeys(stored.remark for stored in self.sets if stored.remark):
            notes.append(f"{listed(one.path for one in self.sets if one.remark == remark)}: {remark}")
        unweighted = [choice.name for choice in self.choices if not choice.definition.knows_weights]
        by_images = isinstance(self.options.weights, str) and self.options.weights == "examples"
        if unweighted and not by_images and len(self.sets) > 2:
            notes.append(f"all of {', '.join(unweighted)} counts every image once, whatever the clients' weights")
        if silent := [stored.path for stored in self.sets if stored.kind != "images" and stored.says_nothing]:
            notes.append(f"the embedding of {listed(silent)} is taken on trust")
        if self._values:  # what is said of Fréchet distances of fewer images than features
            known, *clients = self.counts()
            notes += remarks_by_score(self.choices, _dim(self._values[0]), known, clients).values()
        return notes


def _dim(value: Tensor | Gaussian) -> int:
    return value.dim if isinstance(value, Gaussian) else value.shape[1]


def score_stored(
    generated: str | Path,
    clients: Sequence[str | Path],
    embedding: Named | None = None,
    weights: str | Path | None = None,
    options: StoredOptions | None = None,
) -> list[ScoreRecord]:
    """The score records of a stored generated set against stored clients; arguments as for `StoredEvaluation`."""
    return StoredEvaluation(generated, clients, embedding, weights, options).records()


def files_in(evaluation: StoredEvaluation, folder: str | Path, kinds: Sequence[Kind]) -> list[tuple[int, Path]]:
    """The place of each set of some kinds with its file in a folder; ValueError if two sets or files are one."""
    found: dict[Path, int] = {}
    inputs = {stored.path.resolve() for stored in evaluation.sets}
    for place, stored in enumerate(evaluation.sets):
        path = Path(folder) / f"{stored.name.replace('/', '_')}.npz"
        other = evaluation.sets[found.setdefault(path, place)]
        if other.path.absolute() != stored.path.absolute():
            raise ValueError(f"several sets would be written to {path.name}; rename their folders")
        if path.resolve() in inputs and stored.kind in kinds:
            raise ValueError(f"{path} is one of the sets to score and would be overwritten; choose another folder")
    return [(place, path) for path, place in found.items() if evaluation.sets[place].kind in kinds]


def save_statistics(evaluation: StoredEvaluation, folder: str | Path) -> list[Path]:
    """Writes mu and sigma of every set that is not statistics already, with their embedding; returns the paths.

    pytorch-fid reads the files as they are; with `counts` in them they are stored sets again.
    """
    identity, paths = evaluation.identity, []
    for place, path in files_in(evaluation, folder, STATISTICS_OF):
        features: Any = evaluation.values()[place]
        paths.append(save_npz(path, summarize(features), identity.name, identity.fingerprint, identity.resize))
    return paths


def save_features(evaluation: StoredEvaluation, folder: str | Path) -> list[Path]:
    """Writes the features [N, D] of every set of images under "features", with their embedding; returns the paths."""
    identity, paths = evaluation.identity, []
    for place, path in files_in(evaluation, folder, FEATURES_OF):
        features: Any = evaluation.values()[place]
        said = {"embedding": identity.name, "weights": identity.fingerprint, "resize": identity.resize}
        words: dict[str, Any] = {key: np.asarray(word) for key, word in said.items()}
        with atomic_write(path) as file:
            np.savez(file, features=features.numpy(), **words)
        paths.append(path)
    return paths
