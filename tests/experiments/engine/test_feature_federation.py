"""Clients as positions in one tensor, and their IID control."""

import pytest
import torch

from fedgen.experiments.engine.features import FeatureFederation, rows_of
from fedgen.scores import FrechetReference

FEATURES = torch.randn(30, 3, generator=torch.Generator().manual_seed(0))


def federation():
    return FeatureFederation(FEATURES, (torch.arange(5), torch.arange(10, 20)), ("a", "b"))


def test_parts_are_the_clients_rows_in_one_tensor():
    parts = federation().parts()
    assert torch.equal(parts[0], FEATURES[:5])
    assert torch.equal(parts[1], FEATURES[10:20])
    assert parts[0].untyped_storage().data_ptr() == parts[1].untyped_storage().data_ptr()


def test_the_control_deals_the_same_images_to_clients_of_the_same_sizes():
    control = federation().iid(seed=0)
    assert control.counts == (5, 10)
    assert sorted(torch.cat(control.positions).tolist()) == [*range(5), *range(10, 20)]
    assert not torch.equal(control.positions[0], federation().positions[0])
    again, other = federation().iid(seed=0), federation().iid(seed=0, repeat=1)
    assert torch.equal(control.positions[0], again.positions[0])
    assert not torch.equal(torch.cat(control.positions), torch.cat(other.positions))


def test_no_two_clients_share_an_image():
    with pytest.raises(AssertionError):
        FeatureFederation(FEATURES, (torch.arange(5), torch.arange(4, 9)), ("a", "b"))


def test_rows_hold_values_errors_and_terms_of_the_scores():
    generated = FEATURES[20:] + 1
    (score,) = federation().reference(["fid"]).score(generated)
    rows = rows_of([score])
    direct = FrechetReference.from_features([FEATURES[:5], FEATURES[10:20]]).score(generated)
    assert rows["fid"]["all"] == direct.values["all"]
    assert rows["fid"]["errors"]["avg"] == direct.error_parts["generated"]["avg"]
    assert rows["fid"]["total errors"]["avg"] == direct.errors["avg"]
    assert rows["fid"]["terms"]["mean"] == direct.terms["mean"]
