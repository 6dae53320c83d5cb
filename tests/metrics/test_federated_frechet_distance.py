"""The Fréchet distance to clients as a metric is the reference's."""

import pytest
import torch

from fedgen.metrics import FederatedFrechetDistance
from fedgen.scores import FrechetReference, frechet_distance
from fedgen.statistics import summarize
from tests.metrics.sets import CLIENTS, DIM, GENERATED, filled


@pytest.mark.parametrize("weights", ["examples", "uniform", (1, 2, 5)])
@pytest.mark.parametrize("ddof", [0, 1])
def test_values_are_those_of_the_reference_on_summaries(weights, ddof):
    found = filled("federated-frechet", weights=weights, ddof=ddof).compute()
    reference = FrechetReference.from_summaries(map(summarize, CLIENTS), weights, ddof)
    exact = reference.score(GENERATED, errors=False)
    # not to the bit: matrix products round by where their factors lie in memory, and images come in batches
    assert {key: found[f"fid_{key}"].item() for key in exact.values} == pytest.approx(exact.values, rel=1e-13)
    torch.testing.assert_close(found["fid_per_client"], exact.per_client, rtol=1e-13, atol=0)
    assert list(found) == ["fid_avg", "fid_all", "fid_worst", "fid_per_client"]


@pytest.mark.parametrize("weights", ["examples", "uniform", (1, 2, 5)])
def test_values_are_within_ten_digits_of_those_from_features(weights):
    found = filled("federated-frechet", weights=weights).compute()
    exact = FrechetReference.from_features(CLIENTS, weights).score(GENERATED, errors=False)
    for key, value in exact.values.items():
        assert found[f"fid_{key}"].item() == pytest.approx(value, rel=1e-10)


def test_all_alone_keeps_one_sum_of_the_pool():
    pooled = filled("federated-frechet", aggregate="all")
    assert pooled.real_count.tolist() == [33]
    assert pooled.real_moments.shape[0] == 1
    assert pooled.compute().item() == pytest.approx(
        frechet_distance(summarize(torch.cat(CLIENTS)), summarize(GENERATED))[0]
    )
    assert filled("federated-frechet", aggregate="all", weights="uniform").real_moments.shape[0] == 3


def test_all_alone_needs_no_images_of_every_client():
    metric = FederatedFrechetDistance(5, dim=DIM, aggregate="all")
    metric.update(CLIENTS[2][:1], client=4)
    metric.update(GENERATED, client=None)
    with pytest.raises(ValueError, match="seen"):
        metric.compute()
    metric.update(CLIENTS[2][1:], client=0)
    exact = frechet_distance(summarize(CLIENTS[2]), summarize(GENERATED))[0]
    assert metric.compute().item() == pytest.approx(exact, rel=1e-10)


def test_a_client_with_too_few_images_is_an_error_that_names_it_its_count_and_the_remedy():
    metric = FederatedFrechetDistance(3, dim=DIM)
    for client, part in enumerate((CLIENTS[2], CLIENTS[1][:1])):
        metric.update(part, client=client)
    metric.update(GENERATED, client=None)
    with pytest.raises(ValueError, match="update"):
        metric.compute()
    metric.update(CLIENTS[1], client=1)
    with pytest.raises(ValueError, match="num_sanity_val_steps"):
        metric.compute()
    metric.update(CLIENTS[0], client=2)
    assert metric.compute()["fid_avg"] > 0
