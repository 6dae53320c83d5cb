"""Clients and generators that are an image and its nearest neighbours."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedgen.data import Digits
from fedgen.experiments.ranking.neighbourhoods import (
    Generated,
    NeighbourChoice,
    Neighbourhoods,
    default_sizes,
)
from tests.data.published import write_cifar10


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


CHOICE = NeighbourChoice("digits", Path("data"), "pixels", None, "pixels", False, 3, (10, 40))


def images(source, positions=slice(None)):
    return {tuple(row) for row in source.examples.inputs[positions].flatten(1).tolist()}


def test_the_papers_sizes_go_to_the_whole_data():
    assert default_sizes(60_000)[:6] == (100, 200, 500, 1000, 2000, 5000)
    assert default_sizes(60_000)[-3:] == (50_000, 55_000, 59_999)
    assert default_sizes(50_000)[-2:] == (45_000, 49_999)
    assert default_sizes(898) == (100, 200, 500, 897)
    assert len(default_sizes(60_000, quick=True)) == 6


def test_without_a_test_split_every_class_is_halved_between_clients_and_generators():
    places = Neighbourhoods(CHOICE)
    clients, generators = places.client_source.examples, places.generator_source.examples
    assert len(clients) + len(generators) == 1797
    assert (clients.label_counts() - generators.label_counts()).abs().max() <= 1
    assert clients.name == "digits/train, one half"
    shared = images(places.client_source) & images(places.generator_source)
    assert len(shared) <= 1797 - len(torch.unique(Digits().load().inputs, dim=0))


def test_clients_come_from_the_test_split_or_with_overlap_from_that_of_the_generators():
    write_cifar10(Path("data"), count=40, labels=[i % 10 for i in range(40)])
    choice = replace(CHOICE, data="cifar10", sizes=(10, 199))
    places = Neighbourhoods(choice)
    assert places.client_source.examples.name == "cifar10/test"
    assert places.generator_source.examples.name == "cifar10/train"
    same = Neighbourhoods(replace(choice, overlap=True))
    assert same.client_source is same.generator_source


def test_a_client_is_an_image_of_a_class_with_its_nearest_and_the_floor_has_the_next():
    places = Neighbourhoods(CHOICE)
    federation, floor = places.federation(4), places.floor(4)
    examples, features = places.client_source.examples, places.client_source.features
    assert federation.counts == (5,) * 10
    assert federation.names[3] == "class 3"
    for label, own in enumerate(federation.positions):
        members = (examples.labels == label).nonzero().flatten()
        distances = (features[members] - features[own[0]]).square().sum(1).double()
        assert members[distances.argsort(stable=True)[:5]].tolist() == own.tolist()
        after = features[members[distances.argsort(stable=True)[5:10]]]
        assert torch.equal(floor[5 * label : 5 * label + 5], after)
    assert all(set(a.tolist()) < set(b.tolist()) for a, b in zip(federation.positions, places.federation(9).positions))


def test_generators_of_an_anchor_hold_each_other_and_near_means_near_in_the_other_embedding():
    places = Neighbourhoods(replace(CHOICE, embedding="pixels", neighbours="identity"))
    with pytest.raises(ValueError, match="identity"):
        _ = places.orders
    places = Neighbourhoods(CHOICE)
    features = places.generator_source.features.double()
    assert places.orders.shape == (3, 41)
    for order in places.orders:
        distances = (features[order] - features[order[0]]).square().sum(1)
        assert (distances.diff() >= 0).all()
        others = torch.ones(len(features), dtype=torch.bool)
        others[order] = False
        assert (features[others] - features[order[0]]).square().sum(1).min() >= distances[-1]
    assert len(set(places.orders[:, 0].tolist())) == 3


def test_the_projection_is_of_images_that_are_neither_clients_nor_the_floors():
    places = Neighbourhoods(CHOICE)
    projection = places.projection(3, 4)
    assert projection.count == len(places.client_source.examples) - 100
    assert projection.dim == 3


def test_what_is_drawn_is_the_generators_own_and_no_image_comes_twice():
    order = torch.arange(100, 120)
    generated = Generated(torch.arange(200), order, None, 0)
    assert torch.equal(generated.draw(20), order)
    drawn = generated.draw(8)
    assert len(set(drawn.tolist())) == 8
    assert set(drawn.tolist()) <= set(order.tolist())
    assert torch.equal(drawn, generated.draw(8))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sizes": (40, 10)}, r"sizes=\[40, 10\]: give 1 or more numbers from 1, rising"),
        ({"sizes": (10, 5000)}, "5000 neighbours: an image of digits/train, other half has 89. others"),
        ({"anchors": 1}, "anchors=1: a spread needs 2, and there are 89. images"),
        ({"data": "cifar11"}, "no data 'cifar11'"),
        ({"embedding": "pixel"}, "did you mean pixels"),
    ],
)
def test_impossible_choices_are_refused_with_the_value(changes, message):
    with pytest.raises(ValueError, match=message):
        Neighbourhoods(replace(CHOICE, **changes))


def test_a_class_too_small_for_its_client_is_named():
    places = Neighbourhoods(CHOICE)
    places.check(20)
    with pytest.raises(ValueError, match="digits"):
        places.check(87)
    with pytest.raises(ValueError, match="give"):
        places.check(0)
    with pytest.raises(ValueError, match="controls"):
        places.check(20, -1)


def test_clients_that_leave_no_real_image_or_none_for_components_are_refused_at_once():
    places = Neighbourhoods(replace(CHOICE, overlap=True))
    counts = places.client_source.examples.label_counts()
    left = int((counts - 174).sum())  # digits has at least 174 of a class
    places.check(173, floor=left)
    with pytest.raises(ValueError, match=rf"clients=173: clients of 174 images leave {left} of digits/train .* need"):
        places.check(173, floor=left + 1)
    with pytest.raises(ValueError, match="digits"):
        places.projection(3, 100)
