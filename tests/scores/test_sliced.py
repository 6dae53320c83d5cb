import math

import numpy as np
import pytest
import torch
from scipy.stats import wasserstein_distance

from fedgen.scores import SlicedReference, sliced_wasserstein
from fedgen.scores.wasserstein import sliced
from fedgen.scores.wasserstein.sliced import Projected, transport_1d


def features(count, dim=4, seed=0, scale=1.0, shift=0.0):
    return torch.randn(count, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) * scale + shift


def equal(count):
    return torch.full((count,), 1 / count, dtype=torch.float64)


def on_directions(x, y, p, x_shares=None, seed=5):
    """Distances W_p^p on 20 directions, with the projected values."""
    directions = features(20, x.shape[1], seed)
    values = directions @ x.T, directions @ y.T
    shares = equal(len(x)) if x_shares is None else x_shares
    return transport_1d(Projected(values[0], shares), Projected(values[1], equal(len(y))), p), *values


@pytest.mark.parametrize(("n", "m"), [(37, 53), (40, 60), (50, 50), (1, 9), (9, 1), (1, 1)])
def test_each_direction_has_scipys_distance(n, m):
    (powers, _, _), on_x, on_y = on_directions(features(n), features(m, seed=1, scale=1.3, shift=0.4), 1)
    expected = [wasserstein_distance(a.numpy(), b.numpy()) for a, b in zip(on_x, on_y)]
    assert powers.tolist() == pytest.approx(expected, rel=1e-12, abs=1e-13)


def test_each_direction_has_scipys_distance_with_weights():
    shares = torch.rand(37, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    shares /= shares.sum()
    (powers, _, _), on_x, on_y = on_directions(features(37), features(53, seed=1), 1, shares)
    expected = [wasserstein_distance(a.numpy(), b.numpy(), shares.numpy()) for a, b in zip(on_x, on_y)]
    assert powers.tolist() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("n", "m"), [(37, 53), (40, 60), (50, 50)])
def test_squared_costs_match_sorted_copies(n, m):
    (powers, _, _), on_x, on_y = on_directions(features(n), features(m, seed=1, scale=1.3), 2)
    copies = on_x.repeat_interleave(m, 1).sort(1).values - on_y.repeat_interleave(n, 1).sort(1).values
    torch.testing.assert_close(powers, copies.square().mean(1), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("p", [1, 2])
def test_the_potentials_are_feasible_so_that_the_value_is_the_optimum(p):
    (_, phi, psi), on_x, on_y = on_directions(features(37), features(53, seed=1, shift=0.5), p)
    costs = (on_x.unsqueeze(2) - on_y.unsqueeze(1)).abs() ** p
    assert (phi.unsqueeze(2) + psi.unsqueeze(1) <= costs + 1e-12).all()


@pytest.mark.parametrize("p", [1, 2])
def test_a_mean_shift_has_its_closed_form(p):
    # |<theta, d>|: its mean over the circle is 2/pi |d|, its mean square |d|^2 / 2
    x = features(200, 2)
    score = SlicedReference.from_features([x], p, 2000).score(x + torch.tensor([1.8, 2.4], dtype=torch.float64))
    expected = 3 * (2 / math.pi if p == 1 else 0.5**0.5)
    assert abs(score.values["all"] - expected) < 4 * score.error_parts["projections"]["all"]
    assert score.error_parts["projections"]["all"] < 0.03
    assert sliced_wasserstein(x, x, p) == pytest.approx(0, abs=1e-7)


def test_one_dimension_needs_no_luck():
    assert sliced_wasserstein(torch.zeros(3, 1), torch.tensor([[1.0], [2.0]]), 1, 2) == pytest.approx(1.5)
    assert sliced_wasserstein(torch.zeros(3, 1), torch.tensor([[1.0], [2.0]]), 2, 2) == pytest.approx(2.5**0.5)


@pytest.mark.parametrize("p", [1, 2])
def test_a_reference_scores_each_client_and_the_union(p):
    parts = [features(30, seed=1), features(50, seed=2, shift=1.0), features(20, seed=3, scale=2.0)]
    generated = features(64, seed=4, shift=0.5)
    score = SlicedReference.from_features(parts, p, 40).score(generated)
    alone = [sliced_wasserstein(part, generated, p, 40) for part in parts]
    assert score.name == f"sw{p}"
    assert score.per_client.tolist() == pytest.approx(alone, rel=1e-12)
    assert score.values["avg"] == pytest.approx(np.average(alone, weights=[30, 50, 20]), rel=1e-12)
    assert score.values["all"] == pytest.approx(sliced_wasserstein(torch.cat(parts), generated, p, 40), rel=1e-12)
    if p == 1:
        assert score.values["all"] <= score.values["avg"]  # W_1 is convex in either side


def test_the_pool_of_uniform_weights_is_the_mixture():
    parts = [features(10, seed=1), features(20, seed=2, shift=3.0)]
    generated = features(16, seed=4)
    mixed = SlicedReference.from_features(parts, 1, 30, weights="uniform").score(generated).values["all"]
    doubled = torch.cat([parts[0], parts[0], parts[1]])
    assert mixed == pytest.approx(sliced_wasserstein(doubled, generated, 1, 30), rel=1e-12)
    alone = SlicedReference.from_features(parts, 1, 30, weights=[0.0, 1.0]).score(generated)
    assert alone.values["all"] == pytest.approx(alone.values["avg"], rel=1e-12)


def test_chunks_of_directions_change_nothing(monkeypatch):
    parts, generated = [features(30), features(20, seed=1)], features(25, seed=2)
    expected = SlicedReference.from_features(parts, 2, 20).score(generated)
    monkeypatch.setattr(sliced, "VALUES", 150)  # three directions at a time
    again = SlicedReference.from_features(parts, 2, 20).score(generated)
    assert again.values == pytest.approx(expected.values, rel=1e-12)
    assert again.errors == pytest.approx(expected.errors, rel=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("p", [1, 2])
def test_errors_over_images_are_the_spread_over_repeated_draws(p):
    def draw(seed):
        parts = [features(60, 3, 3 * seed), features(120, 3, 3 * seed + 1, shift=1.0)]
        reference = SlicedReference.from_features(parts, p, 20, weights="uniform")
        return reference.score(features(90, 3, 3 * seed + 2, scale=1.5, shift=2.0))

    scores = [draw(seed) for seed in range(150)]
    for key in ("avg", "all", "worst"):
        parts = [s.error_parts for s in scores]
        found = np.mean([part["generated"][key] ** 2 + part["real"][key] ** 2 for part in parts]) ** 0.5
        assert found == pytest.approx(np.std([s.values[key] for s in scores]), rel=0.15)


@pytest.mark.slow
def test_errors_over_projections_are_the_spread_over_seeds():
    x, y = features(50), features(50, seed=1, shift=1.0)
    scores = [SlicedReference.from_features([x], 1, 30, seed).score(y) for seed in range(150)]
    found = np.mean([score.error_parts["projections"]["all"] for score in scores])
    assert found == pytest.approx(np.std([score.values["all"] for score in scores]), rel=0.15)


def test_unusable_input_is_refused():
    with pytest.raises(ValueError, match="p must be 1 or 2, got 3"):
        sliced_wasserstein(features(4), features(4), 3)
    with pytest.raises(ValueError, match="projections"):
        sliced_wasserstein(features(4), features(4), 1, 1)
    with pytest.raises(ValueError, match="features"):
        sliced_wasserstein(features(4), features(4, 3))
    with pytest.raises(ValueError, match="features"):
        SlicedReference.from_features([features(4), features(4, 3)])
