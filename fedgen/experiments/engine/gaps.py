"""Experiments on clients that never train: options and runs, numbers for `results.json`, tables, verdicts, figures."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

from rich.table import Table
from scipy import optimize, stats

from fedgen.clients import FederatedDataModule
from fedgen.evaluation import Run, ScoreRecord
from fedgen.evaluation.marks import GAPS, gap_title
from fedgen.evaluation.records import FLOOR
from fedgen.evaluation.runs.recipe_data import load_federation
from fedgen.evaluation.tables.table import SPLITS
from fedgen.experiments.engine import trainings
from fedgen.experiments.engine.paired_seeds import (
    Claim,
    beside_zero,
    by_chance,
    change_of,
    compare_pairs,
    verdict,
    verdict_on,
)
from fedgen.experiments.engine.study import ArmsChoice, Study, expectation, make_table, panels
from fedgen.reports.figures.curves import GAP_COLOURS, SPLIT_COLOURS
from fedgen.scores.rankings import half_width

OUT_OF_SAMPLE, PARTICIPATION = GAPS
MAIN = "loss avg"  # the most sensitive column: draws are common to all splits
AVERAGES = (MAIN, "kid avg")  # what the model is trained on and what it makes, by scores without a bias of numbers
COLUMNS = (("loss", "avg"), ("kid", "avg"), ("kid", "all"), ("fid", "avg"), ("fid", "all"))

Curve = Mapping[str, Any]
"""One score and aggregate of one run: "rounds" [R], by split and gap "values" [R], of gaps "errors" [R], "clients"."""
Controls = Mapping[str, Mapping[str, Mapping[str, float | None]]]
"""The gaps of real images in a generator's place: control -> "score aggregate" -> gap -> value; errors, clients."""


def curves_of(records: Sequence[ScoreRecord]) -> dict[str, Curve]:
    found: dict[str, Curve] = {}
    for score, aggregate in COLUMNS:
        own = [r for r in records if r.is_model and (r.score, r.aggregate) == (score, aggregate)]
        by_place = {place: {r.round: r for r in own if r.split == place} for place in (*SPLITS, *GAPS)}
        rounds = sorted(round for round in by_place[SPLITS[0]] if round is not None)
        if rounds:
            values = {place: [by_place[place][round].value for round in rounds] for place in by_place}
            errors = {gap: [by_place[gap][round].error_over_clients for round in rounds] for gap in GAPS}
            clients = by_place[PARTICIPATION][rounds[-1]].num_clients
            curve = {"rounds": rounds, "values": values, "errors": errors, "clients": clients}
            found[f"{score} {aggregate}"] = curve
    return found


def controls_of(records: Sequence[ScoreRecord]) -> Controls:
    found: dict[str, dict[str, dict[str, float | None]]] = {}
    for record in records:
        if not record.is_model and record.split in GAPS:
            own = found.setdefault(record.generator, {}).setdefault(f"{record.score} {record.aggregate}", {})
            own[record.split] = record.value
            own[f"{record.split} error"] = record.error_over_clients
            own["clients"] = record.num_clients
    return found


def last(curve: Curve, place: str) -> float:
    return float(curve["values"][place][-1])


def smallest_gap(values: Sequence[float], errors: Sequence[float], pairs: int, power: float = 0.8) -> float:
    """The smallest gap that `gap_lines` finds with this power: whose interval then excludes 0."""
    # Student's t of a gap that is there is not central: of three repetitions 5.7 errors of the mean are needed, of many
    # 2.8. A repetition's error is that over its clients or, if that is more, what repetitions differ by
    count = len(values)
    error = statistics.mean(error**2 for error in errors or [0.0]) ** 0.5
    if count > 2:
        error, freedom = max(error, statistics.stdev(values)), count - 1
    else:
        freedom = count * (pairs - 1)
    least = stats.t.ppf(0.975, freedom)
    away = optimize.brentq(lambda shift: stats.nct.sf(least, freedom, shift) - power, 0, 10 * least)
    return float(away * error / count**0.5)


def gap_lines(curves: Sequence[Curve], gap: str) -> tuple[float, float, float]:
    """The mean over repetitions of the last gap, and its 95 % interval, of clients and repetitions together."""
    # each repetition splits the same clients anew, so errors over clients hold what repetitions differ by: the interval
    # is the wider of Student's of the errors, each of as many pairs of clients, and, from three on, over repetitions
    values = [last(curve, gap) for curve in curves]
    errors = [curve["errors"][gap][-1] for curve in curves]
    mean, count = statistics.mean(values), len(values)
    freedom = sum(curve["clients"] - 1 for curve in curves)
    halves = [half_width(values)] if count > 2 else []
    if freedom and None not in errors:
        halves.append(float(stats.t.ppf(0.975, freedom)) * sum(float(error) ** 2 for error in errors) ** 0.5 / count)
    half = max(halves, default=math.inf)
    return mean, mean - half, mean + half


