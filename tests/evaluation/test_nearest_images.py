"""Pairs of generated and training images: of a model that copies and of one that does not, by distances by hand."""

import pytest
import torch
from torch import nn

from fedgen import FederatedDataModule
from fedgen.clients.partitions import IID
from fedgen.data import Digits
from fedgen.evaluation import nearest_images
from fedgen.models import EmpiricalGenerator
from tests.evaluation.places import federation


@pytest.fixture(scope="module")
def data():
    examples = Digits().load("train").subset(torch.arange(160))
    return FederatedDataModule(examples, IID(2), held_out=0.5, seed=0)


def copier(data):
    """A generator of the training images alone."""
    return EmpiricalGenerator(data.examples.subset(data.pooled("train")))


def test_a_model_that_copies_has_pairs_that_are_alike_and_held_out_images_have_not(data):
    copies = copier(data)
    found = nearest_images(copies, data, "pixels", num_images=60, shown=5)
    assert torch.equal(found.generated.images, found.generated.training)
    assert found.generated.distances.tolist() == [0.0] * 5
    assert found.held_out.distances.min() > 0
    assert (found.generated.searched, found.held_out.searched, found.training) == (60, 60, 80)


def test_distances_and_pairs_are_those_of_all_pairs_taken_one_by_one(data):
    def noise(count, draws):
        return torch.rand(count, 1, 8, 8, generator=draws) * 2 - 1

    found = nearest_images(noise, data, "pixels", num_images=50, shown=50)
    inside = torch.cat([data.examples.inputs_at(client.train) for client in data.clients])
    for pairs in (found.generated, found.held_out):
        apart = torch.cdist(pairs.images.flatten(1).double(), inside.flatten(1).double()) / 255
        nearest = apart.min(1)
        torch.testing.assert_close(pairs.distances, nearest.values, rtol=1e-6, atol=1e-9)
        assert torch.equal(pairs.training, inside[nearest.indices])
        assert torch.equal(pairs.distances, pairs.distances.sort().values)
    outside = {tuple(one.flatten().tolist()) for c in data.clients for one in data.examples.inputs_at(c.held_out)}
    assert all(tuple(one.flatten().tolist()) in outside for one in found.held_out.images)


def test_the_picture_has_four_titled_rows_and_two_without_held_out_images(data):
    copies = copier(data)
    picture = nearest_images(copies, data, "pixels", num_images=60, shown=6).picture()
    assert picture.shape[:2] == (1, 4 * (18 + 34))
    whole = FederatedDataModule(data.examples, IID(2), held_out=0.0, seed=0)
    found = nearest_images(copies, whole, "pixels", num_images=60, shown=6)
    assert found.held_out is None
    assert found.picture().shape[1] == 2 * (18 + 34)


class OneLevel(nn.Module):
    """Draws images of one grey level, which is a parameter."""

    def __init__(self):
        super().__init__()
        self.level = nn.Parameter(torch.zeros(1))

    def sample(self, num_images, generator=None):
        return self.level.detach().expand(num_images, 1, 8, 8).clone()


def test_clients_own_models_are_searched_with_as_many_images_each(data):
    own = {0: {"level": torch.tensor([-1.0])}, 1: {"level": torch.tensor([1.0])}}
    found = nearest_images(OneLevel(), data, "pixels", num_images=7, shown=7, personal=own)
    assert sorted(found.generated.images[:, 0, 0, 0].tolist()) == [0] * 4 + [255] * 3


def test_no_more_images_are_searched_than_clients_hold_out(data):
    assert nearest_images(copier(data), data, "pixels", num_images=1000).generated.searched == 80


def test_what_cannot_be_shown_is_refused(data):
    copies = copier(data)
    with pytest.raises(ValueError, match="num_images"):
        nearest_images(copies, data, "pixels", num_images=0)
    with pytest.raises(ValueError, match="shown"):
        nearest_images(copies, data, "pixels", shown=0)
    with pytest.raises(ValueError, match="nearest"):
        nearest_images(copies, federation(), "identity")
