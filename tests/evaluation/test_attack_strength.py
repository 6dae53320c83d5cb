"""The strength of an attack, against scikit-learn, plain loops and the known chances of normal signals."""

import numpy as np
import pytest
import torch
from scipy.stats import norm
from sklearn.metrics import roc_auc_score, roc_curve

from fedgen.evaluation.audit.attack_strength import (
    auc_with_error,
    average_attack,
    best_threshold,
    found_at,
    measure_attack,
)


def signals(count, shift, seed, decimals=None):
    draws = np.random.default_rng(seed)
    members, others = draws.normal(shift, 1, count), draws.normal(0, 1, count)
    return (members, others) if decimals is None else (members.round(decimals), others.round(decimals))


def strength(count, shift, seed):
    members, others = signals(count, shift, seed)
    return measure_attack("client", torch.from_numpy(members), torch.from_numpy(others), seed)


@pytest.mark.parametrize("decimals", [None, 1, 0])  # the fewer, the more ties
def test_the_area_is_scikit_learns_and_its_error_delongs(decimals):
    members, others = signals(40, 0.5, 1, decimals)
    area, error = auc_with_error(members, others[:25])
    labels = np.repeat([1, 0], [40, 25])
    assert area == pytest.approx(roc_auc_score(labels, np.concatenate([members, others[:25]])), abs=1e-12)
    wins = (members[:, None] > others[:25]) + (members[:, None] == others[:25]) / 2
    variance = wins.mean(1).var(ddof=1) / 40 + wins.mean(0).var(ddof=1) / 25
    assert error == pytest.approx(variance**0.5, abs=1e-12)


@pytest.mark.parametrize("decimals", [None, 0])
def test_the_threshold_is_one_of_the_largest_difference(decimals):
    members, others = signals(30, 1.0, 2, decimals)
    threshold = best_threshold(members, others)
    false, true, _ = roc_curve(np.repeat([1, 0], 30), np.concatenate([members, others]), drop_intermediate=False)
    assert (members >= threshold).mean() - (others >= threshold).mean() == pytest.approx((true - false).max())


def test_signals_that_are_all_alike_tell_nothing():
    found = measure_attack("client", torch.ones(20), torch.ones(20), 0)
    assert (found.auc.value, found.auc_error, found.advantage.value) == (0.5, 0.0, 0.0)
    assert found.advantage.low < 0 < found.advantage.high


def test_signals_apart_are_told_for_certain():
    found = measure_attack("client", torch.arange(20.0) + 100, torch.arange(20.0), 0)
    assert (found.auc.value, found.auc.high, found.advantage.value) == (1.0, 1.0, 1.0)
    assert found.auc.low > 0.8
    assert found.advantage.low > 0.7
    assert found.found is None


def test_infinite_signals_are_numbers_and_nan_is_refused():
    members, others = torch.tensor([0.0, 1.0]).repeat(10), torch.tensor([-torch.inf, 0.5]).repeat(10)
    assert measure_attack("client", members, others, 0).auc.value == pytest.approx(0.75)
    members[3] = torch.nan
    with pytest.raises(ValueError, match="NaN"):
        measure_attack("writer 5", members, others, 0)


@pytest.mark.slow
def test_a_signal_that_knows_nothing_has_advantage_0_on_average_and_the_largest_difference_has_not():
    found = [strength(20, 0.0, seed).advantage.value for seed in range(400)]
    assert abs(np.mean(found)) < 3 * np.std(found) / 20
    largest = []
    for seed in range(400):
        members, others = signals(20, 0.0, seed)
        threshold = best_threshold(members, others)
        largest.append((members >= threshold).mean() - (others >= threshold).mean())
    assert np.mean(largest) == pytest.approx(0.17, abs=0.02)


@pytest.mark.slow
@pytest.mark.parametrize(("count", "shift"), [(15, 0.0), (40, 0.0), (40, 1.0), (40, 3.0)])
def test_intervals_hold_the_truth_in_19_of_20_draws(count, shift):
    """The share is within three standard errors of 95 %, and no more than 99.5 %."""
    draws = [strength(count, shift, seed) for seed in range(200)]
    least = 0.95 - 3 * (0.95 * 0.05 / len(draws)) ** 0.5
    area = norm.cdf(shift / 2**0.5)
    assert least < np.mean([one.auc.low <= area <= one.auc.high for one in draws]) < 0.995
    if shift == 0:  # else the threshold is not the best one, and the advantage below the largest
        assert least < np.mean([one.advantage.low <= 0 <= one.advantage.high for one in draws]) < 0.995


@pytest.mark.parametrize("shift", [0.0, 1.0, 3.0])
def test_the_share_found_at_one_percent_holds_the_truth(shift):
    truth, held = norm.cdf(shift - norm.ppf(0.99)), []
    for seed in range(300):
        found = found_at(*signals(600, shift, seed))
        held.append(found.low <= truth <= found.high)
    assert np.mean(held) > 0.91


def test_too_few_images_tell_no_share_at_one_percent():
    assert found_at(*signals(367, 5.0, 0)) is None
    assert found_at(*signals(368, 9.0, 0)).value == 1.0


def test_the_mean_over_clients_is_weighted_and_narrower():
    parts = [strength(40, shift, seed) for seed, shift in enumerate((0.0, 1.0, 2.0))]
    mean = average_attack("avg", parts, [0.5, 0.25, 0.25])
    assert mean.auc.value == pytest.approx(sum(w * p.auc.value for w, p in zip((0.5, 0.25, 0.25), parts)))
    assert mean.pairs == 120
    assert mean.auc.high - mean.auc.low < min(part.auc.high - part.auc.low for part in parts[:2])
    assert mean.auc_error == pytest.approx(
        ((parts[0].auc_error / 2) ** 2 + sum((part.auc_error / 4) ** 2 for part in parts[1:])) ** 0.5
    )
    assert mean.found is None


@pytest.mark.slow
@pytest.mark.parametrize(("shift", "noise"), [(0.8, 0.0), (0.0, 3.0)])
def test_intervals_of_pairs_that_share_noise_hold_as_often_as_they_say(shift, noise):
    repeats, held, gains, widths, alone = 300, 0, [], [], []
    area = norm.cdf(shift / (2 * (1 + noise**2)) ** 0.5)  # of a member and the other of another pair
    for seed in range(repeats):
        draws = np.random.default_rng(seed)
        shared = draws.normal(0, noise, 50)
        signals = (
            torch.from_numpy(shared + draws.normal(shift, 1, 50)),
            torch.from_numpy(shared + draws.normal(0, 1, 50)),
        )
        found = measure_attack("client", *signals, seed, paired=True)
        held += found.auc.low <= area <= found.auc.high
        gains.append(found.advantage)
        widths.append(found.auc.high - found.auc.low)
        alone.append(np.subtract(*(lambda auc: (auc.high, auc.low))(measure_attack("client", *signals, seed).auc)))
    assert 0.92 <= held / repeats <= 0.98  # two errors of 300 draws beside 95 percent
    assert np.mean(widths) < (0.5 if noise else 1.02) * np.mean(alone)
    known = np.mean([gain.value for gain in gains]) if shift else 0.0
    assert 0.915 <= np.mean([gain.low <= known <= gain.high for gain in gains]) <= 0.985
