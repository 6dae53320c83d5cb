"""How unlike clients are: by hand, by definition, and over random deals."""

from itertools import permutations

import pytest
import torch

from fedgen.clients.heterogeneity.heterogeneity import (
    fid_to_pool,
    kid_to_pool,
    label_distance,
    label_table,
    measure_features,
    sizes_of,
    variance_between,
    vendi_of_clients,
)
from fedgen.scores import KernelReference, RBFKernel, frechet_distance, mmd2
from fedgen.statistics import summarize


def draw(count, dim, seed=0):
    return torch.randn(count, dim, generator=torch.Generator().manual_seed(seed))


def mean_over(per_client, owners):
    sizes = sizes_of(owners).double()
    return float((per_client * sizes).sum() / sizes.sum())


def every_deal(owners):
    """All ways to deal the same images to clients of the same sizes."""
    return [torch.tensor(deal) for deal in sorted(set(permutations(owners.tolist())))]


def test_variance_between_by_hand():
    # means -1 and 1 around 0; within, each client varies by 1 around its mean: half of the variance is between them
    features = torch.tensor([[-2.0], [0.0], [0.0], [2.0]])
    assert variance_between(features, torch.tensor([0, 0, 1, 1])).tolist() == [0.5, 0.5]
    assert variance_between(features, torch.tensor([0, 1, 1, 0])).tolist() == [0.0, 0.0]
    assert variance_between(torch.ones(3, 2), torch.tensor([0, 1, 1])).tolist() == [0.0, 0.0]


def test_the_mean_of_variance_between_is_what_is_not_within():
    features, owners = draw(50, 7), torch.arange(50) % 3
    owners[:10] = 2
    parts = [summarize(features[owners == client]) for client in range(3)]
    within = sum(part.count / 50 * float(part.trace(0)) for part in parts)
    expected = 1 - within / float(summarize(features).trace(0))
    assert mean_over(variance_between(features, owners), owners) == pytest.approx(expected)


@pytest.mark.slow
def test_random_deals_give_what_is_said_of_them():
    owners = torch.tensor([0, 0, 1, 1, 2, 2])
    features, deals = draw(6, 4), every_deal(owners)
    shares = [mean_over(variance_between(features, deal), deal) for deal in deals]
    assert sum(shares) / len(shares) == pytest.approx(2 / 5)
    kernel = RBFKernel(1.0)
    for one in (None, kernel):
        found = kid_to_pool(features, deals, one)
        assert found.shape == (len(deals), 3)
        assert found.mean(0).abs().max() < 1e-12 * found.abs().max()


@pytest.mark.parametrize("dim", [2, 40])  # by monomials, and by blocks
@pytest.mark.parametrize("count", [60, 2500])
def test_kid_is_the_u_statistic_against_the_others(dim, count):
    features = draw(count, dim)
    owners = torch.randint(3, (count,), generator=torch.Generator().manual_seed(1))
    features[owners == 1] += 0.5
    deals = [owners, owners.flip(0)]
    for deal, values in zip(deals, kid_to_pool(features, deals)):
        for client in range(3):
            own = deal == client
            expected = (1 - own.double().mean()) ** 2 * mmd2(features[own], features[~own])
            assert float(values[client]) == pytest.approx(float(expected), rel=1e-9, abs=1e-12)


def test_kid_of_many_images_is_that_to_the_pool():
    features, owners = draw(4000, 6), torch.arange(4000) % 2
    features[owners == 1] += 1.0
    parts = [features[owners == client] for client in range(2)]
    to_pool = KernelReference.from_features(parts, estimator="v").score(features, errors=False).per_client
    assert kid_to_pool(features, [owners])[0].tolist() == pytest.approx(to_pool.tolist(), rel=0.01)


def test_fid_is_that_to_the_summary_of_all():
    features, owners = draw(60, 5), torch.tensor([0] * 20 + [1] * 39 + [2])
    found, again = fid_to_pool(features, [owners, owners])
    assert torch.equal(found[:2], again[:2])
    assert float(found[0]) == frechet_distance(summarize(features[:20]), summarize(features))[0]
    assert found.isnan().tolist() == [False, False, True]


def test_clients_of_one_image_have_no_kid():
    assert kid_to_pool(draw(6, 3), [torch.tensor([0, 0, 0, 0, 0, 1])]).isnan().all()
    assert kid_to_pool(draw(7, 3), [torch.tensor([0, 0, 0, 0, 1, 2, 2])])[0].isnan().tolist() == [False, True, False]


def test_vendi_counts_what_a_client_has():
    features = torch.eye(4)[[0, 0, 1, 2, 3, 3]]
    assert vendi_of_clients(features, torch.tensor([0, 0, 1, 1, 1, 1])).tolist() == pytest.approx([1, 2.8284271])


def test_label_distance_by_hand():
    labels, owners = torch.tensor([0, 0, 1, 1, 0, 1]), torch.tensor([0, 0, 1, 1, 2, 2])
    assert label_distance(labels, owners).tolist() == [0.5, 0.5, 0.0]
    assert label_table(labels, owners, num_labels=3).tolist() == [[2, 0, 0], [0, 2, 0], [1, 1, 0]]


@pytest.mark.parametrize("owners", [torch.tensor([0, 2]), torch.tensor([-1, 0]), torch.tensor([])])
def test_owners_without_gaps_are_asked_for(owners):
    with pytest.raises(ValueError, match=r"client 1 has no image|client numbers from 0"):
        sizes_of(owners.long())


def test_features_and_owners_must_fit():
    with pytest.raises(ValueError, match="features"):
        measure_features(draw(3, 2), torch.tensor([0, 1]))
