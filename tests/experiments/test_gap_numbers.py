"""Runs on seen and unseen clients, as numbers."""

import numpy as np
import pytest

from fedgen.experiments.gap_numbers import PARTICIPATION, arms_table, controls_of, curves_of, gap_lines, smallest_gap
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


def test_a_gap_over_seeds_has_the_wider_of_two_intervals():
    alike = [curves_of(records())["kid avg"] for _ in range(4)]
    mean, low, high = gap_lines(alike, PARTICIPATION)
    half = 2.776445 * 0.25  # Student's quantile: four repetitions of two pairs leave four degrees
    assert (mean, low, high) == pytest.approx((2.0, 2 - half, 2 + half), rel=1e-5)
    apart = [curves_of(records(offset))["kid avg"] for offset in (-2.0, 0.0, 2.0)]
    mean, low, high = gap_lines(apart, PARTICIPATION)
    assert (mean, high - mean) == pytest.approx((2.0, 4.3027 * 2 / 3**0.5), rel=1e-3)  # Student, two degrees


def test_a_table_compares_unseen_clients_with_a_control_over_pairs():
    arms = {"plain": 0.0, "better": -1.0}
    found = {arm: {str(s): curves_of(records(offset + s)) for s in range(3)} for arm, offset in arms.items()}
    table = arms_table(found, "kid avg", "arms", "plain")
    rows = list(zip(*(column._cells for column in table.columns)))
    assert rows[0][0] == "plain"
    assert rows[0][-1] == ""
    assert rows[1][-1].startswith("-1 (-1 to -1)")
    assert rows[0][3] == "4.1"
