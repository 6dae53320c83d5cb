"""scores.jsonl: one score record a line, appended whole, never twice."""

import json
import os
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

from fedgen.evaluation.records import ScoreRecord, unique
from fedgen.files import atomic_write, sync_folder

SCORES_FILE = "scores.jsonl"
_START = b"{"  # of every record


def read_records(path: str | Path) -> list[ScoreRecord]:
    """The records of a file in their order; none if there is no file.

    A last line cut off by a kill is left out with a warning; the next append removes it from the file.

    Raises:
        ValueError: for another file, and for any other line that is not a record, naming file and line.
    """
    path = Path(path)
    if not path.exists():
        return []
    *lines, tail = path.read_bytes().split(b"\n")
    if tail and not lines and not tail.startswith(_START):
        raise ValueError(f"{path} is no file of score records; remove it, or choose another folder")
    if tail:
        warnings.warn(f"{path}: the last line was cut off while it was written and is left out", stacklevel=2)
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            records.append(ScoreRecord.from_json(json.loads(line)))
        except (ValueError, AttributeError, RecursionError) as error:
            raise ValueError(f"{path}, line {number} is not a score record ({error}); remove that line") from error
    return unique(records)


def append_records(path: str | Path, records: Sequence[ScoreRecord]) -> None:
    """Appends records with one flushed write.

    Where some replace others (same round and column), the file is rewritten atomically with each in its predecessor's
    place: the first record's split and embedding stay those that columns without a prefix stand for.
    """
    path = Path(path)
    _repair(path)
    present = {record.identity: record for record in read_records(path)}
    records = [record for record in unique(records) if present.get(record.identity) != record]
    if any(record.identity in present for record in records):
        with atomic_write(path) as file:
            file.write(_lines(unique([*present.values(), *records])))
        return
    existed = path.exists()
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab") as file:
        file.write(_lines(records))
        file.flush()
        os.fsync(file.fileno())
    if not existed:
        sync_folder(path.parent)


def keep_records(path: str | Path, keep: Callable[[ScoreRecord], bool]) -> None:
    """Rewrites the file, atomically, with only the records that `keep` says yes to."""
    path = Path(path)
    _repair(path)
    records = read_records(path)
    kept = [record for record in records if keep(record)]
    if len(kept) < len(records):
        with atomic_write(path) as file:
            file.write(_lines(kept))


def drop_from(path: str | Path, round: int) -> None:
    """Removes what a run that starts at `round` measures again: its records and those of later rounds.

    A run that starts at round 0 is a new one: everything is removed, the floor too.
    """
    keep_records(path, lambda record: round > 0 and (record.round is None or record.round < round))


def drop_round(path: str | Path, round: int) -> None:
    """Removes one round's records."""
    keep_records(path, lambda record: record.round != round)


def _lines(records: Sequence[ScoreRecord]) -> bytes:
    return "".join(json.dumps(record.to_json()) + "\n" for record in records).encode()


def _repair(path: Path) -> None:
    """Cuts off a line that has no end."""
    if not path.exists():
        return
    with open(path, "rb+") as file:
        content = file.read()
        whole = content.rfind(b"\n") + 1
        if whole < len(content) and content.startswith(_START):  # another file is refused when it is read
            file.truncate(whole)
            file.flush()
            os.fsync(file.fileno())
