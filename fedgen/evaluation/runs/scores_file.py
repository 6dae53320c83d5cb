"""scores.jsonl: one score record a line, whole at any moment, never twice."""

import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgen.evaluation.names import list_checkpoints
from fedgen.evaluation.records import ScoreRecord, unique
from fedgen.io.files import atomic_write, parse_json, read_npz, read_yaml, remove_unfinished, write_npz
from fedgen.io.regular_files import read_regular
from fedgen.own_code import warn
from fedgen.recipe.recipe_files import check_lost

SCORES_FILE = "scores.jsonl"
INFLUENCES = "influences"  # a folder beside it, a file a round
RECIPE, PARTITION, ROLES = "recipe.yaml", "partition.npz", "split.json"
MEMBERSHIP, NEAREST = "membership.json", "nearest.png"  # of `fedgen audit`
MATRIX, MATRIX_PICTURE = "client_matrix.json", "client_matrix.png"  # of `fedgen evaluate --matrix`


def read_records(path: str | Path) -> list[ScoreRecord]:
    """The records of a file in their order; none if there is no file.

    A last line without an end, as earlier releases left when they were killed, is left out with a warning; the next
    append removes it from the file.

    Raises:
        ValueError: for another file, and for any other line that is not a record, naming file and line.
    """
    records, _, tail = _read(Path(path))
    if tail:
        warn(f"{path}: the last line was cut off while it was written and is left out")
    return records


def append_records(path: str | Path, records: Sequence[ScoreRecord]) -> None:
    """Adds records to the file, which is replaced by the longer one at once: a kill leaves either, whole.

    Those that replace others (same round and column) take their predecessors' places: the first record's split and
    embedding stay those that columns without a prefix stand for.
    """
    path = Path(path)
    with _only_writer(path):
        before, whole, _ = _read(path)
        present = {record.identity: record for record in before}
        given = unique(records)  # of which those that are stored already may bring influences that are not
        records = [record for record in given if present.get(record.identity) != record]
        if any(record.identity in present for record in records):
            whole = _lines(unique([*present.values(), *records]))
        else:
            whole += _lines(records)
        _write_influences(path.parent / INFLUENCES, [*before, *given])
        _replace(path, whole)


def keep_records(path: str | Path, keep: Callable[[ScoreRecord], bool]) -> list[ScoreRecord]:
    """Rewrites the file with only the records that `keep` accepts, and clears up after kills; returns the others."""
    path = Path(path)
    with _only_writer(path):
        remove_unfinished(path.parent)
        records, whole, _ = _read(path)
        gone = [record for record in records if not keep(record)]
        _replace(path, _lines([record for record in records if keep(record)]) if gone else whole)
        for round in {record.round for record in gone} - {record.round for record in records if keep(record)}:
            _influences_file(path.parent / INFLUENCES, round).unlink(missing_ok=True)
    return gone


def load_influences(folder: Path, records: Sequence[ScoreRecord]) -> list[ScoreRecord]:
    """A column's records with the influences of real images that were stored beside them, where they were."""
    # a file has those of all columns: one at a time, as a page that training writes leaves what it needed at its peak
    own = (_read_influences(folder / INFLUENCES, one.round).get(_influences_key(one)) for one in records)
    return [replace(one, real_influences=influences) for one, influences in zip(records, own)]


def _influences_file(folder: Path, round: int | None) -> Path:
    return folder / f"round={-1 if round is None else round:05d}.npz"


def _influences_key(record: ScoreRecord) -> str:
    """The name of a record's influences, which another value of the same identity does not have."""
    return hashlib.blake2b(repr((record.identity, record.value)).encode(), digest_size=8).hexdigest()


def _read_influences(folder: Path, round: int | None) -> dict[str, NDArray[np.float32]]:
    """The stored influences of one round, without what is no such array."""
    path = _influences_file(folder, round)
    try:
        found = read_npz(path) if path.exists() else {}
    except ValueError as error:
        warn(f"{path} is left out, so that intervals are wider: {error}")
        return {}
    return {name: part for name, part in found.items() if part.ndim == 1 and part.dtype == np.float32}


