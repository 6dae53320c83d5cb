"""An experiment on clients that never train: trains its arms, reads what was found, prints tables, draws the figure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rich.table import Table

from fedgen.evaluation import ScoreRecord
from fedgen.experiments.engine.arms.gap_figure import draw_arms
from fedgen.experiments.engine.arms.gap_numbers import AVERAGES, GapScores, controls_of, curves_of
from fedgen.experiments.engine.arms.gap_runs import GapChoice
from fedgen.experiments.engine.study import Study
from fedgen.experiments.engine.trainings import Arm, train_all

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


def run_arms(study: Study, choice: GapChoice, arms: Sequence[Arm]) -> GapScores:
    """Trains every arm with every seed, unless that is done, and gives their scores over rounds."""
    seeds = {str(seed): seed for seed in choice.seeds_of}
    study.step("clients", lambda: check_clients(choice, arms))
    if study.missing("curves"):
        train_all([choice.training(arm, seed) for seed in seeds.values() for arm in arms], choice.parallel)
        records = {arm.name: {name: choice.records(arm, seed) for name, seed in seeds.items()} for arm in arms}
        study.step("controls", lambda: _each(records, controls_of))
        study.step("curves", lambda: _each(records, curves_of))
    return GapScores(study.numbers["curves"], study.numbers["controls"])


def _each(
    records: Mapping[str, Mapping[str, Sequence[ScoreRecord]]], read: Callable[[Sequence[ScoreRecord]], Any]
) -> dict[str, dict[str, Any]]:
    return {arm: {seed: read(found) for seed, found in by_seed.items()} for arm, by_seed in records.items()}


def report_arms(
    study: Study,
    found: GapScores,
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
    seeds = [by_column for by_seed in found.curves.values() for by_column in by_seed.values()]
    here = [column for column in columns if all(column in by_column for by_column in seeds)]
    tables: list[Table | str] = [found.table(column, title, control) for column in here]
    figure = draw_arms(found, here[:DRAWN], study.path(f"{study.name.replace('-', '_')}.png"), title)
    study.report([*tables, *lines], figure)
