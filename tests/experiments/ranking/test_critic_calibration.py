"""Known distances: shifts, and one axis made wider."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from fedgen.experiments.ranking.critic_distance import calibrate, mean_cosine, shifted, widened
from fedgen.scores import sliced_wasserstein

FEATURES = torch.randn(4000, 3, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 2.0, 0.5])


def draws(seed=0):
    return torch.Generator().manual_seed(seed)


def test_a_shift_moves_other_images_by_its_length_in_units_of_the_spread():
    case = shifted(FEATURES, 1000, 2.0, draws())
    assert case.distance == pytest.approx(2 * math.sqrt(1 + 4 + 0.25), rel=0.03)
    assert (len(case.generated), len(case.real)) == (1000, 3000)
    means = case.generated.double().mean(0) - case.real.double().mean(0)
    assert float(means.norm()) == pytest.approx(case.distance, rel=0.05)
    rows = {tuple(row.tolist()) for row in case.real}
    assert len(rows & {tuple(row.tolist()) for row in FEATURES}) == 3000


@pytest.mark.slow
def test_slicing_leaves_the_mean_cosine_of_a_shift():
    assert mean_cosine(1) == pytest.approx(1)
    assert mean_cosine(2) == pytest.approx(2 / math.pi)
    assert mean_cosine(3) == pytest.approx(0.5)
    random = np.random.default_rng(0).normal(size=(200_000, 5))
    assert mean_cosine(5) == pytest.approx(np.abs(random[:, 0] / np.linalg.norm(random, axis=1)).mean(), rel=0.01)
    case = shifted(FEATURES, 2000, 2.0, draws())
    assert case.sliced is not None
    assert sliced_wasserstein(case.generated, case.real) == pytest.approx(case.sliced, rel=0.05)


def test_the_widest_axis_alone_is_stretched_and_the_distance_is_that_along_it():
    case = widened(FEATURES, 4000, 3.0, draws())
    assert case.distance == pytest.approx(2 * 2 * math.sqrt(2 / math.pi), rel=0.03)
    assert case.sliced is None
    ratio = case.generated.std(0) / case.real.std(0)
    assert ratio.tolist() == pytest.approx([1, 3, 1], rel=0.1)
    along = stats.wasserstein_distance(case.generated[:, 1].numpy(), case.real[:, 1].numpy())
    assert along == pytest.approx(case.distance, rel=0.06)


@pytest.mark.slow
def test_shares_are_of_the_known_distance_and_unknown_ones_are_left_out():
    def means(generated, real):
        return float((generated.double().mean(0) - real.double().mean(0)).norm())

    found = calibrate(FEATURES, 1000, {"means": means, "slices": sliced_wasserstein}, 0, ["slices"])
    assert found["shift 1"] == {"means": pytest.approx(1, rel=0.06), "slices": pytest.approx(1, rel=0.06)}
    assert list(found["width 2"]) == ["means"]
    assert found["width 2"]["means"] < 0.1  # the means do not part
