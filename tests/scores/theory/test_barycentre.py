import numpy as np
import pytest
import torch
from scipy.linalg import sqrtm

from fedgen.scores import frechet_distance
from fedgen.scores.theory import barycentre, barycentre_decomposition, population_gaussian
from fedgen.statistics import Gaussian, summarize

DIM = 6


def basis(random: torch.Generator) -> torch.Tensor:
    return torch.linalg.qr(torch.randn(DIM, DIM, generator=random, dtype=torch.float64))[0]


def draw(random: torch.Generator, vectors: torch.Tensor | None = None) -> Gaussian:
    """A Gaussian with eigenvalues in [0.25, 2.75], along given or random vectors."""
    vectors = basis(random) if vectors is None else vectors
    values = torch.rand(DIM, generator=random, dtype=torch.float64) * 2.5 + 0.25
    mean = torch.randn(DIM, generator=random, dtype=torch.float64)
    return population_gaussian(mean, (vectors * values) @ vectors.T)


def test_barycentre_by_hand() -> None:
    clients = [population_gaussian(torch.tensor([x]), torch.tensor([[v]])) for x, v in ((0.0, 1.0), (4.0, 9.0))]
    centre = barycentre(clients, [0.75, 0.25])  # standard deviation 0.75 * 1 + 0.25 * 3
    assert float(centre.mean) == pytest.approx(1.0)
    assert float(centre.covariance(0)) == pytest.approx(1.5**2)


def test_barycentre_is_the_fixed_point_by_scipy() -> None:
    random = torch.Generator().manual_seed(0)
    clients, weights = [draw(random) for _ in range(4)], [0.1, 0.2, 0.3, 0.4]
    covariance = barycentre(clients, weights, tolerance=1e-13).covariance(0).numpy()
    root = sqrtm(covariance)
    moved = sum(w * sqrtm(root @ client.covariance(0).numpy() @ root) for w, client in zip(weights, clients))
    np.testing.assert_allclose(np.real(moved), covariance, atol=1e-12)


def test_no_other_gaussian_is_closer_on_average() -> None:
    random = torch.Generator().manual_seed(1)
    clients = [draw(random) for _ in range(3)]
    centre = barycentre(clients)

    def mean_distance(other: Gaussian) -> float:
        return sum(frechet_distance(client, other, ddof=0)[0] for client in clients) / 3

    least = mean_distance(centre)
    for _ in range(20):
        nudge = torch.randn(DIM, DIM, generator=random, dtype=torch.float64) * 0.02
        moved = centre.covariance(0) + (nudge + nudge.T) / 2
        shifted = centre.mean + torch.randn(DIM, generator=random, dtype=torch.float64) * 0.02
        assert mean_distance(population_gaussian(centre.mean, moved)) > least
        assert mean_distance(population_gaussian(shifted, centre.covariance(0))) > least


def test_ill_conditioned_covariances_do_no_harm() -> None:
    random = torch.Generator().manual_seed(2)
    values = torch.logspace(0, -12, DIM, dtype=torch.float64)
    vectors = basis(random)
    clients = [population_gaussian(torch.zeros(DIM), (vectors * values * s) @ vectors.T) for s in (1.0, 4.0)]
    torch.testing.assert_close(
        barycentre(clients).covariance(0), clients[0].covariance(0) * 2.25, rtol=1e-8, atol=1e-15
    )


def test_clients_of_few_images_are_welcome_beside_one_of_many() -> None:
    random = torch.Generator().manual_seed(3)
    few = summarize(torch.randn(3, DIM, generator=random, dtype=torch.float64))
    centre = barycentre([draw(random), few], "uniform", tolerance=1e-12).covariance(0).numpy()
    assert np.linalg.eigvalsh(centre)[0] > 0
    with pytest.raises(ValueError, match="project"):
        barycentre([few, few])


def test_closed_form_where_covariances_commute() -> None:
    random = torch.Generator().manual_seed(4)
    vectors = basis(random)
    clients = [draw(random, vectors) for _ in range(3)]
    weights, found = [0.2, 0.3, 0.5], barycentre(clients, [0.2, 0.3, 0.5])
    roots = []
    for weight, client in zip(weights, clients):
        values, vectors = torch.linalg.eigh(client.covariance(0))
        roots.append(weight * ((vectors * values.sqrt()) @ vectors.T))
    root = torch.stack(roots).sum(0)
    torch.testing.assert_close(root @ root, found.covariance(0), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(sum(weight * client.mean for weight, client in zip(weights, clients)), found.mean)


@pytest.mark.parametrize("which", ["all commute", "all but the generator's", "none"])
def test_the_published_theorem_needs_all_covariances_to_commute(which: str) -> None:
    random = torch.Generator().manual_seed(5)
    residuals = []
    for _ in range(12):
        vectors = basis(random)
        clients = [draw(random, None if which == "none" else vectors) for _ in range(3)]
        generated = draw(random, vectors if which == "all commute" else None)
        split = barycentre_decomposition(clients, generated, [0.5, 0.3, 0.2])
        by_hand = [frechet_distance(client, generated, ddof=0)[0] for client in clients]
        assert split["avg"] == pytest.approx(0.5 * by_hand[0] + 0.3 * by_hand[1] + 0.2 * by_hand[2])
        assert split["residual"] == pytest.approx(split["avg"] - split["to_barycentre"] - split["spread"], abs=1e-12)
        residuals.append(split["residual"])
    if which == "all commute":
        assert max(map(abs, residuals)) < 1e-12
    else:
        assert max(residuals) < -1e-5  # FD-avg is smaller than the theorem says
        assert -0.2 < min(residuals) < -0.02


def test_equal_weights_of_equal_clients_leave_nothing() -> None:
    client = draw(torch.Generator().manual_seed(6))
    split = barycentre_decomposition([client, client], client)
    assert (split["avg"], split["spread"], split["residual"]) == pytest.approx((0, 0, 0), abs=1e-12)


def test_a_search_that_ends_too_early_is_an_error() -> None:
    random = torch.Generator().manual_seed(7)
    with pytest.raises(RuntimeError, match="tolerance"):
        barycentre([draw(random), draw(random)], max_iterations=1)


def test_clients_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one client"):
        barycentre([])
    one, two = (population_gaussian(torch.zeros(d), torch.eye(d)) for d in (1, 2))
    with pytest.raises(ValueError, match="features"):
        barycentre([one, two])
