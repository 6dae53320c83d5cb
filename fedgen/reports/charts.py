"""Runs as plain values for a page: charts, tables, clients and facts of one, and several side by side."""

import json
import math
import re
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from rich.text import Text

from fedgen.evaluation.marks import GAPS, axis_of, strongest, title_of
from fedgen.evaluation.names import DISTRIBUTION, HELD_OUT
from fedgen.evaluation.records import BALANCED, Columns, ScoreRecord, by_column, grouped, say_sampling
from fedgen.evaluation.runs.selection import InvertedPair, aggregates_compared
from fedgen.evaluation.tables.table import inversion_table, run_tables, say_notes, say_value, selection_table
from fedgen.federated.left_out import shorten
from fedgen.io.files import in_bytes
from fedgen.recipe.recipe_files import flatten
from fedgen.reports.contents import Contents
from fedgen.reports.sentences import best_of, floors_of
from fedgen.scores.rankings import Z

MOST_NUMBERS = 300_000  # clients' scores in one run's part of a page; of more, evenly spaced rounds
MOST_PAIRS = 2_000  # of rounds that avg and all order differently, in one panel: each is a line
WIDE = 100_000  # characters: a page's table need not be split
LONGEST, LONGEST_CELL, LONGEST_AXIS = 200, 1_000, 160  # characters of a fact, of a cell or a table's title, of an axis
NAMED = 3  # settings that an arm is called by
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
_FREE = ("default_root_dir", "logger", "enable_progress_bar", "devices", "accelerator", "num_nodes", "profiler")
_IN_ANY_ARM = {"seed_everything", *(f"trainer.{name}" for name in _FREE)}  # settings that runs of one arm may differ in
_SHOWN_ALONE = ("page", "report", "grid")  # of a callback: they change no number
Axes = dict[tuple[str, str], dict[int, tuple[str, list[ScoreRecord]]]]  # places, columns and records by column and name


