"""Selection of checkpoints by a column, and the pairs about which avg and all disagree."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fedgen.class_paths import nearest
from fedgen.evaluation.gaps import GAPS
from fedgen.evaluation.marks import mark_of, strongest
from fedgen.evaluation.record_names import REPORT
from fedgen.evaluation.records import BALANCED, Columns, ScoreRecord, by_column
from fedgen.evaluation.runs.kinds import is_of, one_kind, say_kind
from fedgen.evaluation.runs.run_folder import Run
from fedgen.io.regular_files import is_regular
from fedgen.scores import rankings

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
        error_over_clients: standard error where the clients stand for others that might have been there.
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
            ones are the same for both checkpoints).
    """

    first_column: str
    second_column: str
    better_by_first: int
    better_by_second: int
    beyond_error: bool


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


def select(run: Run | str | Path | Sequence[ScoreRecord], by: str | None = None, kind: str = "") -> list[Ranked]:
    """The scored checkpoints, best first: the lowest value, the highest where higher is better, or for memorisation the
    nearest to 0.5.

    The earlier of equals comes first.

    Args:
        run: a run, its folder, or records.
        by: the column, e.g. "fid_all", "report/kid_avg", "report/vgg16/fid_all"; `default_column` if None.
        kind: of scores, where a folder has some of several numbers of images, weights or seeds: "50 images"; as `Run`.

    Raises:
        ValueError: for a column that the run does not have, listing those it has, or has not of that kind.

    Examples:
        >>> import fedgen
        >>> from fedgen.evaluation import ScoreRecord
        >>> about = {"score": "kid", "aggregate": "all", "standard_error": 0.1, "split": "train", "weights": "examples"}
        >>> about |= {"embedding": "pixels", "embedding_fingerprint": "0", "reference": "digits", "num_generated": 100}
        >>> about |= {"num_clients": 2, "seed": 0}
        >>> records = [ScoreRecord(value=2.0, round=0, **about), ScoreRecord(value=1.0, round=1, **about)]
        >>> [(found.round, found.value) for found in fedgen.select(records)]
        [(1, 1.0), (0, 2.0)]
    """
    folder = None
    if isinstance(run, (str, Path)):
        run = Run(run, kind)
    if isinstance(run, Run):
        folder, run = run.folder, run.records
    columns = _columns(run)
    return rank(column_of(columns, by or default_column(columns, kind), kind), folder)


def default_column(columns: Mapping[str, Sequence[ScoreRecord]], kind: str = "") -> str:
    """The column that checkpoints are chosen by where none is named: kid_all, else fid_all, else the pool's first.

    KID of few images has no bias and ranks generators the same in avg and all; FID has one, and may not.

    Args:
        columns: a run's records by column.
        kind: of scores, which the column has, as for `select`.

    Raises:
        ValueError: if a run has no scores.
    """
    columns = {name: group for name, group in columns.items() if not kind or is_of(group[0], kind)}
    named = [name for name in DEFAULT_COLUMNS if name in columns]
    usual = [name for name, group in columns.items() if group[0].split not in GAPS and group[0].score != BALANCED]
    found = [*named, *(name for name in usual if name.endswith("_all")), *usual, *columns]
    if not found:
        raise ValueError("no scores to choose a checkpoint by")
    return found[0]


def rank(column: Sequence[ScoreRecord], folder: Path | None = None) -> list[Ranked]:
    """The trained checkpoints of one column's records, best first; see `select`.

    Args:
        column: its records.
        folder: of the run, which the checkpoints' paths begin with.
    """
    found = sorted(_trained(column), key=lambda record: (record.badness, record.round))
    return [_ranked(record, folder) for record in found]


def inversions(records: Sequence[ScoreRecord]) -> list[InvertedPair]:
    """Every pair of checkpoints that avg and all order differently, for each score, split and embedding."""
    return [pair for comparison in aggregates_compared(records) for pair in comparison.pairs]


