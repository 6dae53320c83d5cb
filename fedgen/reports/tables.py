"""The tables of a page: those that the terminal shows, and facts of settings, time and messages."""

import re
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from rich.table import Table
from rich.text import Text

from fedgen.evaluation.records import ScoreRecord
from fedgen.evaluation.runs.selection import aggregates_compared
from fedgen.evaluation.tables.run_tables import run_tables
from fedgen.evaluation.tables.table import inversion_table, selection_table
from fedgen.federated.left_out import shorten
from fedgen.io.files import in_bytes
from fedgen.reports.contents import Contents

WIDE = 100_000  # characters: a page's table need not be split
MOST_NUMBERS = 3_000  # of an experiment
LONGEST, LONGEST_CELL = 200, 1_000  # characters of a fact, and of a cell or a table's title
_BYTES = re.compile(r": ([\d.]+) (B|kB|MB|GB) a round")
_UNITS = {"B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9}


@dataclass
class Plain:
    """A table as text.

    Args:
        title: above it.
        caption: below it.
        headings: of its columns.
        rows: of cells, each its text and whether it stands out.
    """

    title: str
    caption: str
    headings: list[str]
    rows: list[list[tuple[str, bool]]] = field(default_factory=list)


def score_parts(records: Sequence[ScoreRecord]) -> list[Plain]:
    """Every round's scores, the gaps, what each column selects and where avg and all disagree; as far as there are."""
    if not any(record.is_model for record in records):
        return []
    tables = run_tables(records, WIDE)
    if any(record.round is not None and record.round >= 0 for record in records):
        tables.append(selection_table(records))
        if aggregates_compared(records):
            tables.append(inversion_table(records))
    return [plain_table(table) for table in tables]


def plain_table(table: Table) -> Plain:
    """A table of the terminal's as text; what is bold there stands out."""
    columns = [[_plain(cell) for cell in column.cells] for column in table.columns]
    headings = [_plain(column.header)[0] for column in table.columns]
    return Plain(_plain(table.title)[0], _plain(table.caption)[0], headings, [list(row) for row in zip(*columns)])


def _plain(cell: Any) -> tuple[str, bool]:
    text = cell if isinstance(cell, Text) else Text.from_markup(str(cell or ""))
    return text.plain[:LONGEST_CELL], any("bold" in str(span.style) for span in text.spans)


def facts(contents: Contents) -> list[tuple[str, str]]:
    """Name and value of what a run is, cost and promised, as far as its folder tells."""
    found = [*_settings(contents), *_time(contents), *_sent(contents), *_privacy(contents)]
    found += [(f"version of {name}", text) for name, text in contents.versions.items()]
    return [(shorten(name, LONGEST), shorten(value, LONGEST)) for name, value in found]


def numbers(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """The numbers of an experiment with the keys that lead to them, e.g. ("scores / 0.1 / fid / avg", "1.459")."""
    if isinstance(value, dict):
        for key, part in value.items():
            yield from numbers(part, f"{name} / {key}" if name else str(key))
    elif isinstance(value, list) and any(isinstance(part, dict | list) for part in value):
        for place, part in enumerate(value):
            yield from numbers(part, f"{name} / {place}")
    else:
        yield name, shorten(", ".join(map(_short, value)) if isinstance(value, list) else _short(value), LONGEST)


def _short(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _settings(contents: Contents) -> list[tuple[str, str]]:
    settings = contents.settings
    found = [("folder", contents.place)]
    for name, path in (
        ("model", "model.class_path"),
        ("data", "data.init_args.data.class_path"),
        ("partition", "data.init_args.partition.class_path"),
        ("strategy", "trainer.strategy.class_path"),
        ("iterations of a client a round", "trainer.strategy.init_args.communication_interval"),
        ("clients a round", "trainer.strategy.init_args.cohort_size"),
        ("rounds asked for", "trainer.max_epochs"),
        ("seed", "seed_everything"),
    ):
        value = _at(settings, path)
        if value is not None:
            found.append((name, str(value)))
    if contents.kind != "training":
        given = [(str(name), value) for name, value in settings.items() if value is not None and value is not False]
        found += [
            (name, str(value)) for name, value in given if value not in ("", [], {}) and name != "seed_everything"
        ]
    seeds = sorted({record.seed for record in contents.records})
    if seeds:
        found.append(("seed of generated images", ", ".join(map(str, seeds))))
    for record in {(r.embedding, r.embedding_fingerprint): r for r in contents.records}.values():
        found.append(("embedding", f"{record.embedding} (fingerprint {record.embedding_fingerprint or 'unknown'})"))
    return found


def _time(contents: Contents) -> list[tuple[str, str]]:
    """Seconds a round, and from the first logged round to the last."""
    timed = [own for own in contents.series.values() if len(own.times) == len(own.steps) > 2]
    if not timed or not contents.are_rounds:
        return []
    longest = max(timed, key=lambda own: len(own.steps))
    pairs = zip(zip(longest.steps, longest.times), zip(longest.steps[1:], longest.times[1:]))
    seconds = [(later - time) / (after - step) for (step, time), (after, later) in pairs if after > step]
    whole = timedelta(seconds=round(longest.times[-1] - longest.times[0]))
    return [
        ("time a round", f"{statistics.median(seconds):.3g} s (median of {len(seconds):,})"),
        ("time from the first logged round to the last", f"{whole}, evaluations and pauses included"),
    ]


def _sent(contents: Contents) -> list[tuple[str, str]]:
    """Bytes that clients send, of the table of what becomes of the model's state."""
    parts = [float(number) * _UNITS[unit] for number, unit in _BYTES.findall(contents.state)]
    if not parts:
        return []
    found = [("a client sends", f"{in_bytes(round(sum(parts)))} a round")]
    cohort = _at(contents.settings, "trainer.strategy.init_args.cohort_size")
    rounds = [r.round for r in contents.records if r.is_model and r.round is not None and r.round >= 0]
    if type(cohort) is int and rounds:
        total = in_bytes(round(sum(parts) * cohort * (max(rounds) + 1)))
        found.append((f"all clients sent up to round {max(rounds)}", f"about {total} ({cohort} clients a round)"))
    return found


def _privacy(contents: Contents) -> list[tuple[str, str]]:
    names = ("epsilon", "delta", "statistics_epsilon", "statistics_delta")
    return [
        (name.replace("_", " "), f"{contents.series[name].values[-1]:.4g}") for name in names if name in contents.series
    ]


def _at(settings: Any, path: str) -> Any:
    for name in path.split("."):
        settings = settings.get(name) if isinstance(settings, dict) else None
    return settings
