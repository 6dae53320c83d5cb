"""Runs as plain values for a page: charts, tables, clients and facts of one, and several side by side."""

import math
import re
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

from rich.text import Text

from fedgen.evaluation.marks import GAPS, direction_of, marked, strongest
from fedgen.evaluation.names import DISTRIBUTION
from fedgen.evaluation.records import BALANCED, Columns, ScoreRecord, grouped, say_number
from fedgen.evaluation.runs.selection import InvertedPair, aggregates_compared
from fedgen.evaluation.tables.table import are_several, inversion_table, run_tables, say_notes, selection_table
from fedgen.federated.left_out import shorten
from fedgen.io.files import in_bytes
from fedgen.recipe.recipe_files import flatten
from fedgen.reports.contents import Contents
from fedgen.reports.controls import Controls

MOST_NUMBERS = 300_000  # clients' scores in one run's part of a page; of more, evenly spaced rounds
MOST_PAIRS = 2_000  # of rounds that avg and all order differently, in one panel: each is a line
WIDE = 100_000  # characters: a page's table need not be split
LONGEST, LONGEST_CELL = 200, 1_000  # characters of a fact, of a cell or a table's title
_BYTES = re.compile(r": ([\d.]+) (B|kB|MB|GB) a round")
_UNITS = {"B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9}
_FACTS = {
    "model": "model.class_path",
    "data": "data.init_args.data.class_path",
    "partition": "data.init_args.partition.class_path",
    "strategy": "trainer.strategy.class_path",
    "iterations of a client a round": "trainer.strategy.init_args.communication_interval",
    "clients a round": "trainer.strategy.init_args.cohort_size",
    "rounds asked for": "trainer.max_epochs",
    "seed": "seed_everything",
}


def panels(records: Sequence[ScoreRecord], controls: Controls | None = None) -> list[dict[str, Any]]:
    """A panel for each score, split and embedding, in the records' order; gaps are in tables."""
    columns = Columns.of(records)
    own = (r for r in records if r.split not in GAPS and r.aggregate not in DISTRIBUTION)
    groups = grouped(own, lambda record: (record.split, record.embedding, record.score))
    groups = {key: group for key, group in groups.items() if any(record.is_model for record in group)}
    inverted = {one.first_column: one.pairs for one in aggregates_compared(records)}
    return [
        {
            "name": columns.score(*key),
            "axis": f"{marked(columns.score(*key), group)} ({direction_of(group[0])})",
            "higher": bool(group[0].higher_is_better),
            "balanced": key[2] == BALANCED,
            "mark": strongest(group),
            "about": _about(group),
            "lines": _lines(group, columns),
            "controls": [line for arm, own in (controls or {}).items() for line in _control(arm, key, own)],
            **_pairs(inverted.get(f"{columns.score(*key)}_avg", [])),
            "clients": _clients(group, MOST_NUMBERS // len(groups)),
        }
        for key, group in groups.items()
    ]


def clients(contents: Contents) -> list[dict[str, Any]]:
    """A row for each client: "name", "role", sizes, "labels" (counts) and "out" (rounds that it was left out of)."""
    named = contents.kept.clients
    if not named:
        names = next((r.client_names for r in contents.records if r.client_names), [])
        named = [{"name": name, "role": "", "train": None, "held_out": None} for name in names]
    turns = Counter[str]()
    for entry in contents.left_out:
        if entry.get("kind", "") in ("", "earlier"):
            turns[entry["name"]] += entry.get("turns", 1)
    return [{**one, "out": turns[one["name"]]} for one in named]


def plain(value: float | None, digits: int | None = None) -> float | str | None:
    """A number as JSON has it: what is not finite as text, and others to n digits."""
    if value is not None and not math.isfinite(value):
        return str(value)
    return value if value is None or digits is None else float(f"{value:.{digits}g}")


def _about(group: Sequence[ScoreRecord]) -> list[str]:
    first = next(record for record in group if record.is_model)
    made = f"{first.num_generated:,} generated {first.noun} against " if first.num_generated else "against "
    floors = sorted({record.num_generated for record in group if record.is_floor})
    said = [f"floor: {count:,} real {first.noun} of others, scored as if generated" for count in floors]
    return [f"{made}{first.real}; embedding {first.embedding}", *said, *say_notes(group)]


def _pairs(inverted: Sequence[InvertedPair]) -> dict[str, Any]:
    few = len(inverted) <= MOST_PAIRS
    drawn = inverted if few else sorted(inverted, key=lambda pair: not pair.holds)[:MOST_PAIRS]
    shown = [[pair.better_by_first, pair.better_by_second, pair.holds] for pair in drawn]
    return {"pairs": shown, "pairs_left": len(inverted) - len(shown)}


def _lines(group: Sequence[ScoreRecord], columns: Columns) -> list[dict[str, Any]]:
    lines = []
    for aggregate, own in grouped(group, lambda record: record.aggregate).items():
        models = sorted((record for record in own if record.is_model), key=_round)
        real = next((record for record in own if record.is_floor), None)
        floor = real and {"value": plain(real.value), "error": plain(real.standard_error), "images": real.num_generated}
        line = {
            "aggregate": aggregate,
            "column": columns.name(own[0]),
            "rounds": list(map(_round, models)),
            "values": [plain(record.value) for record in models],
            "errors": [plain(record.standard_error) for record in models],
            "generated": [plain(record.generated_error) for record in models],
            "floor": floor,
        }
        lines += [line] if models else []
    return lines


def _control(arm: str, key: tuple[str, str, str], records: Sequence[ScoreRecord]) -> list[dict[str, Any]]:
    """A control's curves of a panel: "name", "aggregate", "rounds" and "values"."""
    own = grouped((r for r in records if (r.split, r.embedding, r.score) == key), lambda record: record.aggregate)
    own = {aggregate: sorted(group, key=_round) for aggregate, group in own.items()}
    return [
        {"name": arm, "aggregate": name, "rounds": list(map(_round, group)), "values": [plain(r.value) for r in group]}
        for name, group in own.items()
    ]


def _clients(group: Sequence[ScoreRecord], most: int) -> dict[str, Any]:
    """The clients' scores: "names", "rounds", "values" and "errors" (a row a round), the floor's."""
    own = sorted((r for r in group if r.is_model and r.aggregate == "avg" and r.per_client), key=_round)
    if not own:
        return {}
    names, count = own[-1].client_names, len(own[-1].per_client)
    own = [record for record in own if record.client_names == names and len(record.per_client) == count]
    step = math.ceil(len(own) / max(1, most // (2 * count)))
    shown = own[::-1][::step][::-1]
    floor = next((r for r in group if r.is_floor and r.aggregate == "avg" and r.client_names == names), None)
    return {
        "names": names or list(map(str, range(count))),
        "rounds": list(map(_round, shown)),
        "values": [[plain(value, 6) for value in record.per_client] for record in shown],
        "errors": [[plain(error, 3) for error in record.per_client_errors] for record in shown],
        "floor": [plain(value, 6) for value in floor.per_client] if floor else [],
        "floor_errors": [plain(error, 3) for error in floor.per_client_errors] if floor else [],
        "left_out": len(own) - len(shown),
    }


def _round(record: ScoreRecord) -> int:
    """The round; that of stored images, which have none, is 0."""
    return record.round or 0


def score_parts(records: Sequence[ScoreRecord]) -> list[dict[str, Any]]:
    """The tables that a terminal shows, as text and whether it is bold."""
    if not any(record.is_model for record in records):
        return []
    tables = run_tables(records, WIDE)
    if are_several(records):
        tables.append(selection_table(records))
        if aggregates_compared(records):
            tables.append(inversion_table(records))
    return [
        {
            "title": _plain(table.title)[0],
            "caption": _plain(table.caption)[0],
            "headings": [_plain(column.header)[0] for column in table.columns],
            "rows": list(zip(*([_plain(cell) for cell in column.cells] for column in table.columns))),
        }
        for table in tables
    ]


def _plain(cell: Any) -> tuple[str, bool]:
    text = cell if isinstance(cell, Text) else Text.from_markup(str(cell or ""))
    return text.plain[:LONGEST_CELL], any("bold" in str(span.style) for span in text.spans)


def facts(contents: Contents) -> list[tuple[str, str]]:
    """Name and value of what a run is, cost and promised, as far as its folder has them."""
    found = [*_settings(contents), *_time(contents), *_sent(contents)]
    for name in ("epsilon", "delta", "statistics_epsilon", "statistics_delta"):
        if name in contents.series:
            found.append((name.replace("_", " "), say_number(contents.series[name].values[-1])))
    found += [(f"version of {name}", text) for name, text in contents.kept.versions.items()]
    return [(shorten(name, LONGEST), shorten(value, LONGEST)) for name, value in found]


def _settings(contents: Contents) -> list[tuple[str, str]]:
    flat = flatten(contents.settings)
    found = [("folder", contents.place)]
    found += [(name, str(flat[path])) for name, path in _FACTS.items() if flat.get(path) is not None]
    if contents.kind != "training":
        for name, value in contents.settings.items():
            if value is not None and value is not False and value not in ("", [], {}) and name != "seed_everything":
                found.append((str(name), str(value)))
    if seeds := sorted({record.seed for record in contents.records}):
        found.append(("seed of sampling", ", ".join(map(str, seeds))))
    for name, fingerprint in dict.fromkeys((r.embedding, r.embedding_fingerprint) for r in contents.records):
        found.append(("embedding", f"{name} (fingerprint {fingerprint or 'unknown'})"))
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
        ("time a round", f"{say_number(statistics.median(seconds))} s (median of {len(seconds):,})"),
        ("time from the first logged round to the last", f"{whole}, evaluations and pauses included"),
    ]


def _sent(contents: Contents) -> list[tuple[str, str]]:
    """Bytes that clients send, of the table of what becomes of the model's state."""
    parts = [float(number) * _UNITS[unit] for number, unit in _BYTES.findall(contents.state)]
    if not parts:
        return []
    found = [("a client sends", f"{in_bytes(round(sum(parts)))} a round")]
    cohort = flatten(contents.settings).get(_FACTS["clients a round"])
    rounds = [r.round for r in contents.records if r.is_model and r.round is not None and r.round >= 0]
    if type(cohort) is int and rounds:
        total = in_bytes(round(sum(parts) * cohort * (max(rounds) + 1)))
        found.append((f"all clients sent up to round {max(rounds)}", f"about {total} ({cohort} clients a round)"))
    return found


def numbers(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """The numbers of an experiment with the keys that lead to them, e.g. ("scores / 0.1 / fid / avg", "1.459")."""
    if isinstance(value, dict):
        for key, part in value.items():
            yield from numbers(part, f"{name} / {key}" if name else str(key))
    elif isinstance(value, list) and any(isinstance(part, dict | list) for part in value):
        for place, part in enumerate(value):
            yield from numbers(part, f"{name} / {place}")
    else:
        parts = value if isinstance(value, list) else [value]
        said = (f"{part:.6g}" if isinstance(part, float) else str(part) for part in parts)
        yield name, shorten(", ".join(said), LONGEST)
