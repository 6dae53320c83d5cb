import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from fedgen.clients.partitions.clustered import Clustering, find_clusters
from fedgen.seeds import numpy_generator


def points(count=120, dim=8, seed=0):
    return numpy_generator(seed, "points").standard_normal((count, dim)) * np.linspace(3, 0.5, dim)


@pytest.mark.parametrize("covariance", ["full", "diag", "tied", "shrunk"])
def test_clusters_of_k_means_are_summarised_by_mean_and_covariance(covariance):
    x = points()
    found = find_clusters(x, 3, Clustering(covariance, em="never", reg=0.01), 0, "x")
    ridge = 0.01 * np.eye(8)
    parts = [x[found.members == cluster] for cluster in range(3)]
    within = sum(np.cov(part.T, ddof=0) * len(part) for part in parts) / len(x)
    for part, mean, spread in zip(parts, found.means, found.covariances):
        own = np.cov(part.T, ddof=0)
        expected = {
            "full": own + ridge,
            "diag": np.diag(own + ridge),
            "tied": within + ridge,
            "shrunk": (len(part) * own + 8 * within) / (len(part) + 8) + ridge,
        }[covariance]
        np.testing.assert_allclose(mean, part.mean(axis=0), atol=1e-9)
        np.testing.assert_allclose(spread, expected, atol=1e-9)


def test_em_leaves_k_means_clusters_alone_that_have_fewer_points_than_dimensions():
    x = points(160, 40)
    always, auto = (find_clusters(x, 8, Clustering(em=em), 1, "x") for em in ("always", "auto"))
    assert np.array_equal(always.members, auto.members)
    np.testing.assert_allclose(always.means, auto.means, atol=1e-6)
    np.testing.assert_allclose(always.covariances, auto.covariances, atol=1e-5)


@pytest.mark.parametrize(
    ("clustering", "each", "by_em"),
    [
        (Clustering(), 20, False),
        (Clustering(), 30, True),
        (Clustering(em="always"), 20, True),
        (Clustering(em="never"), 30, False),
        (Clustering(init="random"), 20, True),
        (Clustering("diag"), 20, True),
        (Clustering("shrunk"), 30, False),
    ],
)
def test_em_is_spared_where_it_changes_nothing(clustering, each, by_em):
    assert clustering.by_em(each, 25) is by_em


def test_clusters_in_another_order_are_the_same_clusters():
    x = points()
    found = find_clusters(x, 4, Clustering(), 0, "x")
    order = np.array([2, 0, 3, 1])
    moved = found.ordered(order)
    assert np.array_equal(moved.means, found.means[order])
    assert np.array_equal(moved.means[moved.members], found.means[found.members])


def test_what_scikit_learn_warns_of_names_the_class():
    with pytest.warns(ConvergenceWarning, match="distinct"):
        find_clusters(np.repeat(points(2), 10, axis=0), 4, Clustering(), 0, "class 'cat'")
    with pytest.warns(ConvergenceWarning, match="converge"):
        find_clusters(points(), 3, Clustering("diag", max_iter=1, tol=1e-12), 0, "class 'cat'")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"covariance": "spherical"}, "covariance must be one of full, diag, tied, shrunk, got 'spherical'"),
        ({"init": "kmeans++"}, "init must be one of kmeans, random"),
        ({"em": "sometimes"}, "em must be one of auto, always, never"),
        ({"n_init": 0}, "n_init must be at least 1"),
        ({"fit_examples": 0}, "fit_examples must be at least 1"),
        ({"reg": 0.0}, "reg and tol must be above 0"),
        ({"tol": float("nan")}, "reg and tol must be above 0"),
        ({"covariance": "shrunk", "em": "always"}, "EM has no shrunk covariances"),
        ({"init": "random", "em": "never"}, "without EM clusters are those of k-means"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Clustering(**arguments)
