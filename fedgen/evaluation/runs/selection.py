"""Selection of checkpoints by a column, and the pairs about which avg and all disagree."""

import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fedgen.class_paths import nearest
from fedgen.evaluation.marks import GAPS, mark_of, strongest
from fedgen.evaluation.names import REPORT
from fedgen.evaluation.records import BALANCED, Columns, ScoreRecord, by_column, grouped, say_interval, say_sampling
from fedgen.evaluation.runs.scores_file import RECIPE
from fedgen.foreign_text import listed
from fedgen.io.files import read_yaml
from fedgen.io.regular_files import is_regular
from fedgen.scores import rankings

Numbers = tuple[float, ...]
ByColumn = dict[str, list[ScoreRecord]]
Real = Literal["fixed", "sample"]  # these real images, or new ones of the same clients
DEFAULT_COLUMNS = ("kid_all", "fid_all")  # KID has no bias of few images, and ranks alike by avg and all


@dataclass(frozen=True)
class Ranked:
    """One checkpoint in a ranking.

    Args:
        round: its round.
        checkpoint: its path, or its file name where no run folder was given; None if it was not kept.
        value: its score in the column.
        standard_error: of that value.
        mark: "*" or "(*)" where a training loss used the score's embedding, so that the value proves little; see
            `evaluation.marks`.
        error_over_clients: standard error if the clients are a sample of a larger population.
    """

    round: int
    checkpoint: Path | None
    value: float
    standard_error: float | None
    mark: str = ""
    error_over_clients: float | None = None

    @property
    def optimised(self) -> bool:
        """Whether a training loss used the score's embedding."""
        return bool(self.mark)


@dataclass(frozen=True)
class InvertedPair:
    """Two checkpoints that two columns order differently.

    Args:
        first_column: "fid_avg", with its prefix.
        second_column: "fid_all", with its prefix.
        better_by_first: the round that the first column prefers.
        better_by_second: the round that the second prefers.
        beyond_error: whether both differences exceed 1.96 combined standard errors of the generated images (the real
            ones are the same for both checkpoints); of many pairs, some do by chance.
        holds: whether both orders hold on these real images: with 95 percent probability none of the pairs marked so
            is wrong.
    """

    first_column: str
    second_column: str
    better_by_first: int
    better_by_second: int
    beyond_error: bool
    holds: bool = False


@dataclass(frozen=True)
class Comparison:
    """The ranks of the same checkpoints by two columns.

    Args:
        first_column: "fid_avg", with its prefix.
        second_column: "fid_all", with its prefix.
        checkpoints: how many have both.
        tau: Kendall's tau-b of the two rankings, best first in each: 1 if they agree on every pair; None where fewer
            than two checkpoints have both, or a column has one value for all.
        pairs: those that the columns order differently.
        marks: of the two columns, where a training loss used their embedding.
    """

    first_column: str
    second_column: str
    checkpoints: int
    tau: float | None
    pairs: list[InvertedPair]
    marks: tuple[str, str] = ("", "")


def default_column(columns: Mapping[str, Sequence[ScoreRecord]], kind: str = "") -> str:
    """The default column to choose checkpoints by: kid_all, else fid_all, else the pool's first."""
    columns = {name: group for name, group in columns.items() if not kind or is_of(group[0], kind)}
    usual = [name for name, group in columns.items() if group[0].split not in GAPS and group[0].score != BALANCED]
    first = [name for name in usual if columns[name][0].split == columns[usual[0]][0].split]
    named = [name for wanted in DEFAULT_COLUMNS for name in first if columns[name][0].name == wanted]
    found = [*named, *(name for name in usual if name.endswith("_all")), *usual, *columns]
    if not found:
        raise ValueError("no scores to choose a checkpoint by")
    return found[0]


def rank(column: Sequence[ScoreRecord], folder: Path | None = None) -> list[Ranked]:
    """The trained checkpoints of one column's records, best first; see `select`."""
    ranked = []
    for record in sorted(trained(column), key=lambda record: (record.badness, record.round)):
        path = Path(record.checkpoint) if record.checkpoint else None
        if path is not None and folder is not None:
            path = folder / path if is_regular(folder / path) else None
        errors = record.standard_error, mark_of(record), record.error_over_clients
        ranked.append(Ranked(record.round or 0, path, record.value, *errors))
    return ranked


