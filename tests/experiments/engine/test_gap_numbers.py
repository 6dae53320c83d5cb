"""Runs on seen and unseen clients, as numbers."""

import math

import numpy as np
import pytest

from fedgen.experiments.engine.gaps import (
    PARTICIPATION,
    GapScores,
    controls_of,
    curves_of,
    gap_lines,
    smallest_gap,
)
from fedgen.experiments.participation.participation_gap import detectable_table, outcomes
from tests.evaluation.samples import record

SPLITS = ("part_train", "part_val", "unpart")


def records(offset=0.0):
    """Two rounds of KID-avg: part_train 1, part_val 2, unpart 4, all less by the round; and a floor."""
    found = []
    for round in (4, 9):
        values = {split: value - round / 10 + offset for split, value in zip(SPLITS, (1.0, 2.0, 4.0))}
        found += [record("kid", "avg", value, round, split=split) for split, value in values.items()]
        for gap, value in (("gap/out_of_sample", 1.0), ("gap/participation", 2.0 + offset)):
            found.append(record("kid", "avg", value, round, split=gap, error_over_clients=0.5))
    floor = record("kid", "avg", 0.1, None, split="gap/participation", generator="floor", error_over_clients=0.2)
    return [*found, floor]


def test_curves_hold_splits_and_gaps_by_round():
    (name,) = found = curves_of(records())
    curve = found[name]
    assert name == "kid avg"
    assert curve["rounds"] == [4, 9]
    assert curve["values"]["unpart"] == pytest.approx([3.6, 3.1])
    assert curve["values"][PARTICIPATION] == [2.0, 2.0]
    assert curve["errors"][PARTICIPATION] == [0.5, 0.5]


def test_controls_are_kept_apart():
    assert controls_of(records()) == {
        "floor": {"kid avg": {PARTICIPATION: 0.1, f"{PARTICIPATION} error": 0.2, "clients": 2}}
    }


def test_the_smallest_gap_of_many_clients_is_2_8_errors_of_the_mean():
    """The normal quantiles 1.96 + 0.84, which Student's approach."""
    assert smallest_gap([0.0], [1.0], 100_001) == pytest.approx(2.8016, abs=1e-3)
    assert smallest_gap([0.0, 0.0], [3.0, 4.0], 50_001) == pytest.approx(2.8016 * (12.5 / 2) ** 0.5, rel=1e-3)


def test_three_repetitions_find_less_and_their_spread_counts():
    """By simulation of Student's test of three: a shift of 5.65 errors of the mean is found in 80 % of draws."""
    least = smallest_gap([0.0, 0.0, 0.0], [1.0, 1.0, 1.0], 8)
    draws = np.random.default_rng(0).normal(least, 1.0, (200_000, 3))
    away = np.abs(draws.mean(1)) / (draws.std(1, ddof=1) / 3**0.5)
    assert (away > 4.302653).mean() == pytest.approx(0.8, abs=0.005)
    assert smallest_gap([-2.0, 0.0, 2.0], [1.0, 1.0, 1.0], 8) == pytest.approx(2 * least)
    assert smallest_gap([-1.0, 0.0, 1.0], (), 8) == pytest.approx(least)


def test_a_gap_over_seeds_has_the_wider_of_two_intervals():
    alike = [curves_of(records())["kid avg"] for _ in range(4)]
    mean, low, high = gap_lines(alike, PARTICIPATION)
    half = 2.776445 * 0.25  # Student's quantile: four repetitions of two pairs leave four degrees
    assert (mean, low, high) == pytest.approx((2.0, 2 - half, 2 + half), rel=1e-5)
    apart = [curves_of(records(offset))["kid avg"] for offset in (-2.0, 0.0, 2.0)]
    mean, low, high = gap_lines(apart, PARTICIPATION)
    assert (mean, high - mean) == pytest.approx((2.0, 4.3027 * 2 / 3**0.5), rel=1e-3)  # Student, two degrees


def one_pair(gap):
    """A run whose error over clients is not known, as it has one pair of them."""
    curve = curves_of(records(gap - 2.0))["kid avg"]
    return {"kid avg": {**curve, "errors": {PARTICIPATION: [None, None]}, "clients": 1}}


def test_an_error_that_is_not_known_is_not_taken_for_none():
    found = {"0": one_pair(0.01)}
    assert gap_lines([found["0"]["kid avg"]], PARTICIPATION)[1:] == (-math.inf, math.inf)
    said = GapScores({"natural": found}).outcome("natural", PARTICIPATION, "kid avg", False)
    assert said.startswith("cannot be told from 0")
    three = [one_pair(gap)["kid avg"] for gap in (1.0, 2.0, 3.0)]
    mean, low, high = gap_lines(three, PARTICIPATION)
    half = 4.3027 / 3**0.5
    assert (mean, low, high) == pytest.approx((2.0, 2 - half, 2 + half), rel=1e-3)


