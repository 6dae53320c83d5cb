"""Calibration on known distances: a mean shift by d has W1 = |d|; N(0, I) against N(0, 4 I) in 2-d sqrt(pi / 2)."""

import math

import numpy as np
import pytest
import torch

from fedgen.scores import CriticOptions, WassersteinReference, wasserstein_critic
from fedgen.scores.wasserstein.wasserstein import CriticSide
from tests.scores.test_lipschitz import lipschitz_bound

SHORT = CriticOptions(hidden=16, max_steps=60)


def normal(count, dim, seed, scale=1.0):
    return torch.randn(count, dim, generator=torch.Generator().manual_seed(seed)) * scale


def shift(dim, length):
    return torch.full((dim,), length / dim**0.5)


@pytest.mark.slow
@pytest.mark.parametrize(("dim", "length"), [(1, 2.0), (16, 0.5)])
def test_groupsort_is_within_a_few_percent_of_a_mean_shift_of_the_same_images(dim, length):
    x = normal(500, dim, 0)
    value, _ = wasserstein_critic(x + shift(dim, length), x, CriticOptions(hidden=32, held_out=0))
    assert 0.95 * length < value < length * (1 + 1e-4)


@pytest.mark.slow
def test_groupsort_stays_below_a_mean_shift_on_images_that_it_never_saw():
    x, y = normal(1500, 8, 0) + shift(8, 2.0), normal(1500, 8, 50)
    value, error = wasserstein_critic(x, y, CriticOptions(hidden=32))
    assert 1.85 < value < 2.0 + 3 * error


@pytest.mark.slow
def test_on_the_images_of_its_training_a_critic_overshoots_the_populations_distance():
    x, y = normal(60, 64, 0), normal(60, 64, 1)
    seen, _ = wasserstein_critic(x, y, CriticOptions(held_out=0, hidden=32, max_steps=150))
    unseen, error = wasserstein_critic(x, y, CriticOptions(hidden=32, max_steps=150))
    assert seen > 1  # the distributions are one
    assert abs(unseen) < 4 * error


@pytest.mark.slow
def test_the_relu_critic_reaches_half_of_the_distance_where_the_norm_is_optimal():
    points = torch.zeros(40, 1)
    spread = torch.cat([torch.ones(20, 1), -torch.ones(20, 1)])  # W1 = 1, by f = |x|
    for last_activation in (True, False):
        relu = CriticOptions(network="relu", last_activation=last_activation, held_out=0, hidden=16)
        value, _ = wasserstein_critic(spread, points, relu)
        assert 0.45 < value < 0.5001
    value, _ = wasserstein_critic(spread, points, CriticOptions(held_out=0, hidden=16))
    assert 0.9 < value < 1.0001


@pytest.mark.slow
def test_relu_is_biased_low_on_a_radial_shift_and_groupsort_much_less():
    x, y = normal(2000, 2, 0, scale=2.0)[:1000], normal(2000, 2, 1)[:1000]
    expected = math.sqrt(math.pi / 2)
    groupsort, error = wasserstein_critic(x, y, CriticOptions(hidden=32))
    relu, _ = wasserstein_critic(x, y, CriticOptions(network="relu", last_activation=True, hidden=16))
    assert 0.85 * expected < groupsort < expected + 3 * error
    assert 0.3 * expected < relu < 0.6 * expected


@pytest.mark.slow
def test_the_unit_of_the_features_is_that_of_the_distance():
    x, y = normal(300, 4, 0), normal(300, 4, 1) + 1
    value, error = wasserstein_critic(x, y, SHORT)
    moved = wasserstein_critic(x * 128 + 64, y * 128 + 64, SHORT)  # powers of two: the same digits
    assert moved == pytest.approx((128 * value, 128 * error), rel=1e-3)


@pytest.mark.slow
def test_a_reference_scores_each_client_and_the_pool():
    parts = [normal(80, 3, 1), normal(160, 3, 2) + 2]
    reference = WassersteinReference.from_features(parts, SHORT)
    score = reference.score(normal(100, 3, 3) + 1)
    assert score.name == "w1"
    assert score.values["avg"] == pytest.approx(
        float(score.per_client @ torch.tensor([1 / 3, 2 / 3], dtype=torch.float64))
    )
    assert score.values["worst"] == float(score.per_client.max())
    assert len(reference.critics) == 3
    # the first client is scored as if it were alone
    alone = WassersteinReference.from_features(parts[:1], SHORT).score(normal(100, 3, 3) + 1)
    expected = pytest.approx(float(score.per_client[0]), rel=1e-12)
    assert (alone.values["all"], alone.values["avg"]) == (expected, expected)
    assert alone.errors["all"] == pytest.approx(float(score.client_errors[0]))
    again = WassersteinReference.from_features(parts[:1], SHORT).score(normal(100, 3, 3) + 1)
    assert again.values == alone.values


