"""Splits: whose real images, and how many."""

import pytest
import torch

from fedgen.evaluation import Split, splits_of
from fedgen.evaluation.real.federation_splits import as_splits
from tests.evaluation.samples import CLIENTS, pictures
from tests.federated.modules import make_data


def test_a_split_names_its_reference():
    split = Split.of_clients("train", CLIENTS)
    assert split.reference == "noise/train, 3 clients, 100 images"
    assert split.counts == (30, 50, 20)
    assert split.shape == (1, 4, 4)
    assert split.client_names == ("client 0", "client 1", "client 2")


def test_a_client_with_one_image_is_an_error_with_the_remedy():
    with pytest.raises(ValueError, match=r"client 'client 1' has 1 image\(s\) in split 'train' .* smaller held_out"):
        Split.of_clients("train", [pictures(5, 0), pictures(1, 1)])


def test_parts_must_fit_each_other():
    with pytest.raises(ValueError, match="do not fit"):
        Split("train", torch.zeros(5, 1, 2, 2, dtype=torch.uint8), (2, 2), "x")
    with pytest.raises(ValueError, match="no client"):
        Split.of_clients("train", [])


def test_a_federation_has_a_split_to_select_by_and_one_to_report():
    data = make_data((12, 20, 8), held_out=0.25)
    train, report = splits_of(data)
    assert (train.name, train.counts) == ("train", (9, 15, 6))
    assert (report.name, report.counts) == ("report", (3, 5, 2))
    assert torch.equal(train.images, torch.cat([c.train_examples.inputs for c in data.clients]))
    assert torch.equal(report.images, torch.cat([c.held_out_examples.inputs for c in data.clients]))
    assert torch.equal(train.stand_ins["floor"].images, report.images)
    assert torch.equal(report.stand_ins["floor"].images, train.images)
    assert report.reference == "points/train held out, 3 clients, 10 points"


def test_the_report_is_left_out_where_a_client_holds_out_too_little():
    (train,) = splits_of(make_data((12, 20, 4), held_out=0.25))
    assert len(train.stand_ins["floor"].images) == 9
    (alone,) = splits_of(make_data((12, 20, 4), held_out=0.0))
    assert alone.stand_ins == {}


def test_splits_come_from_examples_too():
    (split,) = as_splits({"train": CLIENTS})
    assert split.counts == (30, 50, 20)