def floors(*gaps):
    """Of runs by seed."""
    return {str(s): {"floor": {"kid avg": {PARTICIPATION: gap}}} for s, gap in enumerate(gaps)}


def arm(*gaps):
    return {str(s): curves_of(records(gap - 2.0)) for s, gap in enumerate(gaps)}


def test_what_the_draw_of_clients_makes_of_a_gap_is_taken_off():
    """Gaps of 1.1, 3.0 and 1.9 where the floor has 0.1, 2.0 and 0.9 are all of 1; two of them alone tell no gap."""
    seeds, controls = arm(1.1, 3.0, 1.9), floors(0.1, 2.0, 0.9)
    found = GapScores({"natural": seeds}, {"natural": controls})
    assert found.beyond("natural", "kid avg") == pytest.approx([1.0, 1.0, 1.0])
    assert found.outcome("natural", PARTICIPATION, "kid avg", False).startswith("cannot be told from 0")
    said = found.beyond_outcome("natural", "kid avg", False)
    assert said.startswith("as expected: natural: the participation gap in kid avg beyond the floor's is above 0: +1")
    assert found.beyond_outcome("natural", "kid avg", True).startswith("not seen: natural")
    for few in (GapScores({"natural": seeds}, {"natural": floors(0.1, 2.0)}), GapScores({"natural": seeds})):
        assert few.beyond("natural", "kid avg") == []
        assert few.beyond_outcome("natural", "kid avg", False).endswith("as a run has no floor")


def test_partitions_are_compared_beyond_the_floor_and_with_one_place():
    found = {
        "natural": arm(1.1, 3.0, 2.0),
        "semantic": arm(0.2, 2.0, 1.1),
        "Dirichlet": arm(0.1, 0.0, -0.1),
        "natural, centralised": arm(2.1, 4.0, 3.0),
    }
    for seeds in found.values():
        for by_column in seeds.values():
            by_column["loss avg"] = by_column["kid avg"]
    controls = {name: floors(0.1, 2.0, 1.0) for name in found} | {"Dirichlet": floors(0.1, 0.0, 0.0)}
    said = outcomes(GapScores(found, controls))
    assert any(
        line.startswith("as expected: natural: the participation gap in kid avg beyond the floor is above that of Dir")
        for line in said
    )
    assert any(
        line.startswith(
            "cannot be told from these 3 seeds: semantic: the participation gap in kid avg beyond the floor i"
        )
        for line in said
    )
    assert "natural, centralised: participation gap in kid avg beside natural differs: +1 (+1 to +1)" in said
    assert said[-1].startswith(f"each of these {len(said) - 1} intervals")


def test_what_could_be_found_is_said_with_and_without_the_draw_of_clients():
    """The memoriser's gap scatters by 1 about the floor's, and with it by more."""
    seeds = [
        {
            name: {"kid avg": {PARTICIPATION: gap, f"{PARTICIPATION} error": 0.1, "clients": 8}}
            for name, gap in (("floor", floor), ("memoriser", floor + beyond))
        }
        for floor, beyond in ((-4.0, 1.0), (0.0, 2.0), (4.0, 3.0))
    ]
    table = detectable_table({"natural": seeds})
    row = [column._cells[0] for column in table.columns]
    least = smallest_gap([-1.0, 0.0, 1.0], (), 8)
    assert row[:2] == ["natural", "kid avg"]
    assert [float(cell) for cell in row[2:6]] == pytest.approx([5 * least, least, 0.0, 2.0], rel=1e-2)
    few = detectable_table({"natural": seeds[:2]})
    assert few.columns[3]._cells == [""]


def test_a_table_compares_unseen_clients_with_a_control_over_pairs():
    arms = {"plain": 0.0, "better": -1.0}
    found = {arm: {str(s): curves_of(records(offset + s)) for s in range(3)} for arm, offset in arms.items()}
    controls = {"plain": floors(1.0, 2.0, 3.0)}
    table = GapScores(found, controls).table("kid avg", "arms", "plain")
    rows = list(zip(*(column._cells for column in table.columns)))
    assert [row[6] for row in rows] == ["+1\n(+1 to +1)", ""]
    table = GapScores(found).table("kid avg", "arms", "plain")
    rows = list(zip(*(column._cells for column in table.columns)))
    assert rows[0][0] == "plain"
    assert rows[0][-1] == ""
    assert rows[1][-1].startswith("-1 (-1 to -1)")
    assert rows[0][3] == "4.1"
