"""Which checkpoint is best by which column, and where avg and all disagree."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedgen.evaluation.records import Columns, ScoreRecord, by_column
from fedgen.evaluation.run import Run
from fedgen.evaluation.splits import REPORT
from fedgen.scores import rankings

DEFAULT_COLUMN = "fid_all"


@dataclass(frozen=True)
class Ranked:
    """One checkpoint in a ranking.

    Args:
        round: its round.
        checkpoint: its path, or its file name where no run folder was given; None if it was not kept.
        value: its score in the column; lower is better.
        standard_error: of that value.
        optimised: whether a training loss used the score's embedding, so that the value proves little.
    """

    round: int
    checkpoint: Path | None
    value: float
    standard_error: float | None
    optimised: bool = False


@dataclass(frozen=True)
class InvertedPair:
    """Two checkpoints that a score's avg and all order differently.

    Args:
        avg_column: "fid_avg", with its prefix.
        all_column: "fid_all", with its prefix.
        better_by_avg: the round that avg prefers.
        better_by_all: the round that all prefers.
        beyond_error: whether both differences exceed 1.96 combined standard errors of the generated images (the real
            ones are the same for both checkpoints).
    """

    avg_column: str
    all_column: str
    better_by_avg: int
    better_by_all: int
    beyond_error: bool


def select(run: Run | str | Path | Sequence[ScoreRecord], by: str = DEFAULT_COLUMN) -> list[Ranked]:
    """The scored checkpoints, best first; the earlier of equals comes first.

    Args:
        run: a run, its folder, or records.
        by: the column, e.g. "fid_all", "report/kid_avg", "report/vgg16/fid_all".

    Raises:
        ValueError: for a column that the run does not have, listing those it has.
    """
    folder = None
    if isinstance(run, (str, Path)):
        run = Run(run)
    if isinstance(run, Run):
        folder, run = run.folder, run.records
    columns = by_column(run)
    if by not in columns:
        raise ValueError(f"no column {by!r} in these scores; columns: {', '.join(columns) or 'none'}")
    ranked = [_ranked(record, folder) for record in columns[by] if record.round is not None and record.round >= 0]
    return sorted(ranked, key=lambda entry: (entry.value, entry.round))


def inversions(records: Sequence[ScoreRecord]) -> list[InvertedPair]:
    """Every pair of checkpoints that avg and all order differently, for each score, split and embedding."""
    columns = by_column(records)
    return [pair for name in columns if name.endswith("_avg") for pair in _inverted(name, columns)]


def _inverted(avg: str, columns: dict[str, list[ScoreRecord]]) -> list[InvertedPair]:
    name = avg.removesuffix("avg") + "all"
    by_round = {record.round: record for record in columns.get(name, ())}
    pairs = [(a, by_round[a.round]) for a in columns[avg] if a.round in by_round and (a.round or 0) >= 0]
    if len(pairs) < 2:
        return []
    sides = list(zip(*pairs))
    values = [[record.value for record in side] for side in sides]
    errors = [[_generated_error(record) for record in side] for side in sides]
    found = rankings.inversions(values[0], values[1], errors[0], errors[1])
    rounds = [record.round or 0 for record, _ in pairs]
    return [InvertedPair(avg, name, rounds[i.first], rounds[i.second], i.beyond_error) for i in found]


def _generated_error(record: ScoreRecord) -> float:
    return record.error_parts.get("generated", record.standard_error or 0.0)


def _ranked(record: ScoreRecord, folder: Path | None) -> Ranked:
    path = Path(record.checkpoint) if record.checkpoint else None
    if path is not None and folder is not None:
        path = folder / path if (folder / path).exists() else None
    return Ranked(record.round or 0, path, record.value, record.standard_error, record.is_optimised)


def reported(records: Sequence[ScoreRecord], column: str, round: int, split: str = REPORT) -> ScoreRecord | None:
    """The record of a column's score and embedding on the report split at a round, if it was measured."""
    names = Columns.of(records)
    columns = by_column(records, names)
    if column not in columns:
        return None
    first = columns[column][0]
    wanted = names.prefix(split, first.embedding) + first.name
    return next((record for record in columns.get(wanted, ()) if record.round == round), None)
