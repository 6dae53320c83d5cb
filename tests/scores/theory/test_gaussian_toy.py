"""The closed forms against Gaussians, moments and draws."""

import pytest
import torch
from scipy.integrate import quad
from scipy.stats import norm

from fedgen.scores import FrechetReference, KernelReference
from fedgen.scores.theory import population_gaussian, toy_frechet, toy_kernel, toy_log_likelihood
from fedgen.statistics import pool

CLIENTS = [population_gaussian(torch.tensor([x, 0.0]), torch.eye(2)) for x in (-1.0, 1.0)]
VARIANCES = torch.linspace(0.1, 4, 21, dtype=torch.float64)


def points(count: int, var_x: float, mean_x: float, random: torch.Generator) -> torch.Tensor:
    spread = torch.tensor([var_x**0.5, 1.0], dtype=torch.float64)
    return torch.randn(count, 2, generator=random, dtype=torch.float64) * spread + torch.tensor([mean_x, 0.0])


def test_frechet_distances_are_those_of_the_gaussians() -> None:
    reference = FrechetReference.from_summaries(CLIENTS, ddof=0)
    curves = toy_frechet(VARIANCES)
    for number, variance in enumerate(VARIANCES.tolist()):
        made = population_gaussian(torch.zeros(2), torch.diag(torch.tensor([variance, 1.0])))
        values = reference.score(made, errors=False).values
        for key in ("avg", "all"):
            assert values[key] == pytest.approx(float(curves[key][number]), abs=1e-6)
    own = reference.score(pool(CLIENTS), errors=False).values["avg"]
    assert own == pytest.approx(float(curves["ref"][0]))
    assert own == pytest.approx(1.171573, abs=1e-6)


def test_the_aggregates_have_their_minima_where_the_paper_draws_them() -> None:
    grid = torch.linspace(0, 4, 401, dtype=torch.float64)
    frechet, kernel, likelihood = toy_frechet(grid), toy_kernel(grid), toy_log_likelihood(grid[1:])
    assert float(grid[frechet["avg"].argmin()]) == pytest.approx(1)
    assert float(grid[frechet["all"].argmin()]) == pytest.approx(2)
    assert float(grid[kernel["avg"].argmin()]) == float(grid[kernel["all"].argmin()]) == pytest.approx(2)
    assert float(grid[1:][likelihood["avg"].argmax()]) == pytest.approx(2)
    assert float(frechet["avg"].min()) < float(frechet["ref"][0])  # the pool is not what FD-avg prefers


@pytest.mark.parametrize("var_x", [0.4, 2.0, 3.5])
def test_draws_agree_within_their_errors(var_x: float) -> None:
    random = torch.Generator().manual_seed(0)
    clients = [points(20_000, 1.0, x, random) for x in (-1.0, 1.0)]
    made = points(20_000, var_x, 0.0, random)
    score = FrechetReference.from_features(clients).score(made)
    for key in ("avg", "all"):
        assert abs(score.values[key] - float(toy_frechet(var_x)[key])) < 3 * score.errors[key] + 4e-4  # bias of 1/n
    few = [part[:1500] for part in (*clients, made)]
    kid = KernelReference.from_features(few[:2]).score(few[2])
    for key in ("avg", "all"):
        assert abs(kid.values[key] - float(toy_kernel(var_x)[key])) < 3 * kid.errors[key]


def test_kernel_gap_is_the_kd_of_clients_to_the_pool_by_draws() -> None:
    random = torch.Generator().manual_seed(1)
    gaps = [KernelReference.from_features([points(800, 1.0, x, random) for x in (-1.0, 1.0)]).gap for _ in range(12)]
    spread = torch.tensor(gaps)
    assert abs(float(spread.mean()) - float(toy_kernel(1.0)["ref"])) < 3 * float(spread.std()) / 12**0.5


@pytest.mark.parametrize(("var_x", "mean_x"), [(2.0, 0.0), (0.7, 0.0), (2.0, 1.5)])
def test_log_likelihood_agrees_with_torchs_density(var_x: float, mean_x: float) -> None:
    random = torch.Generator().manual_seed(2)
    clients = [points(50_000, 1.0, x, random) for x in (-1.0, 1.0)]
    covariance = torch.diag(torch.tensor([var_x, 1.0], dtype=torch.float64))
    model = torch.distributions.MultivariateNormal(torch.tensor([mean_x, 0.0]).double(), covariance)
    logs = torch.cat([model.log_prob(part) for part in clients])
    exact = toy_log_likelihood(var_x, mean_x)
    assert float(exact["avg"]) == float(exact["all"])
    assert abs(float(logs.mean()) - float(exact["avg"])) < 3 * float(logs.std()) / len(logs) ** 0.5


def test_log_likelihood_numbers_of_the_paper() -> None:
    assert float(toy_log_likelihood(2.0)["avg"]) == pytest.approx(-3.18445, abs=5e-6)
    means = torch.linspace(-2, 2, 5)
    assert toy_log_likelihood(2.0, means)["all"].tolist() == pytest.approx(
        (-3.184451 - means**2 / 4).tolist(), abs=1e-6
    )


def test_reference_likelihood_is_the_entropy_by_adaptive_quadrature() -> None:
    def integrand(x: float) -> float:
        density = (norm.pdf(x, -1) + norm.pdf(x, 1)) / 2
        return density * float(torch.tensor(density, dtype=torch.float64).log())

    exact = quad(integrand, -12, 12, epsabs=1e-12)[0] - norm.entropy()
    assert float(toy_log_likelihood(1.0)["ref"]) == pytest.approx(exact, abs=1e-9)
    assert exact == pytest.approx(-3.17471, abs=5e-6)


def test_variances_that_no_generator_has_are_refused() -> None:
    for curve in (toy_frechet, toy_kernel):
        with pytest.raises(ValueError, match=r"at least 0, got -0\.5"):
            curve(torch.tensor([1.0, -0.5]))
    with pytest.raises(ValueError, match="positive"):
        toy_log_likelihood(torch.tensor([0.0, 1.0]))