def aggregates_compared(records: Sequence[ScoreRecord]) -> list[Comparison]:
    """avg against all, for each score, split and embedding; not of gaps, nor of memorisation, best in the middle."""
    columns = {
        name: group
        for name, group in _columns(records).items()
        if group[0].score != BALANCED and group[0].split not in GAPS
    }
    pairs = [(name, name.removesuffix("avg") + "all") for name in columns if name.endswith("_avg")]
    return [_compare(columns, avg, all_) for avg, all_ in pairs if all_ in columns]


def compare(records: Sequence[ScoreRecord], first: str, second: str) -> Comparison:
    """Compare how two columns rank the checkpoints that have both.

    Args:
        records: a run's.
        first: a column, e.g. "fid_all".
        second: another, e.g. "kid_all"; it may be of another score, split or embedding.

    Raises:
        ValueError: for a column that the run does not have, listing those it has.
    """
    return _compare(_columns(records), first, second)


def _columns(records: Sequence[ScoreRecord]) -> dict[str, list[ScoreRecord]]:
    return by_column(one_kind(records), Columns.of(records))


def _compare(columns: dict[str, list[ScoreRecord]], first: str, second: str) -> Comparison:
    marks = strongest(column_of(columns, first)), strongest(column_of(columns, second))
    by_round = {record.round: record for record in _trained(column_of(columns, second))}
    pairs = [
        (record, by_round[record.round]) for record in _trained(column_of(columns, first)) if record.round in by_round
    ]
    if len(pairs) < 2:
        return Comparison(first, second, len(pairs), None, [], marks)
    sides = list(zip(*pairs))
    values = [[record.badness for record in side] for side in sides]
    errors = [[record.generated_error for record in side] for side in sides]
    rounds = [record.round or 0 for record, _ in pairs]
    found = [
        InvertedPair(first, second, rounds[i.first], rounds[i.second], i.beyond_error)
        for i in rankings.inversions(values[0], values[1], errors[0], errors[1])
    ]
    ranks = all(len(set(side)) > 1 for side in values)
    tau = rankings.kendall_tau(values[0], values[1]) if ranks else None
    return Comparison(first, second, len(pairs), tau, found, marks)


def unmarked(records: Sequence[ScoreRecord], column: str) -> list[str]:
    """The columns of a column's score, aggregate and split in embeddings that no training loss has a part in."""
    columns = _columns(records)
    wanted = column_of(columns, column)[0]
    same = {name: group for name, group in columns.items() if group[0].name == wanted.name and not strongest(group)}
    return [name for name, group in same.items() if group[0].split == wanted.split]


def column_of(columns: dict[str, list[ScoreRecord]], name: str, kind: str = "") -> list[ScoreRecord]:
    """The records of one column.

    Raises:
        ValueError: for a column that the run does not have, with the nearest, or a few, of those it has.
    """
    if name not in columns:
        few = ", ".join(list(columns)[:4]) + (", ..." if len(columns) > 4 else "")
        raise ValueError(f"no column {name!r} in these scores{nearest(name, list(columns)) or f'; columns: {few}'}")
    if kind and not is_of(columns[name][0], kind):
        raise ValueError(f"{name} has no scores of {kind!r}, but of {say_kind(columns[name][0])}")
    return columns[name]


def _trained(records: Sequence[ScoreRecord]) -> list[ScoreRecord]:
    """The records of trained models, which can be chosen."""
    return [record for record in records if record.round is not None and record.round >= 0]


def _ranked(record: ScoreRecord, folder: Path | None) -> Ranked:
    path = Path(record.checkpoint) if record.checkpoint else None
    if path is not None and folder is not None:
        path = folder / path if is_regular(folder / path) else None
    error, over_clients = record.standard_error, record.error_over_clients
    return Ranked(record.round or 0, path, record.value, error, mark_of(record), over_clients)


def reported(
    columns: dict[str, list[ScoreRecord]], names: Columns, record: ScoreRecord, split: str = REPORT
) -> ScoreRecord | None:
    """The record of a score, embedding and round on the report split, if it was measured.

    Args:
        columns: a run's records by column.
        names: the columns' names.
        record: of another split.
        split: the report split.
    """
    wanted = names.name(replace(record, split=split))
    return next((one for one in columns.get(wanted, ()) if one.round == record.round), None)
