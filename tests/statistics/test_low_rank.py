"""A summary of few images that came as sums has the images' rank again."""

import pytest
import torch

from fedgen.scores import frechet_distance
from fedgen.statistics import Gaussian, gaussian_from_message, gaussian_to_sums, pool, summarize, thin


def features(number, dim, seed=0):
    """Far from the origin, as the features of an embedding are: sums of their squares lose digits."""
    return torch.randn(number, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 0.05 + 0.4


def through_sums(part):
    return gaussian_from_message(gaussian_to_sums(summarize(part)))


def test_two_images_by_hand():
    # images (0, 0) and (2, 4): mean (1, 2), scatter [[2, 4], [4, 8]]
    dense = Gaussian(2, torch.tensor([1.0, 2.0]).double(), scatter=torch.tensor([[2.0, 4.0], [4.0, 8.0]]).double())
    thinned = thin(dense)
    torch.testing.assert_close(thinned.deviations.abs(), torch.tensor([[1.0, 2.0], [1.0, 2.0]]).double())
    torch.testing.assert_close(thinned.covariance(0), dense.covariance(0))


@pytest.mark.parametrize("number", [1, 2, 5, 32])
def test_count_mean_and_covariance_stay(number):
    dense = through_sums(features(number, 32))
    thinned = thin(dense)
    assert (thinned.count, thinned.is_low_rank) == (number, True)
    assert torch.equal(thinned.mean, dense.mean)
    torch.testing.assert_close(thinned.covariance(0), dense.covariance(0), rtol=0, atol=1e-14)
    torch.testing.assert_close(thinned.deviations.sum(0), torch.zeros(32).double(), rtol=0, atol=1e-14)


def test_equal_images_have_no_deviations():
    thinned = thin(through_sums(torch.ones(3, 4, dtype=torch.float64)))
    assert torch.equal(thinned.deviations, torch.zeros(3, 4).double())


def test_a_distance_from_sums_keeps_eleven_digits_where_the_dense_form_keeps_eight():
    many = summarize(features(512, 64, seed=99) * 1.1)
    lost = {through_sums: 0.0, lambda part: thin(through_sums(part)): 0.0}
    for seed in range(8):
        few = features(20, 64, seed)
        exact = frechet_distance(summarize(few), many)[0]
        for way in lost:
            lost[way] = max(lost[way], abs(frechet_distance(way(few), many)[0] / exact - 1))
    dense, thinned = lost.values()
    assert thinned < 1e-11
    assert dense > 1e-9


def test_thinned_summaries_pool_as_the_images_do():
    parts = [features(5, 16), features(7, 16, seed=1) + 1]
    pooled = pool([thin(through_sums(part)) for part in parts])
    assert pooled.is_low_rank
    torch.testing.assert_close(pooled.covariance(), torch.cat(parts).T.cov(), rtol=1e-12, atol=1e-14)


def test_what_is_thin_or_of_full_rank_comes_back_as_it_is():
    for summary in (summarize(features(4, 8)), through_sums(features(9, 8))):
        assert thin(summary) is summary
