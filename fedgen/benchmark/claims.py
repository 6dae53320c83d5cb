"""Claims of entries: worked out of stored runs when an entry is made, and again, to be compared, when it is read.

With s the score (FID) of generated images and f that of as many real ones in their place, both against the clients'
held-out images, a run's number is the geometric mean of s / f over embeddings, avg and all; 1 is as good as real
images. Over seeds it is the geometric mean over runs. Its interval joins two parts, on the logarithm: Student's t over
seeds, and 1.96 standard errors of real images, which all seeds share. It is rather too wide: errors of the floor are in
both parts, those of embeddings and aggregates count as dependent, and those of score and floor may cancel.
"""

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from fedgen.benchmark.entry import Claims, Entry, IntervalForm, MembershipForm, RunCost, measured
from fedgen.benchmark.suite import AUDIT, BESIDE, NUMBER, Cell, OwnClass, OwnImages, find_suite
from fedgen.evaluation.audit.attack_strength import IntervalEstimate, combined
from fedgen.evaluation.records import FLOOR, MODEL, ScoreRecord
from fedgen.experiments.engine.trainings import fingerprint
from fedgen.recipe.recipe_files import flatten
from fedgen.scores.rankings import Z, half_width

AGGREGATES = ("avg", "all")


@dataclass(frozen=True)
class Ratio:
    score: ScoreRecord
    floor: ScoreRecord  # of real images in their place

    @property
    def log(self) -> float:
        """The logarithm of score / floor; NaN where one is not finite or not above 0."""
        values = self.score.value, self.floor.value
        return math.log(values[0] / values[1]) if all(0 < value < math.inf for value in values) else math.nan

    @property
    def error(self) -> float:
        """The standard error of `log` from real images: those scored against, and those of the floor."""
        score = self.score.error_parts.get("real", self.score.standard_error or 0.0) / self.score.value
        return math.hypot(score, (self.floor.standard_error or 0.0) / self.floor.value)


@dataclass(frozen=True)
class Number:
    value: float | None  # None if a run has a score that is not finite
    low: float | None  # of the 95 percent interval; None with one seed, which cannot tell how much seeds differ
    high: float | None  # likewise
    parts: Mapping[str, float]  # aggregate -> the number in this one alone; empty without a value


def ratios_of(records: Sequence[ScoreRecord]) -> list[Ratio]:
    models = {(r.embedding, r.aggregate): r for r in records if r.is_model}
    floors = {(r.embedding, r.aggregate): r for r in records if r.is_floor}
    wanted = {(embedding, name) for embedding, _ in {*models, *floors} for name in AGGREGATES}
    for kind, found in (("score", models), ("floor", floors)):
        if lacking := sorted(wanted - found.keys()):
            raise ValueError(f"it has no {kind} in {' '.join(lacking[0])}")
    return [Ratio(models[key], floors[key]) for key in sorted(wanted)]


def number_of(runs: Sequence[Sequence[Ratio]]) -> Number:
    means, every = [statistics.mean(ratio.log for ratio in run) for run in runs], list(chain.from_iterable(runs))
    centre = statistics.mean(means)
    if math.isnan(centre):
        return Number(None, None, None, {})
    logs = {name: [ratio.log for ratio in every if ratio.score.aggregate == name] for name in AGGREGATES}
    parts = {name: math.exp(statistics.mean(own)) for name, own in logs.items()}
    if len(means) < 2:
        return Number(math.exp(centre), None, None, parts)
    error = statistics.mean(ratio.error for ratio in every)  # of images that all seeds share
    half = math.hypot(half_width(means), Z * error)
    return Number(math.exp(centre), math.exp(centre - half), math.exp(centre + half), parts)


FLOORED = ("authenticity", "mifid")  # audits that every run has of real images, too


def _check_scores(seed: int, records: Sequence[ScoreRecord], cell: Cell) -> None:
    """Refuse records that are there twice, lacking, or of other images than the last round's."""
    data = cell.data_part
    places = [(record.generator, record.round, record.column) for record in records]
    if twice := next((place for place, times in Counter(places).items() if times > 1), None):
        one = records[places.index(twice)]
        said = f"the {one.generator}'s {one.name} in {one.embedding} of seed {seed}"
        raise ValueError(f"{said} is there {places.count(twice)} times")
    ratios = ratios_of([record for record in records if record.score == NUMBER])
    for found in ({one.score.embedding for one in ratios}, {record.embedding for record in records}):
        if found != set(data.embeddings):
            raise ValueError(f"it was scored in {sorted(found)}, not {data.embeddings}")
    if len(measured(records, cell.budget.rounds - 1)) != len(records):
        raise ValueError(f"seed {seed} has records of other scores, splits or rounds than the last one")
    first = data.embeddings[0]
    shown = [(MODEL, score) for score in (*BESIDE, *AUDIT)] + [(FLOOR, score) for score in FLOORED]
    there = {(one.generator, one.score) for one in records if (one.embedding, one.aggregate) == (first, "all")}
    if lacking := [one for one in shown if one not in there]:
        raise ValueError(f"seed {seed} has no {lacking[0][0]}'s {lacking[0][1]}_all in {first}")
    for record in records:
        if record.seed != seed or record.num_generated != data.num_images:
            about = f"of seed {record.seed} and {record.num_generated} images, not {data.num_images}"
            raise ValueError(f"{record.name} of seed {seed} is {about}")
        if record.is_model and record.is_optimised:
            used = ", ".join(record.optimised_on)
            raise ValueError(f"a loss of its training used {used}, which the number is made of, too")


