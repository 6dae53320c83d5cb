"""An experiment on clients that never train: trains its arms, reads what was found, prints tables, draws the figure."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.table import Table

from fedgen.evaluation import ScoreRecord
from fedgen.evaluation.marks import gap_title
from fedgen.experiments.engine.arms.gap_numbers import AVERAGES, Curve, GapScores, controls_of, curves_of, gap_lines
from fedgen.experiments.engine.arms.gap_runs import GapChoice
from fedgen.experiments.engine.paired_seeds import beside_zero
from fedgen.experiments.engine.results import save_figure
from fedgen.experiments.engine.study import Study
from fedgen.experiments.engine.trainings import Arm, train_all
from fedgen.reports.figures.curves import GAP_COLOURS, SPLIT_COLOURS

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


BEYOND = "#2a7f3f"
FIRST = 1 / 3  # of the rounds, left out where scores are drawn: the start is far above


def draw_arms(found: GapScores, columns: Sequence[str], path: Path, title: str) -> Path:
    """A row a column: the three splits over rounds in a panel an arm, and the last gaps of all arms.

    Where the floor has a score, also the participation gaps beyond the floor's.

    Args:
        found: of some runs.
        columns: "score aggregate".
        path: of the picture.
        title: of the figure.
    """
    from matplotlib.figure import Figure

    arms = list(found.curves)
    figure = Figure(figsize=(2.6 * len(arms) + 4.5, 3.1 * len(columns) + 1.0), layout="constrained")
    widths = [1.0] * len(arms) + [1.6]
    panels = figure.subplots(len(columns), len(arms) + 1, squeeze=False, width_ratios=widths)
    for row, column in zip(panels, columns):
        for axes, arm in zip(row, arms):
            _draw_curves(axes, found.of(arm, column))
            axes.set_title(arm, fontsize=9)
        for axes in row[1:-1]:
            axes.sharey(row[0])
        row[0].set_ylabel(column)
        _draw_gaps(row[-1], {arm: found.of(arm, column) for arm in arms}, column)
        beyond = [found.beyond(arm, column) for arm in arms]
        if all(beyond):
            _draw_beyond(row[-1], beyond)
    panels[0][0].legend(fontsize=7)
    for axes in panels[:, -1]:
        axes.legend(fontsize=7, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, frameon=False)
    for axes in panels[-1][:-1]:
        axes.set_xlabel("round", fontsize=8)
    count = max(len(seeds) for seeds in found.curves.values())
    figure.suptitle(f"{title} (mean of {count} seed(s); bars: 95 % over clients and seeds)", fontsize=11)
    return save_figure(figure, path)


def _draw_curves(axes: Any, curves: Sequence[Curve]) -> None:
    for split, colour in SPLIT_COLOURS.items():
        rounds = [round for round in curves[0]["rounds"] if round >= FIRST * curves[0]["rounds"][-1]]
        values = [curve["values"][split][-len(rounds) :] for curve in curves]
        axes.plot(rounds, [statistics.mean(each) for each in zip(*values)], color=colour, marker="o", markersize=3)
        axes.lines[-1].set_label(split)
    axes.grid(alpha=0.25)
    axes.tick_params(labelsize=7)


def _draw_gaps(axes: Any, arms: Mapping[str, Sequence[Curve]], column: str) -> None:
    axes.axvline(0, color="0.4", linewidth=0.8)
    for shift, (gap, colour) in zip((-0.2, 0.0), GAP_COLOURS.items()):
        lines = [gap_lines(curves, gap) for curves in arms.values()]
        _draw_bars(axes, shift, [(mean, high) for mean, _, high in lines], colour, gap_title(gap))
    axes.set_yticks(range(len(arms)), list(arms), fontsize=7)
    axes.invert_yaxis()
    axes.set_xlabel(f"last gap, {column}", fontsize=8)
    axes.tick_params(axis="x", labelsize=7)
    axes.grid(axis="x", alpha=0.25)


def _draw_beyond(axes: Any, beyond: Sequence[Sequence[float]]) -> None:
    rows = [beside_zero(values) for values in beyond]
    ends = [(row["difference"], row["interval"][1] if "interval" in row else math.inf) for row in rows]
    _draw_bars(axes, 0.2, ends, BEYOND, "the latter beyond the floor")


def _draw_bars(axes: Any, shift: float, ends: Sequence[tuple[float, float]], colour: str, label: str) -> None:
    """Means with the upper ends of their intervals, an arm a line; no bar where that is not known."""
    places = [place + shift for place in range(len(ends))]
    halves = [high - mean if math.isfinite(high) else math.nan for mean, high in ends]
    axes.errorbar([mean for mean, _ in ends], places, xerr=halves, fmt="o", color=colour, markersize=4, label=label)
