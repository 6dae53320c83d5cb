"""Log-likelihood of the toy, small."""

import math

import pytest
import torch

from fedgen.experiments.theory import gaussian_toy as experiment


def test_the_grids_hold_the_papers_values_and_not_the_one_without_a_likelihood():
    grids = experiment.grids(4.0)
    assert grids["variance"][:3] == [0.1, 0.2, 0.4]
    assert grids["variance"][-1] == 4.0
    assert (grids["mean"][0], grids["mean"][10], grids["mean"][-1]) == (-2, 0, 2)
    assert {len(grid) for grid in grids.values()} == {21}


def test_densities_by_hand():
    origin = torch.zeros(1, 2, dtype=torch.float64)
    assert experiment.density(0.0, 4.0).log_prob(origin).item() == pytest.approx(-math.log(2 * math.pi * 2))
    # both components are at distance 1
    assert experiment.data_density().log_prob(origin).item() == pytest.approx(-math.log(2 * math.pi) - 0.5)


def test_a_variance_without_a_best_one_below_it_is_refused(tmp_path):
    with pytest.raises(ValueError, match="variance"):
        experiment.gaussian_loglik(50, 2.0, output=tmp_path)