ROUNDING = 1e-9  # relative, between machines


def claims_of(
    cell: Cell, records: Sequence[Sequence[ScoreRecord]], attacks: Sequence[MembershipForm], costs: Sequence[RunCost]
) -> Claims:
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
    """Refuses an entry whose claims, cell, recipe or runs are not what they must be."""
    try:
        cell = _cell_of(entry)
        _check_recipe(entry, cell)
        runs, wanted = entry.form["runs"], list(find_suite(entry.form["suite"]).seeds)
        seeds = [run["seed"] for run in runs]
        if not seeds == entry.form["seeds"] == wanted:
            raise ValueError(f"its runs have the seeds {seeds}, the suite {wanted}")
        for seed, records in zip(seeds, entry.records):
            _check_scores(seed, records, cell)
        attacks, costs = [run["membership"] for run in runs], [run["costs"] for run in runs]
        shown, claimed = flatten(claims_of(cell, entry.records, attacks, costs)), flatten(entry.claims)
        for key in sorted(shown.keys() | claimed.keys()):
            told, true = claimed.get(key), shown.get(key)
            if told != true and (told is None or true is None or not math.isclose(told, true, rel_tol=ROUNDING)):
                raise ValueError(f"it claims {key} {_shown(told)}, and its stored records show {_shown(true)}")
    except ValueError as error:
        raise ValueError(f"entry {entry.name} ({entry.path}) is refused: {error}") from error


def _cell_of(entry: Entry) -> Cell:
    """The cell that an entry is of: the suite's, or that of an own class beside one of them."""
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
            raise ValueError(f"an own {own['slot']} stands beside {', '.join(places)}, not {cell.name}")
        cell = places[cell.name]
    if entry.name != cell.name:
        raise ValueError(f"its parts are those of {cell.name}")
    return cell


def _check_recipe(entry: Entry, cell: Cell) -> None:
    """Refuse a recipe that is another than the cell's, beside the place of an own class, or than its hash says."""
    recipe, own = entry.form["recipe"], entry.form["own"]
    if fingerprint(recipe) != entry.form["recipe_hash"]:
        raise ValueError("its recipe is not the one that recipe_hash stands for")
    before, now, place = flatten(cell.recipe()), flatten(recipe), ""
    if own is not None and own["slot"] != "data":
        place = "model." if own["slot"] == "model" else f"trainer.strategy.init_args.{own['slot']}."
        if now.get(f"{place}class_path") != own["class_path"]:
            raise ValueError(f"{own['slot']} of its recipe is not {own['class_path']}")
    for key in sorted(before.keys() | now.keys()):
        if before.get(key) != now.get(key) and not (place and key.startswith(place)):
            found = f"{key} is {now.get(key)!r}, there {before.get(key)!r}"
            raise ValueError(f"its recipe is not that of the suite's cell {cell.name} in this fedgen: {found}")


def _advantage(runs: Sequence[MembershipForm]) -> IntervalForm:
    """The attack's advantage, the mean over clients and runs, with its interval at 95 %."""
    # of one run clients' errors are independent, as their images are; all runs are attacked on the same images, so that
    # their errors do not average out: the ends of the interval are the means of the runs' ends
    means = []
    for run in runs:
        parts = [IntervalEstimate(**one["advantage"]) for one in run["clients"]]
        means.append(combined(parts, [1 / len(parts)] * len(parts)).within(-1, 1))
    value, low, high = (statistics.mean(getattr(one, end) for one in means) for end in ("value", "low", "high"))
    return {"value": value, "low": low, "high": high}


def _shown(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, int | float) else "nothing"


def _beside(records: Sequence[Sequence[ScoreRecord]], embedding: str) -> dict[str, float]:
    """The other scores in all in one embedding, as means over seeds; those that every run has."""
    found: dict[str, list[float]] = {}
    for record in (one for run in records for one in run if (one.embedding, one.aggregate) == (embedding, "all")):
        if record.is_model and record.score in (*BESIDE, *AUDIT):
            found.setdefault(record.score, []).append(record.value)
        if record.is_floor and record.score in AUDIT:
            found.setdefault(f"{record.score} floor", []).append(record.value)
    return {name: statistics.mean(values) for name, values in found.items() if len(values) == len(records)}
