"""Numbers of runs on seen and unseen clients, for `results.json`, tables and verdicts."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from rich.table import Table
from scipy import optimize, stats

from fedgen.evaluation import ScoreRecord
from fedgen.evaluation.marks import GAPS, gap_title
from fedgen.evaluation.records import FLOOR
from fedgen.evaluation.tables.gap_table import SPLITS
from fedgen.experiments.engine.aggregate_rankings import expectation
from fedgen.experiments.engine.paired_seeds import (
    beside_zero,
    by_chance,
    change_of,
    compare_pairs,
    half_width,
    verdict,
    verdict_on,
)
from fedgen.experiments.engine.results import make_table

OUT_OF_SAMPLE, PARTICIPATION = GAPS
MAIN = "loss avg"  # the most sensitive column: draws are common to all splits
AVERAGES = (MAIN, "kid avg")  # what the model is trained on and what it makes, by scores without a bias of numbers
COLUMNS = (("loss", "avg"), ("kid", "avg"), ("kid", "all"), ("fid", "avg"), ("fid", "all"))

Curve = Mapping[str, Any]
"""One score and aggregate of one run: "rounds" [R], by split and gap "values" [R], of gaps "errors" [R], "clients"."""
Controls = Mapping[str, Mapping[str, Mapping[str, float | None]]]
"""The gaps of real images in a generator's place: control -> "score aggregate" -> gap -> value; errors, clients."""


def curves_of(records: Sequence[ScoreRecord]) -> dict[str, Curve]:
    """A run's scores over rounds, by "score aggregate"."""
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
    """The gaps that a run's controls have."""
    found: dict[str, dict[str, dict[str, float | None]]] = {}
    for record in records:
        if not record.is_model and record.split in GAPS:
            own = found.setdefault(record.generator, {}).setdefault(f"{record.score} {record.aggregate}", {})
            own[record.split] = record.value
            own[f"{record.split} error"] = record.error_over_clients
            own["clients"] = record.num_clients
    return found


def last(curve: Curve, place: str) -> float:
    """A run's last value on a split, or of a gap."""
    return float(curve["values"][place][-1])


def smallest_gap(values: Sequence[float], errors: Sequence[float], pairs: int, power: float = 0.8) -> float:
    """The smallest gap that `gap_lines` finds with this power: whose interval then excludes 0.

    Student's t of a gap that is there is not central: of three repetitions 5.7 errors of the mean are needed, of many
    2.8. A repetition's error is that over its clients or, if that is more, what repetitions differ by.

    Args:
        values: every repetition's gap where none is.
        errors: of these over clients; none, of three repetitions and more, leaves what repetitions differ by.
        pairs: of clients, in a repetition.
        power: the probability of finding it.
    """
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
    """The mean over repetitions of the last gap, and its 95 % interval, of clients and repetitions together.

    Each repetition deals the same clients anew into those that train and those that do not, so their errors over
    clients hold what repetitions differ by; the interval is the wider of Student's of the errors, each of as many pairs
    of clients, and, from three repetitions on, of Student's over repetitions. Where neither is known it has no ends.
    """
    values = [last(curve, gap) for curve in curves]
    errors = [curve["errors"][gap][-1] for curve in curves]
    mean, count = statistics.mean(values), len(values)
    freedom = sum(curve["clients"] - 1 for curve in curves)
    known = bool(freedom) and None not in errors
    half = 0.0 if count > 2 else math.inf
    if known:
        half = float(stats.t.ppf(0.975, freedom)) * sum(float(error) ** 2 for error in errors) ** 0.5 / count
    if count > 2:
        half = max(half, half_width(values))
    return mean, mean - half, mean + half


@dataclass(frozen=True)
class GapScores:
    """Scores of runs on seen and unseen clients, and of real images in their generators' place.

    Args:
        curves: arm -> seed -> "score aggregate" -> curve.
        controls: arm -> seed -> controls of the same runs.
    """

    curves: Mapping[str, Mapping[str, Mapping[str, Curve]]]
    controls: Mapping[str, Mapping[str, Controls]] = field(default_factory=dict)

    def of(self, arm: str, column: str) -> list[Curve]:
        """Return an arm's curves of one column, one a seed that has it."""
        return [by_column[column] for by_column in self.curves[arm].values() if column in by_column]

    def values(self, column: str, place: str, *arms: str) -> list[list[float]]:
        """Return each arm's last values on a split, or of a gap, a number a seed."""
        return [[last(curve, place) for curve in self.of(arm, column)] for arm in arms]

    def beyond(self, arm: str, column: str, gap: str = PARTICIPATION) -> list[float]:
        """Return an arm's last gap less the floor's on the same clients and images, a number a seed.

        The floor's gap is what the draw of clients makes of one for a generator of everybody's images, 0 in
        expectation: so the difference is the same gap in expectation, without most of what the draw adds. KID's is
        linear in the generator, so that its differences are the same in avg and in all. Nothing where a run has no
        floor for this column.
        """
        seeds, controls = self.curves[arm], self.controls.get(arm, {})
        floors = [controls.get(seed, {}).get(FLOOR, {}).get(column, {}).get(gap) for seed in seeds]
        known = [floor for floor in floors if floor is not None]
        gaps = self.values(column, gap, arm)[0] if len(known) == len(seeds) else []
        return [gap - floor for gap, floor in zip(gaps, known)]

    def table(self, column: str, title: str, control: str | None = None) -> Table:
        """Return the arms' last scores of one column: three splits, two gaps with intervals, the change from a control.

        Where the floor has a score, also the participation gap beyond the floor's.

        Args:
            column: "score aggregate".
            title: of the table.
            control: the arm that others are compared with, on unseen clients.
        """
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
        """Say whether an arm's last gap is above 0 as expected, or there is one where none should be.

        An interval around 0 says neither: it may be wide.

        Args:
            arm: its name.
            gap: which.
            column: "score aggregate".
            hidden: whether the partition is expected to hide the gap.
        """
        mean, low, high = gap_lines(self.of(arm, column), gap)
        text = f"{arm}: the {gap_title(gap)} in {column} is {mean:+.3g} ({low:+.3g} to {high:+.3g})"
        if low <= 0 <= high:
            return f"cannot be told from 0{', where none was expected' if hidden else ''}: {text}"
        return expectation(f"{text}, {'none' if hidden else 'above 0'}", low > 0 and not hidden)

    def beyond_outcome(self, arm: str, column: str, hidden: bool) -> str:
        """Say whether an arm's participation gap is above the floor's as expected; otherwise as `outcome`."""
        text = f"{arm}: the {gap_title(PARTICIPATION)} in {column} beyond the floor's"
        if not (beyond := self.beyond(arm, column)):
            return f"cannot be told: {text}, as a run has no floor"
        row = beside_zero(beyond)
        return (
            verdict(f"{text} is not above 0", row, "not more") if hidden else verdict(f"{text} is above 0", row, "more")
        )

    def differences(self, control: str, gaps: Sequence[str], arms: Sequence[str] | None = None) -> list[str]:
        """Say by arm whether a gap differs from the control's in each of `AVERAGES`, over paired seeds.

        Args:
            control: the arm that others are compared with.
            gaps: names of gaps.
            arms: in which order; as they are if None.
        """
        lines = [
            verdict_on(f"{arm}: {gap_title(gap)} in {column} beside {control}", self.values(column, gap, control, arm))
            for gap, column, arm in product(gaps, AVERAGES, arms or self.curves)
            if arm != control
        ]
        return [*lines, by_chance(len(lines))]