@pytest.mark.slow
def test_opposite_shifts_cancel_in_the_pool_alone():
    parts = [normal(400, 2, 1) + shift(2, 3.0), normal(400, 2, 2) - shift(2, 3.0)]
    options = CriticOptions(hidden=32, max_steps=120)
    pooled = WassersteinReference.from_features(parts, options).score(torch.cat([p.flip(0) for p in parts]))
    assert pooled.values["avg"] > 2.5
    assert pooled.values["all"] < 0.3


@pytest.mark.slow
def test_the_pool_follows_the_weights():
    parts = [normal(60, 2, 1) + 5, normal(60, 2, 2)]
    reference = WassersteinReference.from_features(parts, SHORT, weights=[0.0, 1.0])
    score = reference.score(normal(60, 2, 3) + 5)
    assert score.values["all"] == pytest.approx(score.values["avg"], rel=0.3)  # other first weights, same images
    assert score.values["worst"] == float(score.per_client[1])


@pytest.mark.slow
def test_errors_are_the_spread_over_measured_images():
    parts, generated = [normal(40, 2, 0), normal(60, 2, 1) + 1], normal(50, 2, 2) + 2
    reference = WassersteinReference.from_features(parts, SHORT, weights="uniform")
    score = reference.score(generated)

    def again(seed):
        random = torch.Generator().manual_seed(seed)
        fresh = CriticSide.plain(torch.randn(25, 2, generator=random) + 2, torch.arange(25))
        real = [
            CriticSide.plain(torch.randn(n, 2, generator=random) + k, torch.arange(n)) for k, n in enumerate((20, 30))
        ]
        critic = reference.critics[-1]
        on_real = sum(0.5 * critic.values(side).mean() for side in real)
        return float(critic.values(fresh).mean() - on_real)

    spread = np.std([again(seed) for seed in range(400)])
    assert score.errors["all"] == pytest.approx(spread, rel=0.35)  # estimated from 75 images


@pytest.mark.slow
def test_the_stop_rule_ends_training_and_max_steps_does_too():
    x, y = normal(200, 2, 0), normal(200, 2, 1) + 3
    reference = WassersteinReference.from_features([y], CriticOptions(hidden=16))
    reference.score(x)
    assert reference.critics[0].converged
    assert reference.critics[0].steps < CriticOptions().max_steps
    short = WassersteinReference.from_features([y], CriticOptions(hidden=16, max_steps=7))
    short.score(x)
    assert (short.critics[0].converged, short.critics[0].steps) == (False, 7)
    assert lipschitz_bound(short.critics[0].network) == pytest.approx(1, abs=1e-6)


def test_the_global_generators_are_left_alone():
    before = torch.get_rng_state()
    wasserstein_critic(normal(20, 2, 0), normal(20, 2, 1), CriticOptions(hidden=4, max_steps=3))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_batch_is_drawn_by_weight():
    side = CriticSide(torch.arange(4.0).unsqueeze(1), torch.arange(4), torch.tensor([0.0, 0.5, 0.5, 0.0]).double())
    drawn, shares = side.draw(3, torch.Generator().manual_seed(0))
    assert set(drawn.flatten().tolist()) <= {1.0, 2.0}
    assert shares.tolist() == pytest.approx([1 / 3] * 3)
    assert torch.equal(side.draw(4, torch.Generator())[1], side.shares)


def test_features_that_are_all_the_same_are_at_distance_zero():
    value, error = wasserstein_critic(torch.ones(10, 3), torch.ones(10, 3), SHORT)
    assert value == 0.0
    assert error == pytest.approx(0.0, abs=1e-7)  # of equal critic values, whose mean may be rounded


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"held_out": 1.0}, "held_out must be at least 0 and below 1"),
        ({"max_steps": 0}, "max_steps must be positive, got 0"),
        ({"network": "mlp"}, "one of groupsort, relu, got 'mlp'"),
    ],
)
def test_unusable_options_are_refused_when_given(options, message):
    with pytest.raises(ValueError, match=message):
        CriticOptions(**options)


def test_unusable_features_are_refused_with_a_remedy():
    with pytest.raises(ValueError, match="held_out"):
        WassersteinReference.from_features([normal(10, 2, 0), normal(2, 2, 1)])
    reference = WassersteinReference.from_features([normal(10, 2, 0)], SHORT)
    with pytest.raises(ValueError, match="generated"):
        reference.score(normal(1, 2, 1))
    with pytest.raises(ValueError, match="features"):
        reference.score(normal(10, 3, 1))