@dataclass(frozen=True)
class GapScores:
    """Scores of runs on seen and unseen clients, and of real images in their generators' place."""

    curves: Mapping[str, Mapping[str, Mapping[str, Curve]]]  # arm -> seed -> "score aggregate" -> curve
    # arm -> seed -> controls of the same runs
    controls: Mapping[str, Mapping[str, Controls]] = field(default_factory=dict)

    def of(self, arm: str, column: str) -> list[Curve]:
        return [by_column[column] for by_column in self.curves[arm].values() if column in by_column]

    def values(self, column: str, place: str, *arms: str) -> list[list[float]]:
        return [[last(curve, place) for curve in self.of(arm, column)] for arm in arms]

    def beyond(self, arm: str, column: str, gap: str = PARTICIPATION) -> list[float]:
        """An arm's last gap less the floor's on the same clients, a number a seed; nothing without a floor."""
        # the floor's gap is what the draw of clients makes of one for a generator of everybody's images, 0 in
        # expectation: the difference is the same gap in expectation, without most of what the draw adds
        seeds, controls = self.curves[arm], self.controls.get(arm, {})
        floors = [controls.get(seed, {}).get(FLOOR, {}).get(column, {}).get(gap) for seed in seeds]
        known = [floor for floor in floors if floor is not None]
        gaps = self.values(column, gap, arm)[0] if len(known) == len(seeds) else []
        return [gap - floor for gap, floor in zip(gaps, known)]

    def table(self, column: str, title: str, control: str | None = None) -> Table:
        beyond = {arm: self.beyond(arm, column) for arm in self.curves}
        has_floor = any(beyond.values())
        caption = "gaps: mean over seeds with 95 % intervals over clients and seeds"
        if has_floor:
            caption += ";\nbeyond the floor: less the gap of real images of all clients, over seeds"
        headings = ["trained", *SPLITS, "out of sample", "participation", *(["beyond the floor"] if has_floor else [])]
        rows = []
        for arm in self.curves:
            if not (curves := self.of(arm, column)):
                continue
            cells = [f"{statistics.mean(last(curve, split) for curve in curves):.4g}" for split in SPLITS]
            for gap in GAPS:
                mean, low, high = gap_lines(curves, gap)
                cells.append(f"{mean:+.3g}\n{low:+.2g} to {high:+.2g}" if math.isfinite(low) else f"{mean:+.3g}")
            if has_floor:
                cells.append(change_of(beside_zero(beyond[arm])).replace(" (", "\n(", 1) if beyond[arm] else "")
            if control:
                usual, own = self.values(column, SPLITS[2], control, arm)
                cells.append("" if arm == control else change_of(compare_pairs(usual, own)))
            rows.append((arm, *cells))
        beside = [f"unpart beside {control}"] if control else []
        return make_table(f"{title}: {column}", headings + beside, rows, caption)

    def outcome(self, arm: str, gap: str, column: str, hidden: bool) -> str:
        """Say whether an arm's last gap is above 0 as expected, or there is one where none should be."""
        mean, low, high = gap_lines(self.of(arm, column), gap)
        text = f"{arm}: the {gap_title(gap)} in {column} is {mean:+.3g} ({low:+.3g} to {high:+.3g})"
        if low <= 0 <= high:  # it may be wide
            return f"cannot be told from 0{', where none was expected' if hidden else ''}: {text}"
        return expectation(f"{text}, {'none' if hidden else 'above 0'}", low > 0 and not hidden)

    def beyond_outcome(self, arm: str, column: str, hidden: bool) -> str:
        """Say whether an arm's participation gap is above the floor's as expected; otherwise as `outcome`."""
        text = f"{arm}: the {gap_title(PARTICIPATION)} in {column} beyond the floor's"
        if not (beyond := self.beyond(arm, column)):
            return f"cannot be told: {text}, as a run has no floor"
        said: tuple[str, Claim] = ("is not above 0", "not more") if hidden else ("is above 0", "more")
        return verdict(f"{text} {said[0]}", beside_zero(beyond), said[1])

    def differences(self, control: str, gaps: Sequence[str], arms: Sequence[str] | None = None) -> list[str]:
        """Say by arm whether a gap differs from the control's in each of `AVERAGES`, over paired seeds."""
        lines = [
            verdict_on(f"{arm}: {gap_title(gap)} in {column} beside {control}", self.values(column, gap, control, arm))
            for gap, column, arm in product(gaps, AVERAGES, arms or self.curves)
            if arm != control
        ]
        return [*lines, by_chance(len(lines))]


