"""FD-avg and the barycentre, small."""

from itertools import pairwise

import pytest
import torch

from fedgen.experiments.theory import gaussian_fids as experiment


def commutator(first, second):
    a, b = (each.covariance(ddof=0) for each in (first, second))
    return (a @ b - b @ a).norm() / (a.norm() * b.norm())


def test_bases_are_shared_where_a_case_says_so():
    random = torch.Generator().manual_seed(0)
    basis = experiment.random_basis(4, random)
    first, second = (experiment.random_gaussian(4, random, basis) for _ in range(2))
    assert commutator(first, second) < 1e-12
    assert commutator(first, experiment.random_gaussian(4, random, None)) > 1e-3
    values = torch.linalg.eigvalsh(first.covariance(ddof=0))
    assert 0.25 <= values.min() <= values.max() <= 2.75


def test_the_theorem_holds_for_commuting_covariances_and_bounds_the_others():
    found = {case: {"0": experiment.decompose(case, 0, (3, 3, 4), seed=0)} for case in experiment.CASES}
    shares = {case: experiment.residuals(rows, relative=True) for case, rows in found.items()}
    assert max(map(abs, shares["all commute"])) < 1e-12
    for case in ("all but the generator's", "none commute"):
        assert max(shares[case]) < -1e-6
    row = found["none commute"]["0"]
    assert row["residual"] == pytest.approx([a - b for a, b in zip(row["avg"], row["theorem"])])


def test_misranked_pairs_by_hand():
    rows = {"0": {"avg": [1.0, 2.0, 3.0], "theorem": [1.5, 3.5, 3.4]}, "1": {"avg": [1.0, 2.0], "theorem": [2.0, 3.0]}}
    assert experiment.misranked(rows) == (1, 4)


def test_the_printed_shift_does_not_make_the_clients_distances_equal():
    row = experiment.compare_shifts(3, 6, seed=0)
    assert experiment.unequal(row, "shifted") < 1e-12
    assert row["shifted"]["all"] == pytest.approx(2 * row["squared shift"])
    # |mu_i - mu|^2 is common to all, so the clients' distances differ by one number
    gaps = [a - b for a, b in zip(row["printed"]["clients"], row["pool"]["clients"])]
    assert all(a == pytest.approx(b) for a, b in pairwise(gaps))
    assert abs(gaps[0]) > 0.1


def test_sizes_without_a_comparison_are_refused(tmp_path):
    with pytest.raises(ValueError, match="generators"):
        experiment.barycentre(output=tmp_path, generators=1)