def panels(records: Sequence[ScoreRecord]) -> list[dict[str, Any]]:
    """A panel for each score, split and embedding, in the records' order; gaps are in tables."""
    columns = Columns.of(records)
    own = (r for r in records if r.split not in GAPS and r.aggregate not in DISTRIBUTION)
    groups = grouped(own, lambda record: (record.split, record.embedding, record.score))
    groups = {key: group for key, group in groups.items() if any(record.is_model for record in group)}
    inverted = {one.first_column: one.pairs for one in aggregates_compared(records)}
    return [
        {
            "name": columns.score(*key),
            "title": title_of(key[2]),
            "axis": axis_of(max(group, key=lambda record: record.is_optimised)),
            "higher": bool(group[0].higher_is_better),
            "balanced": key[2] == BALANCED,
            "mark": strongest(group),
            "about": _about(group),
            "lines": _lines(group, columns),
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
    made = f"{first.num_generated:,} generated images against " if first.num_generated else "against "
    floors = sorted({record.num_generated for record in group if record.is_floor})
    said = [f"floor: {count:,} real images of others, scored as if generated" for count in floors]
    return [f"{made}{first.reference}; embedding {first.embedding}", *said, *say_notes(group)]


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


def _clients(group: Sequence[ScoreRecord], most: int) -> dict[str, Any]:
    """The clients' scores: "names", "rounds", "values" and "errors" (a row a round) and the "floor"'s."""
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
    if any(record.round is not None and record.round >= 0 for record in records):
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
            found.append((name.replace("_", " "), f"{contents.series[name].values[-1]:.4g}"))
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
        found.append(("seed of generated images", ", ".join(map(str, seeds))))
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
        ("time a round", f"{statistics.median(seconds):.3g} s (median of {len(seconds):,})"),
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


def arms_of(runs: Sequence[Contents]) -> list[tuple[str, dict[int, int]]]:
    """Names of recipes, seed and folder apart, with the places of their runs by seed; only runs that keep a recipe."""
    groups: dict[str, dict[int, int]] = {}
    flat: dict[str, dict[str, Any]] = {}
    for place, run in enumerate(runs):
        if run.kind == "training" and run.settings:
            settings = {name: value for name, value in flatten(run.settings).items() if _is_of_arm(name.split("."))}
            key = json.dumps(settings, sort_keys=True, default=str)
            flat[key] = settings
            groups.setdefault(key, {})[int(run.settings.get("seed_everything") or 0)] = place
    arms = []
    for number, (key, own) in enumerate(groups.items()):
        values = {name: {json.dumps(arm.get(name), default=str) for arm in flat.values()} for name in flat[key]}
        varied = [f"{name.split('.')[-1]}={value}" for name, value in flat[key].items() if len(values[name]) > 1]
        if len(varied) > NAMED:
            varied[NAMED:] = [f"and {len(varied) - NAMED} more"]
        arms.append((", ".join(varied) or f"recipe {number + 1}", own))
    return arms


def _is_of_arm(parts: Sequence[str]) -> bool:
    return not _IN_ANY_ARM & {parts[0], ".".join(parts[:2])} and parts[-1] not in _SHOWN_ALONE


def paired_rows(runs: Sequence[Contents]) -> list[list[str]]:
    """Rows "column", "arm minus control", "seeds", "difference", "95 % interval", of the last checkpoints' scores."""
    arms, rows, last = arms_of(runs), [], [_compared(run) for run in runs]
    for name, places in arms[1:]:
        control, first = arms[0]
        pairs = [(last[first[seed]], last[places[seed]]) for seed in sorted(first.keys() & places.keys())]
        for column in pairs[0][0] if pairs else ():
            own = [(a[column][-1], b[column][-1]) for a, b in pairs if column in a and column in b]
            if own and all(a.conditions == b.conditions for a, b in own):
                rows.append([column, f"{name} minus {control}", str(len(own)), *_difference(own)])
    return rows


def _compared(run: Contents) -> dict[str, list[ScoreRecord]]:
    """The records of avg and all by column, each by round."""
    usual = [one for one in run.records if one.split not in GAPS and one.score != BALANCED]
    return by_column([one for one in usual if one.aggregate in ("avg", "all")], Columns.of(run.records))


def _difference(pairs: Sequence[tuple[ScoreRecord, ScoreRecord]]) -> list[str]:
    differences = [treated.value - control.value for control, treated in pairs]
    mean, remark = statistics.mean(differences), ""
    if len(pairs) == 1:
        half = Z * math.hypot(*(record.generated_error for record in pairs[0]))
        remark = " (one seed: of the generated images alone)"
    else:
        from scipy import stats

        half = float(stats.t.ppf(0.975, len(pairs) - 1)) * statistics.stdev(differences) / len(pairs) ** 0.5
    if not abs(mean) > half:  # NaN, too
        remark += "; cannot be told from none"
    return [f"{mean:+.3g}", f"{mean - half:+.3g} to {mean + half:+.3g}{remark}"]


def short_names(runs: Sequence[Contents]) -> list[str]:
    """The ends of runs' paths that tell them apart; the whole path of a single one."""
    whole = [run.place for run in runs]
    parts = [Path(place).parts for place in whole]
    ends = (["/".join(one[-number:]) for one in parts] for number in range(1, max(map(len, parts))))
    return whole if len(runs) == 1 else next((names for names in ends if len({*names}) == len(runs)), whole)


def axes_of(runs: Sequence[Contents]) -> Axes:
    """The scores of runs in avg and all by what values must share to stand on one axis: one score, measured alike."""
    found: dict[tuple[str, ...], dict[int, tuple[str, list[ScoreRecord]]]] = {}
    for place, run in enumerate(runs):
        for column, group in _compared(run).items():
            found.setdefault((group[-1].name, *_measured(group[-1])), {})[place] = (column, group)
    axes = {}
    for name, keys in grouped(found, lambda key: key[0]).items():
        told: list[int] = []  # the first of the parts that tell the axes of this score apart
        for place in range(1, len(keys[0])):
            if len({_of(key, [*told, place]) for key in keys}) > len({_of(key, told) for key in keys}):
                told.append(place)
        for key in keys:
            axes[name, ", ".join([name, *filter(None, _of(key, told))])] = found[key]
    return axes


def _of(key: Sequence[str], places: Sequence[int]) -> tuple[str, ...]:
    return tuple(key[place] for place in places)


def _measured(record: ScoreRecord) -> tuple[str, ...]:
    fingerprint, reference, number, weights, *_ = record.conditions
    made = f"{number:,} generated images" if number else "images of unknown number"
    split = {"train": "training images", **dict.fromkeys(HELD_OUT, "held-out images")}.get(record.split, record.split)
    settings = ", ".join(f"{key} {value}" for key, value in (record.score_settings or {}).items())
    how = f"weights {weights}", settings, say_sampling(record.sampling)
    return f"embedding {record.embedding}", split, f"against {reference}", made, *how, f"fingerprint {fingerprint[:6]}"


def chart_rows(axes: Axes) -> list[dict[str, Any]]:
    """Axes for the page's charts: "column", "name" and "lines", a run's place and its column; of runs with rounds."""
    rows = []
    for (column, name), groups in axes.items():
        lines = [[k, own] for k, (own, group) in groups.items() if any(r.round is not None for r in group)]
        if lines:
            rows.append({"column": column, "name": shorten(name, LONGEST_AXIS), "lines": lines})
    return rows


def summary_rows(runs: Sequence[Contents]) -> tuple[list[str], list[list[str]]]:
    """Headings and a row for each run: seed, last round, and each column's best value, its round and its floor."""
    found = {name: groups for (_, name), groups in axes_of(runs).items()}
    axes = {name: groups for name, groups in found.items() if any("/" not in column for column, _ in groups.values())}
    rows = []
    for place, (name, run) in enumerate(zip(short_names(runs), runs)):
        rounds = [record.round for record in run.records if record.is_model and record.round is not None]
        seed = run.settings.get("seed_everything", run.settings.get("seed"))
        row = [name, "" if seed is None else str(seed), str(max(rounds)) if rounds else ""]
        floors = floors_of(run.records)
        rows.append([*row, *(_best(groups[place][1], floors) if place in groups else "" for groups in axes.values())])
    return ["run", "seed", "last round", *(shorten(name, LONGEST_AXIS) for name in axes)], rows


def _best(group: Sequence[ScoreRecord], floors: Mapping[tuple[str, ...], ScoreRecord]) -> str:
    best = best_of(group)
    where = "" if best.round is None else f" at round {best.round}"
    floor = floors.get(best.column)
    return f"{say_value(best)}{where}" + (f"; floor {say_value(floor)}" if floor else "")
