import pytest
import torch

from fedgen.scores.frechet import roots
from fedgen.scores.frechet.roots import (
    Triangle,
    coordinates,
    factor,
    paired_eigenvalues,
    sandwich,
    solved,
    squared_norms,
    stack,
    stackable,
    sum_of_roots,
)
from fedgen.statistics import summarize


def draw(count: int, dim: int = 9, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def singular() -> torch.Tensor:
    return draw(40, 3) @ draw(3, 9, 1)


def scaled() -> torch.Tensor:
    return draw(40) * torch.logspace(-3, 0, 9).double()


@pytest.mark.parametrize("features", [draw(4), draw(40), scaled(), singular(), torch.ones(40, 9)])
def test_a_root_gives_back_its_covariance(features: torch.Tensor) -> None:
    gaussian = summarize(features)
    root = factor(gaussian, 1)
    rows = root.rows[0]
    torch.testing.assert_close(rows.T @ rows, gaussian.covariance(), rtol=1e-10, atol=1e-13)
    assert torch.linalg.matrix_rank(gaussian.covariance()) <= root.ranks[0]


@pytest.mark.parametrize("features", [draw(40), scaled(), singular()])
def test_coordinates_give_back_the_deviations(features: torch.Tensor) -> None:
    gaussian = summarize(features)
    root = factor(gaussian, 1)
    deviations = features - gaussian.mean
    torch.testing.assert_close(coordinates(root, deviations) @ root.rows[0], deviations, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("features", [draw(40), scaled(), singular()])
def test_columns_by_coordinates_are_columns_by_features(features: torch.Tensor) -> None:
    gaussian = summarize(features)
    root, columns = factor(gaussian, 1), draw(9, 2, 1)
    columns = columns[: root.size]
    deviations = features - gaussian.mean
    found = solved(root, columns)
    torch.testing.assert_close(deviations @ found, coordinates(root, deviations) @ columns, rtol=1e-9, atol=1e-9)
    norms = (root.rows[0] @ found).square().sum().reshape(1)
    torch.testing.assert_close(squared_norms(root, found), norms, rtol=1e-5, atol=0)


def test_the_triangular_product_in_blocks_is_the_plain_product(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roots, "BLOCK", 4)
    root, covariance = factor(summarize(draw(40)), 1), draw(40, seed=2).T.cov()
    assert isinstance(root.stored, Triangle)
    torch.testing.assert_close(root.rows[0], torch.linalg.cholesky(draw(40).T.cov(), upper=True))
    plain = root.rows[0] @ covariance @ root.rows[0].T
    torch.testing.assert_close(sandwich(root, covariance)[0].tril(), plain.tril())


def test_stacked_roots_in_small_steps_equal_single_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roots, "ROWS", 8)
    singles = [factor(summarize(draw(n, seed=n)), 1) for n in (2, 5, 7, 3)]
    for other in (draw(40, seed=9).T.cov(), factor(summarize(draw(4, seed=9)), 1)):
        batch, *alone = (sum_of_roots(*paired_eigenvalues(one, other)) for one in (stack(singles), *singles))
        torch.testing.assert_close(batch, torch.cat(alone))


def test_small_roots_of_about_one_size_are_stacked_and_the_others_stay_alone() -> None:
    assert stackable([5, 300, 16, None, 17, 3, 300]) == [[0, 2, 5], [1], [3], [4], [6]]
