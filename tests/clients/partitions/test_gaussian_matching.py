from itertools import permutations

import numpy as np
import pytest
import torch
from torch.distributions import MultivariateNormal, kl_divergence

from fedgen.clients.partitions.clustered import Clusters, divergences, match_clusters
from fedgen.seeds import numpy_generator


def clusters(seed, count=5, dim=4, diagonal=False):
    random = numpy_generator(seed, "clusters")
    roots = random.standard_normal((count, dim, 2 * dim))
    covariances = roots @ roots.transpose(0, 2, 1)
    if diagonal:
        covariances = np.stack([np.diag(covariance) for covariance in covariances])
    return Clusters(np.arange(count), 10 + 3 * random.standard_normal((count, dim)), covariances)


def one_by_one(first, second):
    """The divergences in a plain loop, by torch."""

    def normals(side):
        full = [np.diag(spread) if spread.ndim == 1 else spread for spread in side.covariances]
        return [MultivariateNormal(torch.tensor(m), torch.tensor(s)) for m, s in zip(side.means, full)]

    return np.array([[kl_divergence(p, q).item() for q in normals(second)] for p in normals(first)])


@pytest.mark.parametrize("diagonal", [False, True])
def test_divergences_are_those_of_a_plain_loop(diagonal):
    first, second = clusters(0, diagonal=diagonal), clusters(1, diagonal=diagonal)
    np.testing.assert_allclose(divergences(first, second), one_by_one(first, second), rtol=1e-11)


def test_divergences_of_the_same_clusters_are_zero_on_the_diagonal_only():
    found = divergences(clusters(0), clusters(0))
    np.testing.assert_allclose(np.diag(found), 0, atol=1e-10)
    assert (found + np.eye(5) > 0.1).all()


def test_a_divergence_by_hand():
    first = Clusters(np.zeros(1), np.array([[0.0]]), np.array([[[1.0]]]))
    second = Clusters(np.zeros(1), np.array([[2.0]]), np.array([[[4.0]]]))
    # 1/2 (1/4 + 2^2/4 - 1 + ln 4)
    np.testing.assert_allclose(divergences(first, second), [[0.125 + np.log(2)]])


def test_partners_are_those_of_the_least_total_among_all_permutations():
    first, second = clusters(2), clusters(3)
    table = one_by_one(first, second)
    best = min(permutations(range(5)), key=lambda order: table[np.arange(5), list(order)].sum())
    assert match_clusters(first, second).tolist() == list(best)


def test_clusters_that_moved_and_changed_places_find_their_partners():
    first = clusters(4)
    order = np.array([3, 1, 4, 0, 2])
    second = Clusters(np.arange(5), first.means[order] + 0.1, first.covariances[order])
    assert order[match_clusters(first, second)].tolist() == [0, 1, 2, 3, 4]