def _write_influences(folder: Path, records: Sequence[ScoreRecord]) -> None:
    """Stores the influences of new records beside those that still hold, a file a round."""
    for round in {record.round for record in records if record.real_influences is not None}:
        known = _read_influences(folder, round)
        own = {_influences_key(one): one.real_influences for one in records if one.round == round}
        folder.mkdir(exist_ok=True)
        with atomic_write(_influences_file(folder, round)) as file:
            kept = {name: known.get(name) if part is None else part for name, part in own.items()}
            write_npz(file, {name: part for name, part in kept.items() if part is not None})


def drop_from(path: str | Path, round: int) -> str:
    """Removes what a run that starts at `round` measures again: its records and those of later rounds, which it names.

    A run that starts at round 0 is a new one: everything is removed, the floor too.
    """
    gone = keep_records(path, lambda record: round > 0 and (record.round is None or record.round < round))
    later = {record.round for record in gone if record.round is not None and record.round >= round}
    return ", ".join(map(str, sorted(later)))


def drop_round(path: str | Path, round: int) -> None:
    """Removes one round's records."""
    keep_records(path, lambda record: record.round != round)


def _lines(records: Sequence[ScoreRecord]) -> bytes:
    return "".join(json.dumps(record.to_json()) + "\n" for record in records).encode()


def _read(path: Path) -> tuple[list[ScoreRecord], bytes, bytes]:
    """The records, the file's whole lines, and what comes after the last of them; ValueError for another file."""
    content, records = read_regular(path) if path.exists() else b"", []
    end = content.rfind(b"\n") + 1
    if content and not end and not content.startswith(b"{"):  # as every record does
        raise ValueError(f"{path} is not a file of score records; remove it, or choose another folder")
    for number, line in enumerate(content[:end].split(b"\n")[:-1], start=1):
        try:
            records.append(ScoreRecord.from_json(parse_json(line)))
        except (ValueError, AttributeError) as error:
            raise ValueError(f"{path}, line {number} is not a score record ({error}); remove that line") from error
    return unique(records), content[:end], content[end:]


def _replace(path: Path, content: bytes) -> None:
    if content != (read_regular(path) if path.exists() else b""):
        with atomic_write(path) as file:
            file.write(content)


@contextmanager
def _only_writer(path: Path) -> Iterator[None]:
    """Keeps other processes from changing the file, e.g. an evaluation of the rounds so far during training."""
    path.parent.mkdir(parents=True, exist_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        with suppress(OSError):  # not every network file system has locks
            fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def read_recipe(path: Path) -> Any:
    """Read the recipe that a run's folder keeps; FileNotFoundError says what can be done without one."""
    folder = path.parent
    if not path.exists() and not (folder.is_dir() and is_python_run(folder)):
        raise FileNotFoundError(f"{path} does not exist; give the folder of a run made by `fedgen fit`")
    if not path.exists():
        raise FileNotFoundError(
            f"{folder} is of a run trained in Python, which keeps no recipe: say what its model and data are with"
            " --model my_module:make_model --data my_module:make_data (objects, or functions without arguments;"
            f" train.py:make_model for a file), or call evaluate_run({str(folder)!r}, model, Evaluator(data,"
            f" ['pixels'])) of fedgen.evaluation. Its stored scores need neither: fedgen select {folder}"
        )
    recipe = read_yaml(path)
    check_lost(path, recipe)
    return recipe


def is_python_run(folder: Path) -> bool:
    """Whether a folder is of a run that was trained in Python: it has a partition, checkpoints or scores, no recipe."""
    known = (folder / PARTITION).exists() or (folder / SCORES_FILE).exists() or bool(list_checkpoints(folder))
    return known and not (folder / RECIPE).exists()
