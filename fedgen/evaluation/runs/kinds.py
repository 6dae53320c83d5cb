"""Kinds of scores: numbers of images, embeddings' weights, clients' weights, seeds and settings that do not compare."""

from collections.abc import Callable, Iterable, Sequence
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
    own = {*say_kind(record).split(", "), *_further(record)}
    return {word.strip() for word in kind.split(",")} <= own


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
        place = record.column if record.is_model else (record.generator, record.round, record.column)
        found.setdefault(place, {}).setdefault(record.conditions, []).append(record)
    several = any(len(kinds) > 1 for kinds in found.values())
    own = _of_recipe(folder) if several and folder is not None else lambda record: False
    first = wanted or own

    def rank(group: Sequence[ScoreRecord]) -> tuple[Any, ...]:
        best = first(group[0]), own(group[0])
        return (*best, *((0, 0) if any(best) else (len(group), group[0].num_generated)))

    chosen = {place: max(kinds.values(), key=rank)[0] for place, kinds in found.items()}
    for place, kinds in found.items():
        if not chosen[place].is_model and (model := chosen.get(chosen[place].column)):
            chosen[place] = max((group[0] for group in kinds.values()), key=lambda record: _likeness(record, model))
    return [r for r in records if _stays(r, chosen)] if several else list(records)


def _stays(record: ScoreRecord, chosen: dict[Any, ScoreRecord]) -> bool:
    """Whether a record is of the chosen kind; clients' fine-tuned models have no other than the model's."""
    model = chosen.get(record.column)
    if record.is_model and model:
        return record.conditions == model.conditions
    if record.is_fine_tuned and model and _likeness(record, model)[0] and record.num_generated != model.num_generated:
        return False
    return record.conditions == chosen[record.generator, record.round, record.column].conditions


def _likeness(record: ScoreRecord, model: ScoreRecord) -> tuple[bool, bool, int]:
    """How well what stands in a model's place was measured as it was."""
    mine, its = ((r.embedding_fingerprint, r.reference, r.weights, r.seed, r.score_settings) for r in (record, model))
    return mine == its, record.num_generated <= model.num_generated, record.num_generated


def _of_recipe(folder: Path) -> Wanted:
    """Whether a record is of the evaluation in the recipe that a run's folder keeps, if it does."""
    try:
        recipe = read_yaml(folder / RECIPE)
        asked = next(
            one["init_args"] for one in recipe["trainer"]["callbacks"] if "FederatedEvaluation" in one["class_path"]
        )
        number, weights, seed = asked["num_images"], asked["weights"], asked["seed"]
        seed = recipe["seed_everything"] if seed is None else seed
    except (OSError, ValueError, LookupError, TypeError, StopIteration):
        return lambda record: False
    weights = weights if isinstance(weights, str) else "given"
    return lambda record: (record.num_generated, record.weights, record.seed) == (number, weights, seed)


def say_others(records: Iterable[ScoreRecord], shown: Sequence[ScoreRecord]) -> str:
    """The kinds that are shown where there are others, these, and how to choose; "" where there are none."""
    models = {record.column: record for record in shown if record.is_model}
    rounds: dict[tuple[str, str, str], set[int | None]] = {}
    for record in records:
        model = models.get(record.column)
        if record.is_model and model and record.conditions != model.conditions:
            words = [word for word in (*say_kind(record).split(", "), *_further(record)) if not is_of(model, word)]
            extra = [word for word in words if word in _further(record)]
            names = say_kind(model), ", ".join([say_kind(record), *extra]), words[0] if words else ""
            rounds.setdefault(names, set()).add(record.round)
    return "; ".join(
        f"scores of {model} are shown, not those of {other} ({len(found)} checkpoint{'s' * (len(found) > 1)}), which"
        f" --kind {word!r} shows"
        for (model, other, word), found in rounds.items()
    )


def _further(record: ScoreRecord) -> list[str]:
    """What else tells kinds apart, which their names leave out."""
    return [f"fingerprint {record.embedding_fingerprint}", f"against {record.reference.replace(', ', ' and ')}"]
