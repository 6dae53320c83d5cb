"""An experiment on clients that never train: trains its arms, reads what was found, prints tables, draws the figure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from rich.table import Table

from fedgen.evaluation import ScoreRecord
from fedgen.evaluation.gaps import gap_title
from fedgen.experiments.engine.aggregate_rankings import expectation
from fedgen.experiments.engine.arms.gap_figure import draw_arms
from fedgen.experiments.engine.arms.gap_numbers import (
    PARTICIPATION,
    Controls,
    Curve,
    arms_table,
    beyond_floor,
    controls_of,
    curves_of,
    gap_lines,
    last,
)
from fedgen.experiments.engine.arms.gap_runs import GapChoice
from fedgen.experiments.engine.paired_seeds import beside_zero, by_chance, verdict, verdict_on
from fedgen.experiments.engine.study import Study
from fedgen.experiments.engine.trainings import Arm, train_all

Found = Mapping[str, Mapping[str, Mapping[str, Curve]]]
"""arm -> seed -> "score aggregate" -> curve"""
MAIN = "loss avg"  # the most sensitive column: draws are common to all splits
AVERAGES = (MAIN, "kid avg")  # what the model is trained on and what it makes, by scores without a bias of numbers
SHOWN = (*AVERAGES, "kid all", "fid all")
DRAWN = 3  # of them


def named_by_clients(choice: GapChoice, arms: Sequence[Arm]) -> list[Arm]:
    """Arms named after the number of clients that train in them, and what they were called: "8 clients x 50".

    Raises:
        ValueError: if two have the same name then, with their settings.
    """
    named = [replace(arm, name=f"{len(choice.federation(arm).clients)} clients {arm.name}".strip()) for arm in arms]
    known: dict[str, Arm] = {}
    for arm in named:
        if (other := known.setdefault(arm.name, arm)) is not arm:
            raise ValueError(f"{dict(other.settings)} and {dict(arm.settings)} are both {arm.name}; give one of them")
    return named


def check_clients(choice: GapChoice, arms: Sequence[Arm]) -> dict[str, list[int]]:
    """Check by arm how many clients train and how many never do; what is wrong with one is said before any training."""
    found = {arm.name: choice.federation(arm) for arm in arms}
    return {name: [len(data.clients), len(data.unparticipating)] for name, data in found.items()}


def run_arms(study: Study, choice: GapChoice, arms: Sequence[Arm]) -> Found:
    """Trains every arm with every seed, unless that is done, and gives their scores over rounds."""
    seeds = {str(seed): seed for seed in choice.seeds_of}
    study.step("clients", lambda: check_clients(choice, arms))
    if study.missing("curves"):
        train_all([choice.training(arm, seed) for seed in seeds.values() for arm in arms], choice.parallel)
        records = {arm.name: {name: choice.records(arm, seed) for name, seed in seeds.items()} for arm in arms}
        study.step("controls", lambda: _each(records, controls_of))
        study.step("curves", lambda: _each(records, curves_of))
    found: Found = study.numbers["curves"]
    return found


def _each(
    records: Mapping[str, Mapping[str, Sequence[ScoreRecord]]], read: Callable[[Sequence[ScoreRecord]], Any]
) -> dict[str, dict[str, Any]]:
    return {arm: {seed: read(found) for seed, found in by_seed.items()} for arm, by_seed in records.items()}


def report_arms(
    study: Study,
    found: Found,
    title: str,
    lines: Sequence[Table | str],
    control: str | None = None,
    columns: Sequence[str] = SHOWN,
) -> None:
    """Prints a table a column and the lines, and draws the figure.

    Args:
        study: the experiment's.
        found: of `run_arms`.
        title: of tables and figure.
        lines: what was expected, and whether it is so, with tables of their own before it.
        control: the arm that others are compared with, if all are scored on the same clients.
        columns: "score aggregate", of which those are shown that all runs have.
    """
    here = [column for column in columns if all(column in by for seeds in found.values() for by in seeds.values())]
    controls = study.numbers["controls"]
    tables: list[Table | str] = [arms_table(found, controls, column, title, control) for column in here]
    figure = draw_arms(found, controls, here[:DRAWN], study.path(f"{study.name.replace('-', '_')}.png"), title)
    study.report([*tables, *lines], figure)


def gap_outcome(arm: str, seeds: Mapping[str, Mapping[str, Curve]], gap: str, column: str, hidden: bool) -> str:
    """An arm's last gap with its interval, and whether it is above 0 as expected, or there is one where none should be.

    An interval around 0 says neither: it may be wide.

    Args:
        arm: its name.
        seeds: its curves, by seed and column.
        gap: which.
        column: "score aggregate".
        hidden: whether the partition is expected to hide the gap.
    """
    mean, low, high = gap_lines([by_column[column] for by_column in seeds.values()], gap)
    text = f"{arm}: the {gap_title(gap)} in {column} is {mean:+.3g} ({low:+.3g} to {high:+.3g})"
    if low <= 0 <= high:
        return f"cannot be told from 0{', where none was expected' if hidden else ''}: {text}"
    return expectation(f"{text}, {'none' if hidden else 'above 0'}", low > 0 and not hidden)


def beyond_outcome(
    arm: str, seeds: Mapping[str, Mapping[str, Curve]], controls: Mapping[str, Controls], column: str, hidden: bool
) -> str:
    """An arm's participation gap beyond the floor's, and whether it is above 0 as expected.

    Args:
        arm: its name.
        seeds: its curves, by seed and column.
        controls: of its runs, by seed.
        column: "score aggregate", which controls have.
        hidden: whether the partition is expected to hide the gap.
    """
    beyond = beyond_floor(seeds, controls, column, PARTICIPATION)
    text = f"{arm}: the {gap_title(PARTICIPATION)} in {column} beyond the floor's"
    if not beyond:
        return f"cannot be told: {text}, as a run has no floor"
    row = beside_zero(beyond)
    return verdict(f"{text} is not above 0", row, "not more") if hidden else verdict(f"{text} is above 0", row, "more")


def gap_verdicts(found: Found, control: str, gaps: Sequence[str]) -> list[str]:
    """Return by arm whether a gap differs from the control's in each of `AVERAGES`, over paired seeds.

    Args:
        found: of `run_arms`.
        control: the arm that others are compared with.
        gaps: names of gaps.
    """
    lines = [
        verdict_on(f"{arm}: {gap_title(gap)} in {column} beside {control}", values_of(found, column, gap, control, arm))
        for gap, column, arm in product(gaps, AVERAGES, found)
        if arm != control
    ]
    return [*lines, by_chance(len(lines))]


def values_of(found: Found, column: str, place: str, *arms: str) -> list[list[float]]:
    """Return each arm's last values on a split, or of a gap, a number a seed."""
    return [[last(by_column[column], place) for by_column in found[arm].values()] for arm in arms]