EMBEDDING = "efficientnet-lite0-32"
FORM = 2  # of the numbers in results.json; those of another form are refused, and made again from the runs at once


@dataclass(frozen=True)
class GapChoice(ArmsChoice):
    """Options common to experiments on generalisation; its fields are options of their commands.

    Args:
        recipe: with a `split` of its data: clients that never train.
        rounds: of every run; the recipe's by default.
        seeds: repetitions, each with another split, draws and first weights, the same for all arms.
        embedding: in whose features generated images are scored.
        weights: a local file of its weights.
        num_images: generated in an evaluation.
        checks: evaluations of a run, evenly spaced.
        runs: folder of the run folders.
        quick: a minute or two, to see that it runs: one seed, a hundredth of the rounds, few images, two checks.
    """

    QUICK: ClassVar[Mapping[str, Any]] = {"seeds": 1, "checks": 2, "num_images": 60}
    APART: ClassVar[tuple[str, ...]] = ("weights",)
    LEAST: ClassVar[Mapping[str, float]] = {**ArmsChoice.LEAST, "checks": 1, "num_images": 10}
    scores: ClassVar[tuple[str, ...]] = ("loss", "kid", "fid")

    recipe: Path = Path("recipes/ddpm_style_shift.yaml")
    rounds: int | None = None
    embedding: str = EMBEDDING
    weights: Path | None = None
    num_images: int = 500
    checks: int = 4
    runs: Path = Path("checkpoints/runs")

    def __post_init__(self) -> None:
        super().__post_init__()
        split = ((trainings.read_recipe(self.recipe).get("data") or {}).get("init_args") or {}).get("split")
        if not split:
            raise ValueError(f"{self.recipe} has no data.init_args.split, so that every client trains; give it one")

    @cached_property
    def total(self) -> int:
        rounds = self.rounds or trainings.rounds_of(self.recipe)
        return max(self.checks, rounds // 100) if self.quick else rounds

    def resolved(self) -> dict[str, Any]:
        return {"data": self.recipe.stem, "recipe": trainings.start_of(self.recipe), "rounds": self.total, "form": FORM}

    def federation(self, arm: trainings.Arm, seed: int | None = None) -> FederatedDataModule:
        own = {key: value for key, value in arm.settings.items() if key.startswith("data.")}
        seed = self.seed if seed is None else seed
        try:
            data = load_federation(self.recipe, [*trainings.arguments(own), f"--seed_everything={seed}"])
            _ = data.clients
        except ValueError as error:
            raise ValueError(f"{arm.name or dict(arm.settings)}: {error}") from error
        return data

    def training(self, arm: trainings.Arm, seed: int) -> trainings.Training:
        rounds = max(1, round(self.total * arm.rounds))
        scoring = trainings.evaluated(
            rounds,
            every_n_rounds=max(1, rounds // self.checks),
            num_images=self.num_images,
            embeddings=[{"name": self.embedding, **({"weights": str(self.weights)} if self.weights else {})}],
            scores=list(self.scores),
            controls=True,
            grid=0 if self.quick else 64,
        )
        # by its settings and not by the arm's name: experiments share runs
        own = trainings.fingerprint(arm.settings)[:8] if arm.settings else "plain"
        parts = [self.recipe.stem, trainings.start_of(self.recipe), own, f"rounds{rounds}", f"checks{self.checks}"]
        parts += [f"images{self.num_images}", self.embedding, f"seed{seed}"]
        name = "-".join(parts).replace("/", "_")
        return trainings.Training(
            self.recipe, self.runs / name, seed, trainings.arguments({**scoring, **arm.settings}), arm.control
        )

    def records(self, arm: trainings.Arm, seed: int) -> list[ScoreRecord]:
        return Run(self.training(arm, seed).place).records


SHOWN = (*AVERAGES, "kid all", "fid all")
DRAWN = 3  # of them


def named_by_clients(choice: GapChoice, arms: Sequence[trainings.Arm]) -> list[trainings.Arm]:
    """Arms named after the number of clients that train in them, and what they were called: "8 clients x 50"."""
    named = [replace(arm, name=f"{len(choice.federation(arm).clients)} clients {arm.name}".strip()) for arm in arms]
    known: dict[str, trainings.Arm] = {}
    for arm in named:
        if (other := known.setdefault(arm.name, arm)) is not arm:
            raise ValueError(f"{dict(other.settings)} and {dict(arm.settings)} are both {arm.name}; give one of them")
    return named


def run_arms(study: Study, choice: GapChoice, arms: Sequence[trainings.Arm]) -> GapScores:
    """Trains every arm with every seed, unless that is done, and gives their scores over rounds."""
    # by arm how many clients train and how many never do; what is wrong with one is said before any training
    federations = ((arm.name, choice.federation(arm)) for arm in arms)
    study.step("clients", lambda: {name: [len(data.clients), len(data.unparticipating)] for name, data in federations})
    if study.missing("curves"):
        trainings.train_all([choice.training(arm, seed) for seed in choice.seeds_of for arm in arms], choice.parallel)
        records = {arm.name: {str(seed): choice.records(arm, seed) for seed in choice.seeds_of} for arm in arms}

        def each(read: Callable[[Sequence[ScoreRecord]], Any]) -> dict[str, Any]:
            return {arm: {seed: read(one) for seed, one in own.items()} for arm, own in records.items()}

        study.step("controls", lambda: each(controls_of))
        study.step("curves", lambda: each(curves_of))
    return GapScores(study.numbers["curves"], study.numbers["controls"])


def report_arms(
    study: Study,
    found: GapScores,
    title: str,
    lines: Sequence[Table | str],
    control: str | None = None,
    columns: Sequence[str] = SHOWN,
) -> None:
    seeds = [by_column for by_seed in found.curves.values() for by_column in by_seed.values()]
    here = [column for column in columns if all(column in by_column for by_column in seeds)]
    tables: list[Table | str] = [found.table(column, title, control) for column in here]
    figure = draw_arms(found, here[:DRAWN], study.figure, title)
    study.report([*tables, *lines], figure)


BEYOND = "#2a7f3f"
FIRST = 1 / 3  # of the rounds, left out where scores are drawn: the start is far above


def draw_arms(found: GapScores, columns: Sequence[str], path: Path, title: str) -> Path:
    """A row a column: the splits over rounds in a panel an arm, and the last gaps of all, also beyond the floor's."""
    arms, count = list(found.curves), max(len(seeds) for seeds in found.curves.values())
    size, widths = (2.6 * len(arms) + 4.5, 3.1 * len(columns) + 1.0), [1.0] * len(arms) + [1.6]
    with panels(path, size, len(columns), len(widths), width_ratios=widths) as (figure, grid):
        for row, column in zip(grid, columns):
            for axes, arm in zip(row, arms):
                curves = found.of(arm, column)
                rounds = [round for round in curves[0]["rounds"] if round >= FIRST * curves[0]["rounds"][-1]]
                for split, colour in SPLIT_COLOURS.items():
                    values = zip(*(curve["values"][split][-len(rounds) :] for curve in curves))
                    look = {"color": colour, "marker": "o", "markersize": 3}
                    axes.plot(rounds, list(map(statistics.mean, values)), label=split, **look)
                axes.tick_params(labelsize=7)
                axes.set_title(arm, fontsize=9)
            for axes in row[1:-1]:
                axes.sharey(row[0])
            row[0].set_ylabel(column)
            _draw_gaps(row[-1], found, column)
        grid[0][0].legend(fontsize=7)
        for axes in grid[-1][:-1]:
            axes.set_xlabel("round", fontsize=8)
        figure.suptitle(f"{title} (mean of {count} seed(s); bars: 95 % over clients and seeds)", fontsize=11)
    return path


def _draw_gaps(axes: Any, found: GapScores, column: str) -> None:
    arms = list(found.curves)
    bars = [  # shift, colour, label, means and upper ends
        (shift, colour, gap_title(gap), [gap_lines(found.of(arm, column), gap)[::2] for arm in arms])
        for shift, (gap, colour) in zip((-0.2, 0.0), GAP_COLOURS.items())
    ]
    rows = [beside_zero(beyond) for arm in arms if (beyond := found.beyond(arm, column))]
    if len(rows) == len(arms):
        ends = [(row["difference"], row.get("interval", [math.inf])[-1]) for row in rows]
        bars.append((0.2, BEYOND, "the latter beyond the floor", ends))
    axes.axvline(0, color="0.4", linewidth=0.8)
    for shift, colour, label, ends in bars:
        places, means = [place + shift for place in range(len(arms))], [mean for mean, _ in ends]
        halves = [high - mean if math.isfinite(high) else math.nan for mean, high in ends]
        axes.errorbar(means, places, xerr=halves, fmt="o", color=colour, markersize=4, label=label)
    axes.set_yticks(range(len(arms)), arms, fontsize=7)
    axes.invert_yaxis()
    axes.set_xlabel(f"last gap, {column}", fontsize=8)
    axes.tick_params(axis="x", labelsize=7)
    axes.grid(visible=False, axis="y")
    axes.legend(fontsize=7, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, frameon=False)
