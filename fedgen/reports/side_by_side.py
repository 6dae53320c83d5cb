"""Several runs side by side: which is better and by how much, the settings that differ, and what does not compare."""

import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedgen.evaluation.marks import GAPS
from fedgen.evaluation.names import HELD_OUT
from fedgen.evaluation.records import (
    BALANCED,
    Columns,
    ScoreRecord,
    by_column,
    grouped,
    say_interval,
    say_number,
    say_sampling,
)
from fedgen.evaluation.runs.selection import ByColumn, default_column
from fedgen.evaluation.tables.table import say_value
from fedgen.federated.left_out import shorten
from fedgen.recipe.recipe_files import flatten
from fedgen.reports.contents import Contents
from fedgen.reports.sentences import best_of, floors_of
from fedgen.scores.rankings import Z, half_width

LONGEST_AXIS, LONGEST_SETTING, MOST_SETTINGS = 160, 60, 60
NAMED = 3  # settings that an arm of several seeds is called by, and columns that say otherwise than the first
_FREE = ("default_root_dir", "logger", "enable_progress_bar", "devices", "accelerator", "num_nodes", "profiler")
_IN_ANY_ARM = {"seed_everything", *(f"trainer.{name}" for name in _FREE)}  # settings that runs of one arm may differ in
_SHOWN_ALONE = ("page", "report", "grid")  # of a callback: they change no number
Grid = tuple[list[str], list[list[str]]]  # headings and rows
Axes = dict[tuple[str, str], dict[int, tuple[str, list[ScoreRecord]]]]  # places, columns and records by column and name
Arms = list[tuple[str, dict[int, int]]]  # names, and the places of their runs by seed
Pairs = Sequence[tuple[ScoreRecord, ScoreRecord]]  # of one seed each: the first arm's, and another's


def side_by_side(runs: Sequence[Contents], axes: Axes) -> dict[str, Any]:
    """The first section of a page of several runs: sentences and tables."""
    arms = arms_of(runs)
    last = [_compared(run) for run in runs]
    found = {name: _pairs(last, arms[0][1], places) for name, places in arms[1:]}
    apart = {name: why for (name, places) in arms[1:] if (why := _why_not(found[name], arms[0], places))}
    pairs = {name: columns for name, columns in found.items() if columns}
    is_one = bool(arms) and len(arms[0][1]) == len(runs)
    few = "One seed: intervals cover the generated images, not another training."
    return {
        "sentences": [
            *(_verdict(arms[0][0], name, columns) for name, columns in pairs.items()),
            *(f"{name} is not compared with {arms[0][0]}: {why}." for name, why in apart.items()),
            *(["All runs are of one recipe, and differ by their seeds."] if is_one else []),
            *([few] if any(len(own) == 1 for columns in pairs.values() for own in columns.values()) else []),
        ],
        "best": best_table(runs, axes),
        "settings": settings_table(runs),
        "pairs": pairs_table(arms[0][0], pairs) if pairs else None,
    }


def arms_of(runs: Sequence[Contents]) -> Arms:
    """Recipes, seed and folder apart, with the places of their runs by seed; only runs that keep a recipe.

    An arm of one run has that run's name, one of several the settings that differ.
    """
    groups: dict[str, dict[int, int]] = {}
    flat: dict[str, dict[str, Any]] = {}
    for place, run in enumerate(runs):
        if run.kind == "training" and run.settings:
            settings = {name: value for name, value in flatten(run.settings).items() if _is_of_arm(name.split("."))}
            key = json.dumps(settings, sort_keys=True, default=str)
            flat[key] = settings
            groups.setdefault(key, {})[int(run.settings.get("seed_everything") or 0)] = place
    names, arms = short_names(runs), []
    for number, (key, own) in enumerate(groups.items()):
        varied = [
            f"{name.split('.')[-1]}={value}" for name, value in flat[key].items() if _differs(name, [*flat.values()])
        ]
        if len(own) == 1:
            name = names[next(iter(own.values()))]
        else:
            name = ", ".join(varied) if 0 < len(varied) <= NAMED else f"recipe {number + 1}"
        arms.append((name, own))
    return arms


def _is_of_arm(parts: Sequence[str]) -> bool:
    return not _IN_ANY_ARM & {parts[0], ".".join(parts[:2])} and parts[-1] not in _SHOWN_ALONE


def _differs(name: str, settings: Sequence[dict[str, Any]]) -> bool:
    return len({json.dumps(own.get(name), default=str) for own in settings}) > 1


def _pairs(runs: Sequence[ByColumn], first: dict[int, int], places: dict[int, int]) -> dict[str, Pairs]:
    """The last checkpoints' scores by column, of the seeds that both arms have and where they were measured alike."""
    last = [(runs[first[seed]], runs[places[seed]]) for seed in sorted(first.keys() & places)]
    found: dict[str, Pairs] = {}
    for column in last[0][0] if last else ():
        own = [(a[column][-1], b[column][-1]) for a, b in last if column in a and column in b]
        if own and all(a.conditions == b.conditions for a, b in own):
            found[column] = own
    return found


def _why_not(pairs: dict[str, Pairs], first: tuple[str, dict[int, int]], places: dict[int, int]) -> str:
    """The reason why two arms do not compare; "" if they do."""
    if pairs:
        return ""
    seeds = [", ".join(map(str, sorted(one))) for one in (first[1], places)]
    common = first[1].keys() & places
    return "clients, embedding or image counts differ" if common else f"no common seed ({seeds[1]}; {seeds[0]})"


def _compared(run: Contents) -> dict[str, list[ScoreRecord]]:
    """The records of avg and all by column, each by round."""
    usual = [one for one in run.records if one.split not in GAPS and one.score != BALANCED]
    return by_column([one for one in usual if one.aggregate in ("avg", "all")], Columns.of(run.records))


