"""Losses of single examples, at draws that depend on nothing but the seed and the example's place."""

import pytest
import torch
from torch import nn

from fedgen.models import DDPM


class Copy(nn.Module):
    """Predicts a multiple of what it sees; remembers timesteps and labels."""

    def __init__(self, num_classes=None):
        super().__init__()
        self.num_classes = num_classes
        self.factor = nn.Parameter(torch.tensor(0.0))
        self.seen = []

    def forward(self, images, timesteps, labels=None):
        self.seen.append((timesteps.tolist(), None if labels is None else labels.tolist()))
        return self.factor * images


def measure(network, images, timesteps, labels=None, batch_size=2, seed=0):
    network.image_shape = tuple(images.shape[1:])
    return DDPM(network, ema_decay=None).example_losses(images, labels, seed, timesteps, batch_size)


def test_of_a_network_that_predicts_nothing_it_is_the_noises_mean_square():
    losses = measure(Copy(), torch.zeros(3, 1, 32, 32), timesteps=4)
    assert losses.shape == (3,)
    assert losses.tolist() == pytest.approx([1.0] * 3, abs=0.1)
    assert len(set(losses.tolist())) == 3


def test_timesteps_are_as_many_or_those_asked_for_and_labels_go_with_their_images():
    network = Copy(num_classes=3)
    measure(network, torch.zeros(3, 1, 2, 2), [7, 9], labels=torch.tensor([0, 1, 2]))
    assert network.seen == [([7, 7], [0, 1]), ([9, 9], [0, 1]), ([7], [2]), ([9], [2])]
    network = Copy()
    measure(network, torch.zeros(2, 1, 2, 2), 2)
    (first, _), (second, _) = network.seen
    assert max(first) < 500 <= min(second)


def test_an_examples_loss_hangs_on_its_place_and_the_seed_alone():
    images = torch.rand(5, 1, 2, 2, generator=torch.Generator().manual_seed(0))
    losses = measure(Copy(), images, 3)
    torch.testing.assert_close(measure(Copy(), images, 3, batch_size=5), losses)
    torch.testing.assert_close(measure(Copy(), images[:2], 3), losses[:2])
    assert not torch.equal(measure(Copy(), images, 3, seed=1), losses)


def test_a_batch_of_nothing_is_refused():
    with pytest.raises(ValueError, match="batch_size"):
        measure(Copy(), torch.zeros(1, 1, 2, 2), 1, batch_size=0)
