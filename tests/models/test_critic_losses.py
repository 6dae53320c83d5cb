"""A critic's opinion of each real image, whatever the batches."""

import pytest
import torch

from fedgen.models import GAN
from fedgen.models.adversarial import Hinge
from fedgen.models.networks import SmallCritic, SmallGenerator
from tests.models.stylegan2.test_stylegan2 import make


def images(count=10, size=8):
    return torch.rand(count, 1, size, size, generator=torch.Generator().manual_seed(0)) * 2 - 1


def test_it_is_the_negated_score_whatever_the_batch():
    torch.manual_seed(0)
    model = GAN(SmallGenerator(), SmallCritic(), Hinge())
    model.train()
    losses = model.example_losses(images())
    assert model.critic.training
    with torch.no_grad():
        assert torch.allclose(losses, -model.critic(images()).flatten(), atol=1e-6)
    assert torch.allclose(losses, model.example_losses(images(), batch_size=3), atol=1e-6)
    assert not losses.requires_grad


def test_groups_of_a_critic_that_compares_images_are_whole():
    torch.manual_seed(0)
    model = make()
    losses = model.example_losses(images(10), batch_size=8)
    assert losses.shape == (10,)
    filled = torch.cat([images(10)[8:], images(10)[:6]])
    with torch.no_grad():
        expected = -model.critic.eval()(filled).flatten()[:2]
    assert torch.allclose(losses[8:], expected, atol=1e-6)


def test_a_batch_of_none_is_refused():
    with pytest.raises(ValueError, match="batch_size"):
        GAN(SmallGenerator(), SmallCritic(), Hinge()).example_losses(images(), batch_size=0)
