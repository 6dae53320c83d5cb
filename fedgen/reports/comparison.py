"""Several runs side by side, and the differences of arms over paired seeds."""

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedgen.evaluation.marks import GAPS
from fedgen.evaluation.records import BALANCED, ScoreRecord, by_column
from fedgen.evaluation.tables.table import say_value
from fedgen.federated.left_out import shorten
from fedgen.recipe.recipe_files import flatten
from fedgen.reports.contents import Contents
from fedgen.reports.sentences import best_of, floors_of
from fedgen.scores.rankings import Z

FREE = ("default_root_dir", "logger", "enable_progress_bar", "devices", "accelerator", "num_nodes", "profiler")
SHOWN_ALONE = ("page", "report", "grid")  # of a callback: they change no number
LONGEST_AXIS = 160  # characters
NAMED = 3  # settings that an arm is called by


def arms_of(runs: Sequence[Contents]) -> list[tuple[str, dict[int, int]]]:
    """Names of recipes, seed and folder apart, with the places of their runs by seed; only runs that keep a recipe."""
    groups: dict[str, dict[int, int]] = {}
    flat: dict[str, dict[str, Any]] = {}
    for place, run in enumerate(runs):
        if run.kind == "training" and run.settings:
            flattened = flatten(_without_place(run.settings)).items()
            settings = {name: value for name, value in flattened if name.split(".")[-1] not in SHOWN_ALONE}
            key = json.dumps(settings, sort_keys=True, default=str)
            flat[key] = settings
            groups.setdefault(key, {})[int(run.settings.get("seed_everything") or 0)] = place
    arms = []
    for number, (key, own) in enumerate(groups.items()):
        varied = [
            f"{name.split('.')[-1]}={value}"
            for name, value in flat[key].items()
            if len({json.dumps(other.get(name), default=str) for other in flat.values()}) > 1
        ]
        if len(varied) > NAMED:
            varied[NAMED:] = [f"and {len(varied) - NAMED} more"]
        arms.append((", ".join(varied) or f"recipe {number + 1}", own))
    return arms


def paired_rows(runs: Sequence[Contents]) -> list[list[str]]:
    """Rows "column", "arm minus control", "seeds", "difference", "95 % interval"."""
    arms, rows = arms_of(runs), []
    for name, places in arms[1:]:
        control, first = arms[0]
        pairs = [(_last(runs[first[seed]]), _last(runs[places[seed]])) for seed in sorted(first.keys() & places.keys())]
        for column in pairs[0][0] if pairs else ():
            own = [(a[column], b[column]) for a, b in pairs if column in a and column in b]
            if own and all(a.conditions == b.conditions for a, b in own):
                rows.append([column, f"{name} minus {control}", str(len(own)), *_difference(own)])
    return rows


def _last(run: Contents) -> dict[str, ScoreRecord]:
    """Each column's record of its last round, of avg and all."""
    return {name: group[-1] for name, group in by_column(run.records).items() if _is_compared(group[0])}


@dataclass(frozen=True)
class Axis:
    """Values of several runs that compare: of one score and aggregate, measured alike."""

    column: str
    name: str
    groups: dict[int, tuple[str, list[ScoreRecord]]]


def axes_of(runs: Sequence[Contents]) -> list[Axis]:
    """The scores of runs in avg and all by what values must share to stand on one axis."""
    found: dict[tuple[str, ...], dict[int, tuple[str, list[ScoreRecord]]]] = {}
    for place, run in enumerate(runs):
        for column, group in by_column(run.records).items() if run.records else ():
            if _is_compared(group[0]):
                found.setdefault((group[-1].name, *_measured(group[-1])), {})[place] = (column, group)
    shared: dict[str, list[tuple[str, ...]]] = {}
    for name, *parts in found:
        shared.setdefault(name, []).append(tuple(parts))
    axes = []
    for (name, *parts), groups in found.items():
        varied = [part for place, part in enumerate(parts) if len({other[place] for other in shared[name]}) > 1]
        axes.append(Axis(name, ", ".join([name, *varied]), groups))
    return axes


def _measured(record: ScoreRecord) -> tuple[str, ...]:
    """In words, how a value was measured."""
    fingerprint, reference, number, weights, settings, _ = record.conditions
    return (
        f"embedding {record.embedding}",
        f"split {record.split}",
        f"{number:,} generated images" if number else "images of unknown number",
        f"against {reference}",
        f"weights {weights}",
        f"fingerprint {fingerprint}",
        f"settings {settings}",
    )


def chart_rows(axes: Sequence[Axis]) -> list[dict[str, Any]]:
    """Axes for the page's charts: "column", "name" and "lines", a run's place and its column; of runs with rounds."""
    rows = []
    for axis in axes:
        lines = [[k, column] for k, (column, group) in axis.groups.items() if any(r.round is not None for r in group)]
        if lines:
            rows.append({"column": axis.column, "name": shorten(axis.name, LONGEST_AXIS), "lines": lines})
    return rows


def summary_rows(runs: Sequence[Contents]) -> tuple[list[str], list[list[str]]]:
    """Headings and a row for each run: seed, last round, and each column's best value, its round and its floor."""
    axes = [axis for axis in axes_of(runs) if any("/" not in column for column, _ in axis.groups.values())]
    headings = ["run", "seed", "last round", *(shorten(axis.name, LONGEST_AXIS) for axis in axes)]
    rows = []
    for place, run in enumerate(runs):
        rounds = [record.round for record in run.records if record.is_model and record.round is not None]
        seed = run.settings.get("seed_everything", run.settings.get("seed"))
        row = [run.place, "" if seed is None else str(seed), str(max(rounds)) if rounds else ""]
        floors = floors_of(run.records)
        rows.append([*row, *(_best(axis.groups.get(place, ("", []))[1], floors) for axis in axes)])
    return headings, rows


def _is_compared(record: ScoreRecord) -> bool:
    return record.aggregate in ("avg", "all") and record.split not in GAPS and record.score != BALANCED


def _best(group: Sequence[ScoreRecord], floors: Mapping[tuple[str, ...], ScoreRecord]) -> str:
    if not group:
        return ""
    best = best_of(group)
    where = "" if best.round is None else f" at round {best.round}"
    floor = floors.get(best.column)
    return f"{say_value(best)}{where}" + (f"; floor {say_value(floor)}" if floor else "")


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


def _without_place(settings: dict[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in settings.items() if key != "seed_everything"}
    if isinstance(trainer := kept.get("trainer"), dict):
        kept["trainer"] = {key: value for key, value in trainer.items() if key not in FREE}
    return kept
