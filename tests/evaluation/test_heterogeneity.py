"""How unlike clients are, beside the same images dealt at random."""

import json
import math

import pytest
import torch

from fedgen.clients import Client, FederatedDataModule
from fedgen.clients.heterogeneity.heterogeneity import (
    HeterogeneityMeasure,
    choose_images,
    label_table,
    measure_clients,
    measure_features,
    random_owners,
    shuffle_within,
)
from fedgen.clients.partitions import IID, ByClass
from fedgen.data import Digits, Examples, GaussianMixture
from fedgen.embeddings import Embedding, FeatureCache, load_embedding


@pytest.fixture(scope="module")
def digits():
    return Digits().load().subset(range(600))


def clients_of(examples, partition):
    return FederatedDataModule(examples, partition, seed=0).clients


def test_clients_of_one_class_are_unlike_and_random_deals_are_not(digits):
    found = measure_clients(clients_of(digits, ByClass()), load_embedding("pixels"))
    assert (found.embedding, found.dim, sum(found.counts)) == ("pixels", 64, 600)
    assert found.clients == list(range(10))
    for name in ("between", "fid", "kid"):
        assert found.measures[name].value > 2 * max(found.measures[name].of_deals("iid"))
    assert found.measures["vendi"].value < 0.9 * min(found.measures["vendi"].of_deals("iid"))
    assert found.measures["labels"].value == pytest.approx(0.9, abs=0.01)


def test_clients_that_differ_in_labels_alone_are_those_of_the_second_control(digits):
    found = measure_clients(clients_of(digits, ByClass()), load_embedding("pixels"), controls=1)
    for measure in found.measures.values():  # one class a client: there is one such deal
        assert measure.of_deals("labels") == pytest.approx([measure.value])


def test_iid_clients_are_as_random_deals(digits):
    found = measure_clients(clients_of(digits, IID(6)), load_embedding("pixels"), controls=5)
    for measure in found.measures.values():
        deals = torch.tensor(measure.of_deals("iid"))
        assert abs(measure.value - float(deals.mean())) < 5 * float(deals.std())


def test_measures_are_means_by_numbers_of_images_of_the_clients_that_have_one():
    measure = HeterogeneityMeasure("kid", [1.0, math.nan, 4.0], [10, 1, 20], {"iid": [[2.0, math.nan, 2.0]]})
    assert measure.value == 3.0
    assert measure.of_deals("iid") == [2.0]
    assert measure.of_deals("labels") == []
    assert math.isnan(HeterogeneityMeasure("kid", [math.nan], [1]).value)
    stored = json.loads(json.dumps(measure.to_json(), allow_nan=False))
    assert stored["per_client"] == [1.0, None, 4.0]
    assert (stored["value"], stored["controls"]) == (3.0, {"iid": [2.0]})


def test_points_have_no_vendi_score_and_their_shares_are_those_of_the_toy():
    clients = clients_of(GaussianMixture(2000).load(), ByClass())
    found = measure_clients(clients, load_embedding("identity"), controls=1)
    assert "vendi" not in found.measures
    # of the variance 3 of the mixture, 1 is between the clients
    assert found.measures["between"].value == pytest.approx(1 / 3, abs=0.03)
    assert found.measures["fid"].value == pytest.approx(1 + (math.sqrt(2) - 1) ** 2, abs=0.15)


def test_without_labels_there_is_one_control():
    features = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    found = measure_features(features, torch.arange(40) % 4, controls=2)
    assert "labels" not in found
    assert {name: len(deals) for name, deals in found["fid"].controls.items()} == {"iid": 2}
    alone = measure_features(features, torch.arange(40) % 4, controls=0)
    assert alone["fid"].controls == {"iid": []}
    assert alone["fid"].per_client == found["fid"].per_client
    with pytest.raises(ValueError, match="controls"):
        measure_features(features, torch.arange(40) % 4, controls=-1)


def test_deals_keep_sizes_and_the_second_kind_labels():
    labels, owners = torch.arange(90) % 5, (torch.arange(90) ** 2 // 50).unique(return_inverse=True)[1] % 7
    deals = random_owners(owners, labels, controls=2, seed=0)
    for deal in (*deals["iid"], *deals["labels"]):
        assert torch.equal(deal.bincount(), owners.bincount())
        assert not torch.equal(deal, owners)
    for deal in deals["labels"]:
        assert torch.equal(label_table(labels, deal), label_table(labels, owners))
    assert not torch.equal(label_table(labels, deals["iid"][0]), label_table(labels, owners))
    assert not torch.equal(deals["iid"][0], deals["iid"][1])
    assert torch.equal(deals["iid"][0], random_owners(owners, None, 1, seed=0)["iid"][0])
    assert not torch.equal(deals["iid"][0], random_owners(owners, None, 1, seed=1)["iid"][0])


def test_every_owner_is_as_likely_everywhere():
    owners = torch.tensor([0, 0, 1])
    first = [int(shuffle_within(torch.zeros(3).long(), owners, seed, "x")[0]) for seed in range(300)]
    assert abs(sum(first) / 300 - 1 / 3) < 0.1


def test_images_are_drawn_in_proportion_and_clients_at_random():
    data = Examples(torch.zeros(200, 2), torch.zeros(200).long(), "toy/train", ())
    cuts = [0, 100, 140, 199, 200]
    clients = [
        Client(f"{i}", data, torch.arange(cuts[i], cuts[i + 1] - 1), torch.tensor([cuts[i + 1] - 1])) for i in range(4)
    ]
    chosen, positions = choose_images(clients, 50, 10, seed=0)
    assert chosen == [0, 1, 2, 3]
    assert [len(own) for own in positions] == [25, 10, 15, 1]  # the last one has one
    assert all(((own >= cuts[i]) & (own < cuts[i + 1])).all() for i, own in enumerate(positions))
    assert [len(own) for own in choose_images(clients, 1000, 10, seed=0)[1]] == [100, 40, 59, 1]
    assert len(choose_images(clients, 50, 2, seed=0)[0]) == 2
    for count, most in ((1, 2), (10, 0)):
        with pytest.raises(ValueError, match=f"num_images={count}, max_clients={most}"):
            choose_images(clients, count, most, seed=0)


def test_the_cache_serves_another_partition(digits, tmp_path, monkeypatch):
    cache, pixels = FeatureCache(tmp_path), load_embedding("pixels")
    first = measure_clients(clients_of(digits, ByClass()), pixels, controls=0, cache=cache)
    monkeypatch.setattr(Embedding, "forward", None)
    again = measure_clients(clients_of(digits, ByClass()), pixels, controls=0, cache=cache)
    measure_clients(clients_of(digits, IID(3)), pixels, controls=0, cache=cache)
    assert first == again


def test_features_that_are_not_finite_name_the_client(digits):
    clients = clients_of(digits, ByClass())
    dark = int(clients[7].everything[4])
    points = Examples(digits.inputs.flatten(1).float(), digits.labels, "toy/train", digits.classes)
    points.inputs[dark] = float("nan")
    clients = [Client(one.name, points, one.train, one.held_out) for one in clients]
    with pytest.raises(ValueError, match="NaN"):
        measure_clients(clients, load_embedding("identity"), num_images=len(points))
