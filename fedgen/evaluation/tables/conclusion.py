"""What a run's scores say, in plain words: the best checkpoint by each aggregate, the floor, the controls beside it."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedgen.evaluation.gaps import GAPS
from fedgen.evaluation.records import BALANCED, ScoreRecord, by_column
from fedgen.evaluation.runs.scores_file import SCORES_FILE, read_records
from fedgen.evaluation.runs.selection import Comparison, Ranked, compare, select
from fedgen.evaluation.tables.table import format_value
from fedgen.scores.rankings import Z

LOCAL_ONLY, CENTRALISED = "-local_only", "-centralised"  # behind a folder's name: the controls of `fedgen fit`
ARMS = {"": "federated", LOCAL_ONLY: "local only", CENTRALISED: "centralised"}


def conclude(records: Sequence[ScoreRecord], folder: str | Path | None = None) -> list[str]:
    """Sentences on a run: how long it was, what each score's two aggregates pick, the floor, and its controls.

    The scores are those of the first split and embedding.

    Args:
        records: a run's.
        folder: its folder; runs of the same recipe as a control are looked for beside it.

    Returns:
        One sentence or two a line; no lines if no trained model was scored.
    """
    models = [r for r in records if r.is_model and (r.round or 0) >= 0 and r.split not in GAPS]
    if not models:
        return []
    columns = by_column(records)
    own = [r for r in models if (r.split, r.embedding) == (models[0].split, models[0].embedding)]
    scores = [score for score in dict.fromkeys(r.score for r in own) if score != BALANCED]
    rounds = sorted({r.round for r in own if r.round is not None})
    number = "one checkpoint is" if len(rounds) == 1 else f"{len(rounds)} checkpoints are"
    lines = [f"{rounds[-1] + 1} rounds, counted from 0 to {rounds[-1]}; {number} scored."]
    for score in scores:
        names = {
            r.aggregate: name for name, group in columns.items() for r in group[:1] if r in own and r.score == score
        }
        lines += [_picked(records, names), *_floor(records, names)]
    if folder is not None:
        lines += _controls(columns, own, Path(folder))
    return [line for line in lines if line]


def _picked(records: Sequence[ScoreRecord], names: Mapping[str, str]) -> str:
    """Which checkpoint each aggregate of a score picks, and whether they differ beyond their errors."""
    best = {name: select(records, name)[0] for aggregate in ("avg", "all") if (name := names.get(aggregate))}
    if len(best) < 2:
        return "".join(f"{name} is best at round {one.round}, {_value(one)}." for name, one in best.items())
    (avg, of_avg), (all_, of_all) = best.items()
    comparison = compare(records, avg, all_)
    if comparison.checkpoints < 2:
        return f"{avg} is {_value(of_avg)} and {all_} {_value(of_all)}; two aggregates rank two checkpoints or more."
    values = f"{avg} {_value(of_avg)}, {all_} {_value(of_all)}"
    if of_avg.round == of_all.round:
        start = f"{avg} and {all_} pick the same checkpoint, round {of_avg.round} ({values})"
    else:
        start = f"{avg} picks round {of_avg.round} and {all_} round {of_all.round} ({values})"
    return f"{start}; {_pairs(comparison)}."


def _pairs(comparison: Comparison) -> str:
    total, clear = math.comb(comparison.checkpoints, 2), sum(pair.beyond_error for pair in comparison.pairs)
    if not comparison.pairs:
        return "they order the only pair of checkpoints alike" if total == 1 else f"they order all {total} pairs alike"
    beyond = {0: "none beyond their errors", len(comparison.pairs): "beyond their errors"}.get(
        clear, f"{clear} beyond their errors"
    )
    return f"they order {len(comparison.pairs)} of {total} pairs differently, {beyond}"


def _floor(records: Sequence[ScoreRecord], names: Mapping[str, str]) -> list[str]:
    """How far the best checkpoint is from real images in its place."""
    name = names.get("all") or names.get("avg")
    if name is None:
        return []
    best = select(records, name)[0]
    record = next(r for r in by_column(records)[name] if r.round == best.round)
    floor = next((r for r in records if r.is_floor and r.identity[2:] == record.identity[2:]), None)
    if floor is None:
        return []
    away = record.badness - floor.badness
    error = math.hypot(record.generated_error, floor.generated_error)
    start = f"Real images in the model's place score {name} {format_value(floor.value, floor.standard_error)}: "
    if away <= Z * error:
        return [f"{start}the best checkpoint is not told from them, as far as this score sees."]
    return [f"{start}the best checkpoint is {format_value(abs(record.value - floor.value), error)} worse."]


def _controls(columns: Mapping[str, Sequence[ScoreRecord]], own: Sequence[ScoreRecord], folder: Path) -> list[str]:
    """The last checkpoint beside those of the recipe's other arms, where they were scored under equal conditions."""
    mine = next((end for end in (LOCAL_ONLY, CENTRALISED) if folder.name.endswith(end)), "")
    base = folder.name.removesuffix(mine)
    name = next((name for name, group in columns.items() if group[0] in own and group[0].aggregate == "all"), None)
    if name is None:
        return []
    last, found = columns[name][-1], []
    for end, words in ARMS.items():
        other = read_records(folder.with_name(base + end) / SCORES_FILE) if end != mine else []
        theirs = by_column(other).get(name, [])
        if theirs and theirs[-1].conditions == last.conditions:
            found.append(_beside(last, theirs[-1], words))
    if not found:
        return []
    value = format_value(last.value, last.standard_error)
    return [f"Last checkpoints by {name}: {ARMS[mine]} {value}; {'; '.join(found)}."]


def _beside(own: ScoreRecord, other: ScoreRecord, words: str) -> str:
    away, error = other.badness - own.badness, math.hypot(own.generated_error, other.generated_error)
    how = "not told apart" if abs(away) <= Z * error else "worse" if away > 0 else "better"
    rounds = "" if other.round == own.round else f" after round {other.round}"
    return f"{words} {format_value(other.value, other.standard_error)}{rounds}, {how}"


def _value(best: Ranked) -> str:
    return format_value(best.value, best.standard_error)