def _verdict(first: str, name: str, columns: dict[str, Pairs]) -> str:
    """The better of two arms by the column that checkpoints are chosen by, if they can be told apart."""
    column = default_column({column: [b for _, b in own] for column, own in columns.items()})
    mean, low, high = difference(columns[column])
    values = [statistics.mean(pair[side].value for pair in columns[column]) for side in (1, 0)]
    how = f"{column} {say_number(values[0], digits=3)} and {say_number(values[1], digits=3)}"
    within = f"difference {_with_interval(mean, low, high, '95 %: ')}"
    ways = {one: _way(own) for one, own in columns.items() if one == column or one.endswith("_all")}
    told = {way: [one for one in ways if ways[one] == way != ways[column]] for way in ("better", "worse")}
    also = [f" By {', '.join(names[:NAMED])} {name} is {way}." for way, names in told.items() if names]
    start = f"{name} is {ways[column]} than {first}" if ways[column] else f"{name} and {first} cannot be told apart"
    return f"{start}: {how}, {within}.{''.join(also)}"


def _way(pairs: Pairs) -> str:
    """Whether the other arm is "better" or "worse" by a column, or "" where that cannot be told."""
    mean, low, high = difference(pairs)
    if not (low > 0 or high < 0):  # NaN, too
        return ""
    return "better" if (mean > 0) == bool(pairs[0][0].higher_is_better) else "worse"


def difference(pairs: Pairs) -> tuple[float, float, float]:
    """The mean over seeds of the other arm's score minus the first's, and its 95 % interval (Student)."""
    differences = [other.value - first.value for first, other in pairs]
    mean = statistics.mean(differences)
    if len(pairs) == 1:
        half = Z * math.hypot(*(record.generated_error for record in pairs[0]))
    else:
        half = half_width(differences)
    return mean, mean - half, mean + half


def _with_interval(mean: float, low: float, high: float, between: str = "") -> str:
    if math.isnan(low):  # the errors are unknown
        return f"{'+' * (mean > 0)}{say_number(mean, digits=3)}"
    value = say_number(mean, (high - low) / 2, digits=3).partition("±")[0]
    return f"{'+' * (mean > 0)}{value} ({between}{say_interval(low, high, sign='+')})"


def pairs_table(first: str, pairs: dict[str, dict[str, Pairs]]) -> Grid:
    """A row for each column, a cell for each arm: the difference and its interval."""
    headings = ["column"]
    for name, columns in pairs.items():
        seeds = len(next(iter(columns.values())))
        headings.append(f"{name} minus {first} ({seeds} seed{'s' * (seeds > 1)})")
    names = dict.fromkeys(column for columns in pairs.values() for column in columns)
    cells = [
        [_with_interval(*difference(columns[name])) if name in columns else "" for columns in pairs.values()]
        for name in names
    ]
    return headings, [[name, *row] for name, row in zip(names, cells)]


def settings_table(runs: Sequence[Contents]) -> Grid:
    """A row for each setting that runs with a recipe differ in, folders and what is only shown apart."""
    kept = [(name, flatten(run.settings)) for name, run in zip(short_names(runs), runs) if run.settings]
    every = dict.fromkeys(key for _, own in kept for key in own if _is_of_arm(key.split(".")))
    differing = [key for key in ("seed_everything", *every) if _differs(key, [own for _, own in kept])]
    # the settings of two classes are not compared, the classes are
    others = tuple(f"{key.removesuffix('class_path')}init_args." for key in differing if key.endswith("class_path"))
    rows = [
        [key.replace(".init_args", ""), *(_setting(own.get(key, "")) for _, own in kept)]
        for key in differing
        if not key.startswith(others)
    ]
    left = len(rows) - MOST_SETTINGS
    return ["setting", *(name for name, _ in kept)], rows[:MOST_SETTINGS] + ([[f"and {left} more"]] if left > 0 else [])


def _setting(value: Any) -> str:
    return shorten("" if value is None else str(value), LONGEST_SETTING)


def best_table(runs: Sequence[Contents], axes: Axes) -> Grid:
    """A row for each run, its best value on each axis, with its round where that is not the last; then real images."""
    shown = {key: own for key, own in axes.items() if any("/" not in column for column, _ in own.values())}
    known, rows = [floors_of(run.records) for run in runs], []
    for place, (name, run) in enumerate(zip(short_names(runs), runs)):
        rounds = [record.round for record in run.records if record.is_model and record.round is not None]
        seed = run.settings.get("seed_everything", run.settings.get("seed"))
        row = [name, "" if seed is None else str(seed), str(max(rounds)) if rounds else ""]
        rows.append([*row, *(_best(own[place][1]) if place in own else "" for own in shown.values())])
    floors = [
        {say_value(known[k][group[0].column]) for k, (_, group) in own.items() if group[0].column in known[k]}
        for own in shown.values()
    ]
    if any(floors):
        rows.append(["floor: real images", "", "", *("; ".join(sorted(own)) for own in floors)])
    columns = [column for column, _ in shown]
    names = [column if columns.count(column) == 1 else shorten(name, LONGEST_AXIS) for column, name in shown]
    return ["run", "seed", "last round", *names], rows


def _best(group: Sequence[ScoreRecord]) -> str:
    best = best_of(group)
    return say_value(best) + ("" if best.round == group[-1].round else f" (round {best.round})")


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
    made = f"{number:,} generated {record.noun}" if number else f"{record.noun} of unknown number"
    kinds = {"train": "training ", **dict.fromkeys(HELD_OUT, "held-out ")}
    split = f"{kinds[record.split]}{record.noun}" if record.split in kinds else record.split
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
