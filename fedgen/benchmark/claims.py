"""Claims of entries: worked out of stored runs when an entry is made, and again, to be compared, when it is read."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from fedgen.benchmark.entry import Claims, Entry, IntervalForm, MembershipForm, RunCost
from fedgen.benchmark.number import number_of, ratios_of
from fedgen.benchmark.run_checks import CONDITIONS, check_runs
from fedgen.benchmark.suite import AUDIT, BESIDE, NUMBER, Cell, OwnClass, OwnImages
from fedgen.benchmark.suites import find_suite
from fedgen.evaluation.audit.attack_strength import IntervalEstimate, combined
from fedgen.evaluation.records import ScoreRecord
from fedgen.experiments.engine.recipe_file import fingerprint
from fedgen.foreign_text import printable
from fedgen.recipe.recipe_files import flatten

ROUNDING = 1e-9  # relative, between machines
FLOORS = 1e-3  # relative difference of floors of one seed between machines, whose features differ in their last digits
STRATEGY = ("trainer", "strategy", "init_args")


def claims_of(
    cell: Cell, records: Sequence[Sequence[ScoreRecord]], attacks: Sequence[MembershipForm], costs: Sequence[RunCost]
) -> Claims:
    """The figures of runs.

    Args:
        cell: that was trained.
        records: of each run, as an entry keeps them.
        attacks: on each run's model.
        costs: of each run.

    Raises:
        ValueError: if a run lacks a score or its floor.
    """
    number = number_of([ratios_of([record for record in run if record.score == NUMBER]) for run in records])
    return {
        "number": number.value,
        "low": number.low,
        "high": number.high,
        "parts": dict(number.parts),
        "beside": _beside(records, cell.data_part.embeddings[0]),
        "attack": _advantage(attacks),
        "sent_bytes": statistics.mean(cost["turns"] * cost["message_bytes"] for cost in costs),
        "client_seconds": statistics.mean(cost["client_seconds"] for cost in costs),
        "peak_memory": max(cost["peak_memory"] for cost in costs),
    }


def check(entry: Entry) -> None:
    """Refuses an entry whose claims, cell, recipe or runs are not what they must be.

    Raises:
        ValueError: naming the entry, and what it says and should say.
    """
    try:
        cell = _cell_of(entry)
        _check_recipe(entry, cell)
        check_runs(entry, cell, find_suite(entry.form["suite"]))
        _check_claims(entry, cell)
    except ValueError as error:
        raise ValueError(f"entry {entry.name} ({entry.path}) is refused: {error}") from error


def check_alike(entry: Entry, other: Entry) -> None:
    """Refuses an entry that was not measured as another one of its task: values would not compare.

    Raises:
        ValueError: naming both, and the first difference.
    """
    seeds = {run["seed"]: place for place, run in enumerate(other.form["runs"])}
    for run, records in zip(entry.form["runs"], entry.records):
        if run["seed"] not in seeds:
            continue
        attacked, there = (
            {(one["name"], one["pairs"]) for one in each["membership"]["clients"]}
            for each in (run, other.form["runs"][seeds[run["seed"]]])
        )
        if attacked != there:
            name, pairs = min(attacked ^ there)
            raise ValueError(
                f"entry {entry.name} ({entry.path}) is refused: it and {other.name} ({other.path}) were not attacked"
                f" alike: client {printable(name)} by {pairs} pairs is in one of them alone"
            )
        theirs = {(r.generator, r.column): r for r in other.records[seeds[run["seed"]]] if r.is_floor}
        for floor in (record for record in records if (record.generator, record.column) in theirs):
            known = theirs[floor.generator, floor.column]
            compared = [(name, getattr(floor, name), getattr(known, name)) for name in CONDITIONS]
            if floor.score == NUMBER and not math.isclose(floor.value, known.value, rel_tol=FLOORS):
                compared.append(("value", f"{floor.value:.6g}", f"{known.value:.6g}"))
            for name, here, there in compared:
                if here != there:
                    raise ValueError(
                        f"entry {entry.name} ({entry.path}) is refused: it was not measured as {other.name}"
                        f" ({other.path}) was: its floor's {floor.name} in {floor.embedding} has the {name}"
                        f" {printable(str(here))}, there {printable(str(there))}"
                    )


def _cell_of(entry: Entry) -> Cell:
    """The cell that an entry is of: the suite's, or that of a class of one's own beside one of them.

    Raises:
        ValueError: if there is no such suite or cell.
    """
    suite = find_suite(entry.form["suite"])
    cell = suite.cell(entry.form["beside"])
    if cell is None:
        raise ValueError(f"suite {suite.name} of this fedgen has no cell {entry.form['beside']}")
    if (own := entry.form["own"]) is not None:
        if (own["slot"] == "data") != ("images" in own):
            what = "nothing" if own["slot"] == "data" else "what only a data set has"
            raise ValueError(f"it says {what} of the images of {own['class_path']}")
        images = OwnImages(**own["images"]) if "images" in own else None
        places = {one.beside: one for one in suite.cells_with(OwnClass(own["class_path"], own["slot"], images=images))}
        if cell.name not in places:
            raise ValueError(f"a {own['slot']} of one's own stands beside {', '.join(places)}, not {cell.name}")
        cell = places[cell.name]
    if entry.name != cell.name:
        raise ValueError(f"its parts are those of {cell.name}")
    return cell


def _check_recipe(entry: Entry, cell: Cell) -> None:
    """Refuse a recipe that is another than the cell's, beside the place of an own class, or than its hash says."""
    recipe, own = entry.form["recipe"], entry.form["own"]
    if fingerprint(recipe) != entry.form["recipe_hash"]:
        raise ValueError("its recipe is not the one that recipe_hash stands for")
    expected = cell.recipe()
    if own is not None and own["slot"] != "data":
        place = expected if own["slot"] == "model" else _inside(expected)
        given = (recipe if own["slot"] == "model" else _inside(recipe)).get(own["slot"])
        if not isinstance(given, Mapping) or given.get("class_path") != own["class_path"]:
            raise ValueError(f"{own['slot']} of its recipe is not {own['class_path']}")
        place[own["slot"]] = given
    before, now = flatten(expected), flatten(recipe)
    changed = sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key))
    if changed:
        key = changed[0]
        raise ValueError(
            f"its recipe is not that of the suite's cell {cell.name} in this fedgen: {key} is {now.get(key)!r},"
            f" there {before.get(key)!r}"
        )


