"""Checks of an entry's runs: that they were trained, scored and attacked as the suite's cell says, and all alike."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from fedgen.benchmark.entry import AttackForm, Entry, RunForm, measured
from fedgen.benchmark.number import ratios_of
from fedgen.benchmark.parts import GENERATORS
from fedgen.benchmark.suite import AUDIT, BESIDE, NUMBER, PAIRS, Cell, Suite
from fedgen.evaluation.names import LOCAL_NOTE
from fedgen.evaluation.records import FLOOR, MODEL, ScoreRecord
from fedgen.foreign_text import printable

FLOORED = ("authenticity", "mifid")  # audits that every run has of real images, too
CONDITIONS: dict[str, tuple[str, ...]] = {
    "num_clients": (),
    "weights": (),
    "reference": ("split",),
    "embedding_fingerprint": ("embedding",),
    "embedding_settings": ("embedding",),
}
"""what a score depends on beside its images -> the fields that records share where they must share this, too"""


def check_runs(entry: Entry, cell: Cell, suite: Suite) -> None:
    """Refuses runs of other seeds than the suite's, or that were not trained, scored and attacked as its cell says.

    Args:
        entry: of the cell.
        cell: of the suite, or of a class of one's own.
        suite: whose seeds count.

    Raises:
        ValueError: with the first difference.
    """
    runs = entry.form["runs"]
    seeds = [run["seed"] for run in runs]
    if not seeds == entry.form["seeds"] == list(suite.seeds):
        raise ValueError(f"its runs have the seeds {seeds}, the suite {list(suite.seeds)}")
    for seed, records in zip(seeds, entry.records):
        _check_scores(seed, records, cell)
    every = [record for records in entry.records for record in records]
    signal, sampling = GENERATORS[cell.generator].signal, GENERATORS[cell.generator].sampling
    if cell.own is not None and cell.own.slot == "model":  # whose own settings these are, but the same ones of all runs
        signal = runs[0]["membership"]["signal"]
        sampling = next(record.sampling for record in every if record.is_model)
    _check_conditions(every)
    _check_samples(every, cell, sampling)
    for run in runs:
        _check_costs(run, cell, every[0].num_clients)
        if (used := run["membership"]["signal"]) != signal:
            raise ValueError(f"seed {run['seed']} was attacked by the {used}, not by the {signal}")
        _check_attacks(run["seed"], run["membership"]["clients"])


def _check_scores(seed: int, records: Sequence[ScoreRecord], cell: Cell) -> None:
    """Refuse records that are there twice, lacking, or of others than the last round's images of the suite's number."""
    data = cell.data_part
    places = [(record.generator, record.round, record.column) for record in records]
    if twice := next((place for place, times in Counter(places).items() if times > 1), None):
        raise ValueError(f"{_said(records[places.index(twice)])} is there {places.count(twice)} times")
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
            raise ValueError(
                f"{record.name} of seed {seed} is of seed {record.seed} and {record.num_generated} images, not"
                f" {data.num_images}"
            )
        if record.is_model and record.is_optimised:
            used = ", ".join(record.optimised_on)
            raise ValueError(f"a loss of its training used {used}, which the number is made of, too")


def _check_conditions(records: Sequence[ScoreRecord]) -> None:
    """Refuse scores of which some were measured otherwise than others, or with options that the suite does not give."""
    known: dict[tuple[str, ...], ScoreRecord] = {}
    for record in sorted(records, key=lambda record: record.is_model):  # held against the floor, which comes first
        for name, shared in CONDITIONS.items():
            other = known.setdefault((name, *(getattr(record, field) for field in shared)), record)
            mine, theirs = getattr(record, name), getattr(other, name)
            if mine != theirs:
                raise ValueError(
                    f"{_said(record)} has the {name} {printable(str(mine))}, {_said(other)} {printable(str(theirs))}"
                )
        if record.score_settings:
            options = printable(str(record.score_settings))
            raise ValueError(f"{_said(record)} was computed with {options}, and the suite gives scores no options")


def _check_samples(records: Sequence[ScoreRecord], cell: Cell, sampling: Mapping[str, Any]) -> None:
    """Refuse images that were sampled otherwise, or by one model where the cell has one of each client, or vice versa.

    Args:
        records: of all runs.
        cell: the suite's.
        sampling: settings of the model.
    """
    for record in records:
        expected = sampling if record.is_model else {}
        if record.sampling != expected:
            raise ValueError(f"{_said(record)} was sampled with {printable(str(record.sampling))}, not {expected}")
        mixed = LOCAL_NOTE in record.note.split("; ")
        if mixed != (record.is_model and cell.control == "local_only"):
            raise ValueError(f"{_said(record)} is {'' if mixed else 'not '}of a {LOCAL_NOTE}")


def _check_costs(run: RunForm, cell: Cell, num_clients: int) -> None:
    """Refuse a number of turns that the budget does not give, and messages where none are sent, or none where they are.

    Turns are counted with those that are left out of their round; pooled data have batches in their place.
    """
    budget, costs = cell.budget, run["costs"]
    a_round = budget.interval if cell.control == "centralised" else budget.cohort or num_clients
    if costs["turns"] != budget.rounds * a_round:
        raise ValueError(f"seed {run['seed']} took {costs['turns']} turns, the suite's {budget.rounds * a_round}")
    if (costs["message_bytes"] > 0) != (cell.control is None):
        raise ValueError(
            f"seed {run['seed']}'s clients sent {costs['message_bytes']} bytes a turn, and"
            f" {'a federation sends some' if cell.control is None else f'{cell.algorithm} sends none'}"
        )


def _check_attacks(seed: int, attacks: Sequence[AttackForm]) -> None:
    """Refuse attacks on a client twice, of more images than the suite's, or whose intervals lie beside the estimate."""
    times = Counter(one["name"] for one in attacks)
    for one in attacks:
        said = f"seed {seed}'s attack on client {printable(one['name'])}"
        if times[one["name"]] > 1:
            raise ValueError(f"{said} is there {times[one['name']]} times")
        if one["pairs"] > PAIRS:
            raise ValueError(f"{said} is of {one['pairs']} pairs, the suite's of {PAIRS} at most")
        for what in (one["auc"], one["advantage"]):
            if not what["low"] <= what["value"] <= what["high"]:
                raise ValueError(
                    f"{said} has {what['value']:.3g} in an interval of {what['low']:.3g} to {what['high']:.3g}"
                )


def _said(record: ScoreRecord) -> str:
    return f"the {record.generator}'s {record.name} in {record.embedding} of seed {record.seed}"
