"""An evaluation in one line: its first score in both aggregates, beside real images'."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedgen.evaluation.records import Columns, ScoreRecord
from fedgen.evaluation.tables.table import format_value

AVG, ALL = "avg", "all"


def evaluation_line(
    records: Sequence[ScoreRecord], floor: Iterable[ScoreRecord], columns: Columns, column: str | None = None
) -> list[str]:
    """The parts of the line, most important first: "fid_avg 31.2±0.5, fid_all 9.1±0.3 (real 24.0, 1.1)", "kid_all ...".

    Args:
        records: of one evaluation.
        floor: of real images in the model's place.
        columns: the columns' names.
        column: the one whose score comes first, in avg and all; the first score's by default.
    """
    found = {columns.name(record): record for record in records}
    if not found:
        return []
    first = found.get(column or "", records[0])
    floors = {record.column: record for record in floor if record.is_floor}
    alike = [r for r in records if (r.split, r.embedding) == (first.split, first.embedding)]
    both = [r for r in alike if r.score == first.score and r.aggregate in (AVG, ALL)]
    others = [r for r in alike if r.score != first.score and r.aggregate == ALL]
    return [_part(group, floors, columns) for group in (both or [first], *([record] for record in others))]


def join_parts(head: str, parts: Sequence[str], width: int) -> str:
    """Head and parts in one line: the first whatever the width, further ones as far as they fit."""
    line = f"{head}: {', '.join(parts[:1])}"
    for part in parts[1:]:
        if len(line) + len(part) + 2 > width:
            break
        line += f", {part}"
    return line


def headline(records: Sequence[ScoreRecord], columns: Columns, column: str | None = None) -> str:
    """One score for a progress bar: that of a column, or of the first score's aggregate all: "fid_all 9.1±0.3"."""
    found = {columns.name(record): record for record in records}
    if not found:
        return ""
    first = records[0]
    default = next((r for r in records if r.column[:-1] == first.column[:-1] and r.aggregate == ALL), first)
    return _part([found.get(column or "", default)], {}, columns)


def say_round(round: int) -> str:
    """ "round 399 (400 done)": rounds count from 0; "before training" for -1."""
    return "before training" if round < 0 else f"round {round} ({round + 1} done)"


def _part(records: Sequence[ScoreRecord], floors: Mapping[tuple[Any, ...], ScoreRecord], columns: Columns) -> str:
    """Records of one score, and behind them the floors of those that have one."""
    told = [f"{columns.name(record)} {format_value(record.value, record.standard_error)}" for record in records]
    found = [floors[record.column] for record in records if record.column in floors]
    real = [format_value(record.value, record.standard_error).split("±")[0] for record in found]
    return ", ".join(told) + (f" (real {', '.join(real)})" if real else "")
