import math
import sys

import numpy as np
import pytest
import torch
from torch_fidelity.metric_isc import isc_features_to_metric

from fedgen.scores import inception_score, inception_score_splits


def logits(count, classes, seed=0, scale=3.0):
    return torch.randn(count, classes, generator=torch.Generator().manual_seed(seed)) * scale


def test_images_sure_of_four_classes_score_four():
    value, error = inception_score(torch.eye(4).repeat(5, 1) * 1e3)
    assert value == pytest.approx(4, rel=1e-12)
    assert error < 0.2


def test_images_that_all_look_alike_score_one():
    assert inception_score(torch.tensor([[0.3, -1.0, 2.0]]).repeat(6, 1)) == pytest.approx((1, 0), abs=1e-12)
    assert inception_score(torch.zeros(1, 3)) == (1.0, 0.0)


def test_two_images_by_hand():
    # p = (0.8, 0.2) and (0.4, 0.6), q = (0.6, 0.4)
    rows = torch.tensor([[0.8, 0.2], [0.4, 0.6]], dtype=torch.float64)
    divergences = [0.8 * math.log(4 / 3) + 0.2 * math.log(0.5), 0.4 * math.log(2 / 3) + 0.6 * math.log(1.5)]
    value, error = inception_score(rows.log())
    assert value == pytest.approx(math.exp(sum(divergences) / 2), rel=1e-12)
    assert error == pytest.approx(0, abs=1e-12)  # either image alone scores 1


@pytest.mark.parametrize(("count", "splits", "shuffle"), [(1000, 10, True), (103, 10, True), (200, 1, False)])
def test_splits_are_those_of_torch_fidelity(count, splits, shuffle):
    features = logits(count, 1008)
    theirs = isc_features_to_metric(features, splits, shuffle, 2020)
    mean, std = inception_score_splits(features, splits, shuffle)
    assert mean == pytest.approx(theirs["inception_score_mean"], rel=1e-10)
    assert std == pytest.approx(theirs["inception_score_std"], rel=1e-10, abs=1e-12)


def test_the_error_is_the_jackknife_of_scores_without_each_image():
    features = logits(40, 7)
    left_out = [inception_score(torch.cat([features[:i], features[i + 1 :]]))[0] for i in range(40)]
    expected = (39 * np.var(left_out)) ** 0.5
    assert inception_score(features)[1] == pytest.approx(expected, rel=1e-9)


def test_the_error_is_the_spread_over_repeated_draws():
    centres = torch.eye(5, dtype=torch.float64) * 4

    def draw(seed):
        chosen = torch.randint(5, (300,), generator=torch.Generator().manual_seed(seed))
        return inception_score(centres[chosen] + logits(300, 5, seed + 1000, 1.0).double())

    values, errors = zip(*(draw(seed) for seed in range(200)))
    assert np.mean(errors) == pytest.approx(np.std(values), rel=0.2)


def test_blocks_change_nothing(monkeypatch):
    features = logits(50, 6)
    expected = inception_score(features)
    monkeypatch.setattr(sys.modules["fedgen.scores.of_model.diversity"], "BLOCK", 7)  # the function hides its module
    assert inception_score(features) == pytest.approx(expected, rel=1e-12)


def test_unusable_input_is_refused():
    with pytest.raises(ValueError, match="splits"):
        inception_score_splits(logits(5, 3))
    with pytest.raises(ValueError, match="NaN"):
        inception_score(torch.tensor([[0.0, 1.0], [math.nan, 0.0]]))
