import math

import numpy as np
import pytest
import torch
from torch.distributions import Categorical, Independent, MixtureSameFamily, MultivariateNormal, Normal, Uniform

from fedgen.data import GaussianMixture
from fedgen.scores import LikelihoodReference


def gaussian(mean, variances):
    return MultivariateNormal(
        torch.tensor(mean, dtype=torch.float64), torch.diag(torch.tensor(variances, dtype=torch.float64))
    )


def toy(count=20_000):
    """Points of the paper's two clients N((-1, 0), I) and N((+1, 0), I)."""
    examples = GaussianMixture(count).load()
    return list(examples.inputs.split(count))


def test_two_points_by_hand():
    reference = LikelihoodReference.from_points([torch.tensor([[0.0]]), torch.tensor([[1.0], [3.0]])])
    score = reference.score(gaussian([0.0], [1.0]))
    constant = -0.5 * math.log(2 * math.pi)
    assert score.per_client.tolist() == pytest.approx([constant, constant - 2.5], rel=1e-12)
    assert score.values["avg"] == pytest.approx(constant - 5 / 3, rel=1e-12)
    assert score.values["worst"] == pytest.approx(constant - 2.5, rel=1e-12)
    assert score.errors["worst"] == pytest.approx(2.0, rel=1e-12)  # 0.5 and 4.5 below the constant
    assert score.client_errors.tolist() == pytest.approx([0.0, 2.0], rel=1e-12)
    # shares 1/3 and 2/3 of clients 5/3 above and 5/6 below: each contributes 5/9, over 1 - 1/9 - 4/9
    assert score.errors_over_clients["avg"] == pytest.approx((2 * 25 / 81 / (4 / 9)) ** 0.5, rel=1e-12)


def test_higher_is_better_whether_errors_are_asked_for_or_not():
    reference = LikelihoodReference.from_points([torch.tensor([[0.0]]), torch.tensor([[1.0], [3.0]])])
    for errors in (False, True):
        score = reference.score(gaussian([0.0], [1.0]), errors)
        assert score.higher_is_better
        assert score.values["worst"] == float(score.per_client.min())


@pytest.mark.parametrize("variance", [0.1, 0.5, 1.0, 2.0, 4.0])
def test_the_toy_has_its_closed_form(variance):
    # E over both clients of log N(x; 0, diag(v, 1)); the maximum -3.18445 lies at v = 2
    score = LikelihoodReference.from_points(toy()).score(gaussian([0.0, 0.0], [variance, 1.0]))
    expected = -math.log(2 * math.pi) - 0.5 * math.log(variance) - 0.5 * (2 / variance + 1)
    assert abs(score.values["all"] - expected) < 4 * score.errors["all"]
    if variance == 2.0:
        assert expected == pytest.approx(-3.18445, abs=1e-5)


@pytest.mark.parametrize("mean", [-2.0, 0.0, 1.0])
def test_the_toy_with_a_moved_mean_has_its_closed_form(mean):
    score = LikelihoodReference.from_points(toy()).score(gaussian([mean, 0.0], [2.0, 1.0]))
    assert abs(score.values["avg"] - (-3.18445 - mean**2 / 4)) < 4 * score.errors["avg"]


def test_the_clients_own_mixture_scores_its_entropy():
    components = MultivariateNormal(torch.tensor([[-1.0, 0.0], [1.0, 0.0]], dtype=torch.float64), torch.eye(2).double())
    mixture = MixtureSameFamily(Categorical(torch.ones(2, dtype=torch.float64)), components)
    score = LikelihoodReference.from_points(toy()).score(mixture)
    assert abs(score.values["all"] - (-3.17471)) < 4 * score.errors["all"]


@pytest.mark.parametrize("weights", ["examples", "uniform", [0.7, 0.1, 0.2]])
def test_avg_is_all(weights):
    random = torch.Generator().manual_seed(0)
    parts = [torch.randn(n, 3, generator=random) + n / 50 for n in (7, 90, 31)]
    density = gaussian([0.0, 1.0, 0.0], [1.0, 2.0, 3.0])
    score = LikelihoodReference.from_points(parts, weights).score(density)
    assert score.values["avg"] == pytest.approx(score.values["all"], rel=1e-14)
    if weights == "examples":
        assert score.values["all"] == pytest.approx(
            float(density.log_prob(torch.cat(parts).double()).mean()), rel=1e-14
        )


def test_errors_are_the_spread_over_repeated_draws():
    def draw(seed):
        random = torch.Generator().manual_seed(seed)
        parts = [torch.randn(n, 2, generator=random) for n in (50, 200)]
        return LikelihoodReference.from_points(parts, "uniform").score(gaussian([0.5, 0.0], [1.0, 1.0]))

    scores = [draw(seed) for seed in range(200)]
    for key in ("avg", "all"):
        assert np.mean([s.errors[key] for s in scores]) == pytest.approx(
            np.std([s.values[key] for s in scores]), rel=0.2
        )


def test_a_point_of_density_zero_makes_the_score_minus_infinity():
    density = Independent(Uniform(torch.zeros(1).double(), torch.ones(1).double(), validate_args=False), 1)
    inside, outside = torch.tensor([[0.2], [0.4]]), torch.tensor([[0.2], [1.5]])
    score = LikelihoodReference.from_points([inside, outside]).score(density)
    assert score.per_client.tolist() == [0.0, -math.inf]
    assert score.values == {"avg": -math.inf, "all": -math.inf, "worst": -math.inf}
    assert score.errors["all"] == score.errors_over_clients["all"] == math.inf
    ignored = LikelihoodReference.from_points([inside, outside], [1.0, 0.0]).score(density)
    assert ignored.values == {"avg": 0.0, "all": 0.0, "worst": 0.0}
    assert ignored.errors["all"] == 0.0


def test_what_is_no_density_over_vectors_is_refused():
    reference = LikelihoodReference.from_points([torch.zeros(4, 2)])
    with pytest.raises(ValueError, match="log_prob"):
        reference.score(Normal(0.0, 1.0))

    class Broken:
        def log_prob(self, points):
            return torch.full((len(points),), torch.nan)

    with pytest.raises(ValueError, match="density"):
        reference.score(Broken())
    with pytest.raises(ValueError, match="points"):
        LikelihoodReference.from_points([torch.zeros(4, 2), torch.zeros(4, 3)])
