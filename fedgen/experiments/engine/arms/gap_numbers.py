"""Numbers of runs on seen and unseen clients, for `results.json`, tables and verdicts."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from scipy import optimize, stats

from fedgen.evaluation import ScoreRecord
from fedgen.evaluation.gaps import GAPS
from fedgen.evaluation.records import FLOOR
from fedgen.evaluation.tables.gap_table import SPLITS
from fedgen.experiments.engine.paired_seeds import beside_zero, change_of, compare_pairs
from fedgen.experiments.engine.results import make_table

OUT_OF_SAMPLE, PARTICIPATION = GAPS
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


def beyond_floor(
    seeds: Mapping[str, Mapping[str, Curve]], controls: Mapping[str, Controls], column: str, gap: str
) -> list[float]:
    """An arm's last gap less the floor's on the same clients and images, a number a repetition.

    The floor's gap is what the draw of clients makes of one for a generator of everybody's images, 0 in expectation: so
    the difference is the same gap in expectation, without most of what the draw adds. KID's is linear in the generator,
    so that its differences are the same in avg and in all.

    Args:
        seeds: the arm's curves, by seed and column.
        controls: of its runs, by seed.
        column: "score aggregate".
        gap: which.

    Returns:
        Nothing where a run has no floor for this column.
    """
    floors = [controls.get(seed, {}).get(FLOOR, {}).get(column, {}).get(gap) for seed in seeds]
    known = [floor for floor in floors if floor is not None]
    gaps = [last(by[column], gap) for by in seeds.values()] if len(known) == len(seeds) else []
    return [gap - floor for gap, floor in zip(gaps, known)]


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
        half = max(half, float(stats.t.ppf(0.975, count - 1)) * statistics.stdev(values) / count**0.5)
    return mean, mean - half, mean + half


def arms_table(
    found: Mapping[str, Mapping[str, Mapping[str, Curve]]],
    controls: Mapping[str, Mapping[str, Controls]],
    column: str,
    title: str,
    control: str | None = None,
) -> Table:
    """The arms' last scores of one column: three splits, two gaps with intervals, and the change from a control.

    Where the floor has a score, also the participation gap beyond the floor's.

    Args:
        found: arm -> seed -> column -> curve.
        controls: of the same runs, arm -> seed.
        column: "score aggregate".
        title: of the table.
        control: the arm that others are compared with, on unseen clients.
    """
    beyond = {arm: beyond_floor(seeds, controls.get(arm, {}), column, PARTICIPATION) for arm, seeds in found.items()}
    has_floor = any(beyond.values())
    caption = "gaps: mean over seeds with 95 % intervals over clients and seeds"
    if has_floor:
        caption += ";\nbeyond the floor: less the gap of real images of all clients, over seeds"
    headings = ["trained", *SPLITS, "out of sample", "participation", *(["beyond the floor"] if has_floor else [])]
    rows = []
    for arm, seeds in found.items():
        curves = [by_column[column] for by_column in seeds.values() if column in by_column]
        if not curves:
            continue
        cells = [f"{statistics.mean(last(curve, split) for curve in curves):.4g}" for split in SPLITS]
        for gap in GAPS:
            mean, low, high = gap_lines(curves, gap)
            cells.append(f"{mean:+.3g}\n{low:+.2g} to {high:+.2g}" if math.isfinite(low) else f"{mean:+.3g}")
        if has_floor:
            cells.append(change_of(beside_zero(beyond[arm])).replace(" (", "\n(", 1) if beyond[arm] else "")
        if control:
            first = [last(by_column[column], SPLITS[2]) for by_column in found[control].values()]
            row = compare_pairs(first, [last(curve, SPLITS[2]) for curve in curves])
            cells.append("" if arm == control else change_of(row))
        rows.append((arm, *cells))
    return make_table(f"{title}: {column}", headings + ([f"unpart beside {control}"] if control else []), rows, caption)