def _inside(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """The strategy's arguments of a recipe; none where it has no such part."""
    found: Any = recipe
    for key in STRATEGY:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found if isinstance(found, dict) else {}


def _check_claims(entry: Entry, cell: Cell) -> None:
    runs = entry.form["runs"]
    stored = [run["membership"] for run in runs], [run["costs"] for run in runs]
    shown = flatten(claims_of(cell, entry.records, *stored))
    claimed = flatten(entry.claims)
    for key in sorted(shown.keys() | claimed.keys()):
        told, true = claimed.get(key), shown.get(key)
        same = told == true or (told is not None and true is not None and math.isclose(told, true, rel_tol=ROUNDING))
        if not same:
            raise ValueError(f"it claims {key} {_said(told)}, and its stored records show {_said(true)}")


def _advantage(runs: Sequence[MembershipForm]) -> IntervalForm:
    """The attack's advantage, the mean over clients, each alike, and over runs, with its interval at 95 %.

    Of one run clients' errors are independent, as their images are. All runs are attacked on the same images, so that
    their errors do not average out: the ends of the interval are the means of the runs' ends.
    """
    means = []
    for run in runs:
        parts = [IntervalEstimate(**one["advantage"]) for one in run["clients"]]
        means.append(combined(parts, [1 / len(parts)] * len(parts)).within(-1, 1))
    value, low, high = (statistics.mean(getattr(one, end) for one in means) for end in ("value", "low", "high"))
    return {"value": value, "low": low, "high": high}


def floor_of(score: str) -> str:
    """The name of a score of real images among an entry's figures."""
    return f"{score} floor"


def _said(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, int | float) else "nothing"


def _beside(records: Sequence[Sequence[ScoreRecord]], embedding: str) -> dict[str, float]:
    """The other scores in all in one embedding, as means over seeds; those that every run has."""
    found: dict[str, list[float]] = {}
    for run in records:
        for record in run:
            if (record.embedding, record.aggregate) != (embedding, "all"):
                continue
            if record.is_model and record.score in (*BESIDE, *AUDIT):
                found.setdefault(record.score, []).append(record.value)
            if record.is_floor and record.score in AUDIT:
                found.setdefault(floor_of(record.score), []).append(record.value)
    return {name: statistics.mean(values) for name, values in found.items() if len(values) == len(records)}
