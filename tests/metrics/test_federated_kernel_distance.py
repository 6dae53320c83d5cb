"""MMD^2 to clients as a metric is the reference's."""

import pytest
import torch

from fedgen.metrics import FederatedKernelDistance
from fedgen.scores import KernelReference, RBFKernel, mmd2
from tests.metrics.sets import CLIENTS, DIM, GENERATED, filled


@pytest.mark.parametrize("weights", ["examples", "uniform", (1, 2, 5)])
@pytest.mark.parametrize("arguments", [{}, {"estimator": "v", "kernel": RBFKernel(2.0)}])
def test_values_are_those_of_the_reference_to_the_bit(weights, arguments):
    found = filled("federated-kernel", weights=weights, **arguments).compute()
    reference = KernelReference.from_features(CLIENTS, weights=weights, **arguments)
    exact = reference.score(GENERATED, errors=False)
    assert {key: found[f"kid_{key}"].item() for key in exact.values} == exact.values
    assert torch.equal(found["kid_per_client"], exact.per_client)
    assert found["kid_avg"] - found["kid_all"] == pytest.approx(reference.gap)


def test_images_of_several_clients_in_mixed_batches_give_the_same_bits():
    mixed = FederatedKernelDistance(3, dim=DIM)
    features = torch.cat(CLIENTS)
    clients = torch.repeat_interleave(torch.arange(3), torch.tensor([len(part) for part in CLIENTS]))
    order = torch.arange(33).reshape(3, 11).T.flatten()  # of one client, images stay in order
    for part in order.split(5):
        mixed.update(features[part], client=clients[part].int())
    mixed.update(GENERATED, client=None)
    exact = filled("federated-kernel").compute()
    assert {key: value.tolist() for key, value in mixed.compute().items()} == {k: v.tolist() for k, v in exact.items()}


def test_all_alone_is_the_distance_to_the_pooled_images_whatever_the_clients_have():
    metric = FederatedKernelDistance(5, dim=DIM, aggregate="all")
    metric.update(CLIENTS[2][:1], client=4)
    metric.update(CLIENTS[2][1:], client=0)
    metric.update(GENERATED, client=None)
    assert metric.compute().item() == pytest.approx(mmd2(CLIENTS[2], GENERATED), rel=1e-12)


def test_a_client_with_too_few_images_is_an_error_that_names_it_its_count_and_the_remedy():
    metric = FederatedKernelDistance(2, dim=DIM)
    metric.update(CLIENTS[0], client=0)
    metric.update(CLIENTS[1][:1], client=1)
    metric.update(GENERATED, client=None)
    with pytest.raises(ValueError, match="update"):
        metric.compute()


def test_powers_of_negative_scores_are_an_error_that_says_what_works():
    metric = FederatedKernelDistance(1, dim=DIM, aggregate=2)
    metric.update(CLIENTS[2], client=0)
    metric.update(CLIENTS[2], client=None)  # equal sets: below zero
    with pytest.raises(ValueError, match="worst"):
        metric.compute()