def covariance_of(records: Sequence[ScoreRecord], real: Real = "fixed") -> NDArray[np.float64]:
    """The covariance [M, M] of the values of one column, on these real images or on new ones of the same clients."""
    # generated images of different checkpoints count as independent, and the share of other real images does where no
    # influences are stored, both of which is safe
    if real == "fixed":
        return np.diag([record.generated_error**2 for record in records])
    rows = [record.real_influences for record in records if record.real_influences is not None]
    if len(rows) < len(records) or len({len(row) for row in rows}) != 1:
        return np.diag([record.whole_error**2 for record in records])
    shared = np.stack(rows).astype(float)
    return np.diag([record.generated_error**2 for record in records]) + shared @ shared.T


def best_records(column: Sequence[ScoreRecord], real: Real = "fixed") -> list[ScoreRecord]:
    """The trained checkpoints' records of one column among which the best is, with 95 percent; see `covariance_of`."""
    records = trained(column)
    known = [one for one in records if math.isfinite(one.generated_error) and math.isfinite(one.whole_error)]
    mask = rankings.best_set([one.badness for one in known], covariance_of(known, real)).tolist()
    out = {id(record) for record, may_be in zip(known, mask) if not may_be}
    return [record for record in records if id(record) not in out]  # of unknown error any may be


def say_best(column: Sequence[ScoreRecord]) -> list[str]:
    """The set that holds the best checkpoint of a column's records, and the chosen one's value, in a line each."""
    among, interval = best_in_words(column)
    if not among:
        return []
    records = _finite(column)
    chosen = min(records, key=lambda record: record.badness)
    return [among, f"Round {chosen.round} was chosen from {len(records)}: {interval}."]


def best_in_words(column: Sequence[ScoreRecord], name: str = "") -> tuple[str, str]:
    """The set that holds the best checkpoint, as a sentence, and the interval of the chosen one's score; "" if none."""
    records = _finite(column)
    errors = [record.generated_error for record in records]
    if len(records) < 2 or column[0].score == BALANCED or not all(0 < error < math.inf for error in errors):
        return "", ""
    by = f"by {name} " * bool(name)
    known = [real for real in get_args(Real) if np.isfinite(covariance_of(records, real)).all()]
    sets = {real: _rounds(best_records(records, real), len(records)) for real in known}
    others = sets.get("sample", "")
    same, there = others == sets["fixed"], "on others from these clients"
    others = others and (f", and {there}" if same else f"; {there} it is {others}")
    found = rankings.winner([record.badness for record in records], covariance_of(records))
    ends = sorted((-end if records[0].higher_is_better else end) for end in (found.low, found.high))
    among = f"With 95 % confidence the best {by}is {sets['fixed']} on these real {records[0].noun}{others}."
    return among, f"its score is {say_interval(*ends)} (95 %)"


def _finite(column: Sequence[ScoreRecord]) -> list[ScoreRecord]:
    return [record for record in trained(column) if math.isfinite(record.badness)]


def _rounds(records: Sequence[ScoreRecord], of: int) -> str:
    rounds = [record.round for record in records]
    return f"round {rounds[0]}" if len(rounds) == 1 else f"among {len(rounds)} of {of} rounds ({listed(rounds)})"


def inversions(records: Sequence[ScoreRecord]) -> list[InvertedPair]:
    """Every pair of checkpoints that avg and all order differently, for each score, split and embedding."""
    return [pair for comparison in aggregates_compared(records) for pair in comparison.pairs]


def aggregates_compared(records: Sequence[ScoreRecord]) -> list[Comparison]:
    """avg against all, for each score, split and embedding; not of gaps, nor of memorisation, best in the middle."""
    columns = columns_of(records)
    usual = [name for name, group in columns.items() if group[0].score != BALANCED and group[0].split not in GAPS]
    pairs = [(name, f"{name.removesuffix('avg')}all") for name in usual if name.endswith("_avg")]
    return [_compare(columns, avg, all_) for avg, all_ in pairs if all_ in columns]


def compare(records: Sequence[ScoreRecord], first: str, second: str) -> Comparison:
    """Compare how two columns, of any score, split and embedding, rank the checkpoints that have both.

    Raises:
        ValueError: for a column that the run does not have, listing those it has.
    """
    return _compare(columns_of(records), first, second)


def columns_of(records: Sequence[ScoreRecord]) -> ByColumn:
    return by_column(one_kind(records), Columns.of(records))


