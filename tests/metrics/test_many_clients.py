"""What metrics of many clients take and give."""

import pytest
import torch

from fedgen.metrics import FederatedFrechetDistance
from tests.metrics.sets import CLIENTS, DIM, FEDERATED, GENERATED, assert_equal, filled

BOTH = pytest.mark.parametrize("name", FEDERATED)


@BOTH
def test_one_aggregate_is_a_scalar_and_equals_the_dicts(name):
    everything = filled(name, weights="uniform").compute()
    for key, value in everything.items():
        aggregate = key.split("_", 1)[1]
        single = filled(name, weights="uniform", aggregate=aggregate).compute()
        assert torch.equal(single, value)
        assert single.shape == ((3,) if aggregate == "per_client" else ())
        assert single.dtype == torch.float64


def test_powers_lie_between_avg_and_worst_and_have_keys_of_their_own():
    metric = filled("federated-frechet", aggregate=("avg", 2, 3.5, "worst"))
    found = metric.compute()
    assert list(found) == ["fid_avg", "fid_power_2", "fid_power_3.5", "fid_worst"]
    assert sorted(found.values()) == list(found.values())
    shares = torch.tensor([4, 9, 20]).double() / 33
    scores = filled("federated-frechet", aggregate="per_client").compute()
    assert found["fid_power_2"].item() == pytest.approx(float((shares @ scores**2).sqrt()))


@BOTH
def test_clients_given_image_by_image_equal_clients_given_batch_by_batch(name):
    mixed = FEDERATED[name]()
    clients = torch.repeat_interleave(torch.arange(3), torch.tensor([len(part) for part in CLIENTS]))
    mixed.update(torch.cat(CLIENTS), client=clients)
    mixed.update(GENERATED, client=None)
    assert_equal(mixed, filled(name), rtol=1e-11)


@BOTH
def test_numbers_of_any_whole_type_name_a_client(name):
    metric = FEDERATED[name]()
    for client, part in zip((torch.tensor(0), 1, torch.tensor(2, dtype=torch.int32)), CLIENTS):
        metric.update(part, client=client)
    metric.update(GENERATED, client=None)
    assert_equal(metric, filled(name), rtol=1e-11)


@BOTH
def test_an_empty_batch_adds_nothing(name):
    metric = filled(name)
    metric.update(GENERATED[:0], client=None)
    metric.update(GENERATED[:0], client=torch.zeros(0, dtype=torch.int64))
    assert_equal(metric, filled(name))


@pytest.mark.parametrize(
    ("client", "message"),
    [
        (3, r"client 3 is none of 0 \.\.\. 2; generated images: client=None"),
        (-1, "client -1 is none"),
        (True, r"a whole number, int64 \[N\], or None for generated images, got True"),
        (0.0, "got 0.0"),
        ([0, 1], r"got \[0, 1\]"),
        (torch.tensor([0, 3]), "client 3 is none"),
        (torch.tensor([0, 1, 2]), r"one whole number an image, \[2\], got torch.int64 \[3\]"),
        (torch.tensor([0.0, 1.0]), "one whole number an image"),
        (torch.tensor([True, False]), "one whole number an image"),
    ],
)
def test_a_client_that_does_not_exist_is_an_error_and_adds_nothing(client, message):
    metric = FederatedFrechetDistance(3, dim=DIM)
    with pytest.raises(ValueError, match=message):
        metric.update(GENERATED[:2], client=client)
    assert metric.real_count.tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_clients": 0}, "num_clients must be at least 1, got 0"),
        ({"aggregate": "median"}, "aggregate must be among .* got 'median'"),
        ({"aggregate": ("avg", 0.5)}, "power of at least 1, got 0.5"),
        ({"aggregate": ()}, "must name at least one"),
        ({"weights": "images"}, "'examples', 'uniform' or numbers, got 'images'"),
        ({"weights": (1, 2)}, "one number a client"),
        ({"weights": (1, 2, -1)}, "not negative"),
    ],
)
def test_unusable_arguments_are_errors_before_any_image(arguments, message):
    with pytest.raises(ValueError, match=message):
        FederatedFrechetDistance(**{"num_clients": 3, "dim": DIM, **arguments})
