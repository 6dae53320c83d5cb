"""Eigenvectors where LAPACK's divide and conquer gives up."""

import pytest
import torch

from fedgen.scores import frechet_distance
from fedgen.statistics import Gaussian, summarize
from fedgen.statistics.gaussian import eigh


def fail(*_, **__):
    raise torch.linalg.LinAlgError("linalg.eigh: The algorithm failed to converge")


def singular(count, dim, seed):
    rows = torch.randn(count, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return rows.T @ rows


def test_the_second_way_finds_what_the_first_does(monkeypatch):
    matrices = torch.stack([singular(5, 12, 0), singular(20, 12, 1)])
    expected = eigh(matrices)[0]
    monkeypatch.setattr(torch.linalg, "eigh", fail)
    values, vectors = eigh(matrices.tril())  # the lower triangle alone is read
    assert torch.allclose(values, expected, atol=1e-12)
    assert torch.allclose(vectors @ torch.diag_embed(values) @ vectors.mT, matrices, atol=1e-12)
    assert eigh(matrices[0])[1].shape == (12, 12)


def test_a_distance_between_singular_covariances_survives_it(monkeypatch):
    features = [torch.randn(60, 12, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1)]
    for part in features:
        part[:, 3] = 0.5  # a feature that never varies: no Cholesky factor
    a, b = (summarize(part) for part in features)
    assert isinstance(a, Gaussian)
    expected = frechet_distance(a, b)[0]
    monkeypatch.setattr(torch.linalg, "eigh", fail)
    assert frechet_distance(a, b)[0] == pytest.approx(expected, rel=1e-9)


def test_what_is_not_finite_is_still_refused(monkeypatch):
    monkeypatch.setattr(torch.linalg, "eigh", fail)
    with pytest.raises(torch.linalg.LinAlgError):
        eigh(torch.full((3, 3), torch.nan))
