import pytest
import torch

from fedgen.models.networks import (
    DCGANCritic,
    DCGANGenerator,
    ResNetCritic,
    ResNetGenerator,
    SmallCritic,
    SmallGenerator,
)
from fedgen.models.networks.doublings import count_doublings

PAIRS = [(SmallGenerator, SmallCritic), (DCGANGenerator, DCGANCritic), (ResNetGenerator, ResNetCritic)]


@pytest.mark.parametrize(("generator_class", "critic_class"), PAIRS)
@pytest.mark.parametrize(("size", "channels"), [(16, 1), (20, 3), (28, 1), (32, 3), (64, 3)])
def test_generators_make_images_that_critics_score(generator_class, critic_class, size, channels):
    generator = generator_class(image_size=size, channels=channels, latent_dim=5, width=4)
    critic = critic_class(image_size=size, channels=channels, width=4)
    images = generator(torch.randn(3, 5))
    assert images.shape == (3, channels, size, size)
    assert images.abs().max() <= 1
    assert critic(images).shape == (3,)
    assert critic(images[:1]).shape == (1,)


@pytest.mark.parametrize(("generator_class", "critic_class"), PAIRS)
def test_critics_score_each_image_by_itself(generator_class, critic_class):
    critic = critic_class(image_size=16, channels=1, width=4)
    images = torch.randn(4, 1, 16, 16)
    assert torch.allclose(critic(images)[:2], critic(images[:2]), atol=1e-5)


def test_small_pair_makes_8x8_images_by_default():
    assert SmallGenerator()(torch.randn(2, 32)).shape == (2, 1, 8, 8)
    assert SmallCritic()(torch.zeros(2, 1, 8, 8)).shape == (2,)


def test_resnet_pair_has_the_papers_size():
    def count(network):
        return sum(parameter.numel() for parameter in network.parameters())

    # counted by hand from the released model's layers: 128 maps, latent 128, 3x3 convolutions with biases
    up = 2 * (9 * 128 * 128 + 128) + (128 * 128 + 128) + 2 * 256
    plain = 2 * (9 * 128 * 128 + 128)
    first = (27 * 128 + 128) + (9 * 128 * 128 + 128) + (3 * 128 + 128)
    assert count(ResNetGenerator()) == (128 * 2048 + 2048) + 3 * up + 256 + (9 * 128 * 3 + 3) == 1_204_483
    assert count(ResNetCritic()) == first + (plain + 128 * 128 + 128) + 2 * plain + 129 == 1_053_825


@pytest.mark.parametrize(("size", "doublings"), [(16, 2), (20, 2), (28, 2), (32, 3), (36, 2), (48, 3), (64, 4)])
def test_sizes_are_reached_from_a_base_of_4_to_15(size, doublings):
    assert count_doublings(size) == doublings


@pytest.mark.parametrize("size", [4, 15, 30])
@pytest.mark.parametrize("network_class", [DCGANGenerator, DCGANCritic, ResNetGenerator, ResNetCritic])
def test_other_sizes_are_refused(network_class, size):
    with pytest.raises(ValueError, match=f"multiple of 4 from 8 .*got {size}"):
        network_class(image_size=size)