def _compare(columns: ByColumn, first: str, second: str) -> Comparison:
    mine, theirs = column_of(columns, first), column_of(columns, second)
    marks = strongest(mine), strongest(theirs)
    by_round = {record.round: record for record in trained(theirs)}
    pairs = [(record, by_round[record.round]) for record in trained(mine) if record.round in by_round]
    if len(pairs) < 2:
        return Comparison(first, second, len(pairs), None, [], marks)
    sides = list(zip(*pairs))
    values = [[record.badness for record in side] for side in sides]
    errors = np.nan_to_num(
        [[record.generated_error for record in side] for side in sides], nan=math.inf, posinf=math.inf
    ).tolist()
    rounds = [record.round or 0 for record in sides[0]]
    inverted = rankings.inversions(values[0], values[1], errors[0], errors[1])
    # no other pair is sure, nor one of which an error is unknown
    may_hold = any(pair.beyond_error for pair in inverted)
    sure = _sure_pairs(*map(tuple, (*values, *errors))) if may_hold and np.isfinite(errors).all() else frozenset()
    found = [
        InvertedPair(first, second, rounds[i.first], rounds[i.second], i.beyond_error, (i.first, i.second) in sure)
        for i in inverted
    ]
    tau = rankings.kendall_tau(values[0], values[1]) if all(len(set(side)) > 1 for side in values) else None
    return Comparison(first, second, len(pairs), tau, found, marks)


@lru_cache(maxsize=64)  # tables, sentences and charts of a run ask for the same
def _sure_pairs(first: Numbers, second: Numbers, *errors: Numbers) -> frozenset[tuple[int, int]]:
    return frozenset(rankings.inverted_pairs(first, second, (errors[0], errors[1])))


def unmarked(records: Sequence[ScoreRecord], column: str) -> list[str]:
    """The columns of a column's score, aggregate and split in embeddings that no training loss has a part in."""
    columns = columns_of(records)
    wanted = column_of(columns, column)[0]
    same = {name: group for name, group in columns.items() if group[0].name == wanted.name and not strongest(group)}
    return [name for name, group in same.items() if group[0].split == wanted.split]


def column_of(columns: ByColumn, name: str, kind: str = "") -> list[ScoreRecord]:
    if name not in columns:
        raise ValueError(
            f"no column {name!r} in these scores{nearest(name, list(columns)) or f'; columns: {listed(columns, 40)}'}"
        )
    if kind and not is_of(columns[name][0], kind):
        raise ValueError(f"{name} has no scores of kind {kind!r}, only {say_kind(columns[name][0])}")
    return columns[name]


def trained(records: Sequence[ScoreRecord]) -> list[ScoreRecord]:
    """The records of trained models, which can be chosen."""
    return [record for record in records if record.round is not None and record.round >= 0]


def reported(columns: ByColumn, names: Columns, record: ScoreRecord, split: str = REPORT) -> ScoreRecord | None:
    """The record of a score, embedding and round on the report split, if it was measured."""
    wanted = names.name(replace(record, split=split))
    return next((one for one in columns.get(wanted, ()) if one.round == record.round), None)


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
    against = f"against {record.reference.replace(', ', ' and ')}"
    return [*say_kind(record).split(", "), f"fingerprint {record.embedding_fingerprint[:8]}", against]


def one_kind(
    records: Sequence[ScoreRecord], folder: Path | None = None, wanted: Callable[[ScoreRecord], bool] | None = None
) -> list[ScoreRecord]:
    """The records without those of other kinds than one for each column."""
    places = grouped(records, _place).items()
    found = {place: grouped(own, lambda record: record.conditions) for place, own in places}
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
    mine, its = ((r.embedding_fingerprint, r.reference, r.weights, r.seed, r.score_settings) for r in (record, model))
    return mine == its, record.num_generated <= model.num_generated, record.num_generated


def _of_recipe(folder: Path | None) -> Callable[[ScoreRecord], bool]:
    """Whether a record is of the evaluation in the recipe that a run's folder keeps, if it does."""
    try:
        recipe = read_yaml(folder / RECIPE) if folder else {}
        callbacks = recipe["trainer"]["callbacks"]
        asked = next(one["init_args"] for one in callbacks if "FederatedEvaluation" in one["class_path"])
        if not isinstance(weights := asked["weights"], str):
            from fedgen.scores.aggregate import name_weights  # which imports torch

            weights = name_weights(weights)
        seed = recipe["seed_everything"] if asked["seed"] is None else asked["seed"]
        own = asked["num_images"], weights, seed
    except (OSError, ValueError, LookupError, TypeError, StopIteration):
        return lambda record: False
    return lambda record: (record.num_generated, record.weights, record.seed) == own


def say_others(records: Sequence[ScoreRecord], shown: Sequence[ScoreRecord], run: str | Path) -> str:
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
        f" select {shlex.quote(str(run))} --kind {words!r})"
        for (model, other, words), found in rounds.items()
    )
