"""Kinds of scores: numbers of images, embeddings' weights, clients' weights, seeds and settings that do not compare."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fedgen.evaluation.generation.sampling_settings import say_sampling
from fedgen.evaluation.records import ScoreRecord
from fedgen.evaluation.runs.run_files import RECIPE
from fedgen.io.files import read_yaml

Wanted = Callable[[ScoreRecord], bool]


def say_kind(record: ScoreRecord) -> str:
    """The conditions of a score: "200 images, efficientnet-lite0, weights by examples, seed 0", and its settings."""
    settings = [f"{name} {value}" for name, value in record.score_settings.items()]
    said = [f"{record.num_generated} images", record.embedding, say_weights(record), *settings]
    return ", ".join(filter(None, [*said, say_sampling(record.sampling)]))


def say_weights(record: ScoreRecord) -> str:
    """The clients' weights, and the seed of the generated images: "weights by examples, seed 0"."""
    return f"weights {'by ' * (record.weights == 'examples')}{record.weights}, seed {record.seed}"


def is_of(record: ScoreRecord, kind: str) -> bool:
    """Whether a record is of a kind by some of its words: "50 images", "weights uniform, seed 1"."""
    return {word.strip() for word in kind.split(",")} <= {*_words(record)}


def _words(record: ScoreRecord) -> list[str]:
    """A kind's words, and behind them two that its name leaves out."""
    further = [f"fingerprint {record.embedding_fingerprint}", f"against {record.reference.replace(', ', ' and ')}"]
    return [*say_kind(record).split(", "), *further]


def one_kind(
    records: Sequence[ScoreRecord], folder: Path | None = None, wanted: Wanted | None = None
) -> list[ScoreRecord]:
    """The records without those of other kinds than one for each column.

    That is one that is wanted, else that of the run's recipe, else that of most checkpoints, of those the one of most
    images. Real images in a model's place stay as far as they were measured likewise, of at most as many images.

    Args:
        records: in their order.
        folder: of the run, which may keep a recipe.
        wanted: whether a record's kind comes before others.
    """
    found: dict[Any, dict[Any, list[ScoreRecord]]] = {}
    for record in records:
        found.setdefault(_place(record), {}).setdefault(record.conditions, []).append(record)
    if all(len(kinds) == 1 for kinds in found.values()):
        return list(records)
    own = _of_recipe(folder)
    first = wanted or own

    def rank(group: Sequence[ScoreRecord]) -> tuple[Any, ...]:
        best = first(group[0]), own(group[0])
        return (*best, *((0, 0) if any(best) else (len(group), group[0].num_generated)))

    chosen = {place: max(kinds.values(), key=rank)[0] for place, kinds in found.items()}
    for place, kinds in found.items():
        model = chosen.get(place[-1:])
        if model and len(place) > 1:
            alike = max((_likeness(group[0], model), kind) for kind, group in kinds.items())
            chosen[place] = kinds[alike[1]][0]
    shown = [record for record in records if record.conditions == chosen[_place(record)].conditions]
    models = {record.column: record.num_generated for record in shown if record.is_model}
    return [r for r in shown if not r.is_fine_tuned or r.num_generated == models.get(r.column, r.num_generated)]


def _place(record: ScoreRecord) -> tuple[Any, ...]:
    return (record.column,) if record.is_model else (record.generator, record.round, record.column)


def _likeness(record: ScoreRecord, model: ScoreRecord) -> tuple[bool, bool, int]:
    """Agreement of what stands in a model's place with the model's conditions."""
    mine, its = ((r.embedding_fingerprint, r.reference, r.weights, r.seed, r.score_settings) for r in (record, model))
    return mine == its, record.num_generated <= model.num_generated, record.num_generated


def _of_recipe(folder: Path | None) -> Wanted:
    """Whether a record is of the evaluation in the recipe that a run's folder keeps, if it does."""
    try:
        recipe = read_yaml(folder / RECIPE) if folder else {}
        callbacks = recipe["trainer"]["callbacks"]
        asked = next(one["init_args"] for one in callbacks if "FederatedEvaluation" in one["class_path"])
        weights = asked["weights"] if isinstance(asked["weights"], str) else _name_weights(asked["weights"])
        seed = recipe["seed_everything"] if asked["seed"] is None else asked["seed"]
        own = asked["num_images"], weights, seed
    except (OSError, ValueError, LookupError, TypeError, StopIteration):
        return lambda record: False
    return lambda record: (record.num_generated, record.weights, record.seed) == own


def _name_weights(weights: Sequence[float]) -> str:
    from fedgen.scores.aggregate import name_weights  # which imports torch

    return name_weights(weights)


def say_others(records: Sequence[ScoreRecord], shown: Sequence[ScoreRecord]) -> str:
    """The kinds that are shown where there are others, these, and how to choose; "" where there are none."""
    models = {record.column: record for record in shown if record.is_model}
    rounds: dict[tuple[str, str, str], set[int | None]] = {}
    for record in records:
        model = models.get(record.column)
        if record.is_model and model and record.conditions != model.conditions:
            further = [word for word in _words(record)[-2:] if word not in _words(model)]
            words = ", ".join(word for word in _words(record) if word not in _words(model))
            names = say_kind(model), ", ".join([say_kind(record), *further]), words
            rounds.setdefault(names, set()).add(record.round)
    return "; ".join(
        f"scores of {model} are shown, not those of {other} ({len(found)} checkpoint{'s' * (len(found) > 1)}: fedgen"
        f" select --kind {words!r})"
        for (model, other, words), found in rounds.items()
    )
